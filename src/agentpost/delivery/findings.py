"""What the fleet's pipeline found out, taken down by this gateway: incidents, once each, and a watermark (OBS-9).

A finding is about history, so it stays found: one whose incident was closed by an operator is not raised again.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import PIPELINE_PREFIX
from agentpost.store.interface import Store
from agentpost.store.values import PIPELINE_WATERMARK, Incident, Note, Subscriber
from agentpost.world import Clock

__all__ = ["FindingsDesk", "PipelineFinding", "Taken", "Watermark"]

_PREFIX: Final = PIPELINE_PREFIX
# Everything that the pipeline ever told, by kind and subject: closed incidents are forgotten after a while.
_TOLD: Final = "pipeline-findings"
# A pipeline that has not run for so long has no say in what is kept.
_LEASE_MS: Final = 7 * 86_400_000

Name = Annotated[str, Meta(max_length=128)]
Rule = Annotated[str, Meta(pattern="^[a-z][a-z_]{0,63}$")]
Seq = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class PipelineFinding(
    Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """A broken rule, or something worth a look. Together its fields are its key."""

    rule: Rule
    node: Name = ""
    epoch: Name = ""
    seq: Seq | None = None
    event_id: Name = ""
    agent_id: Name = ""
    corr_id: Name = ""

    @property
    def subject(self) -> str:
        """What it is about, the same whoever finds it: the delivery, or the place in an outbox."""
        place = f"{self.node}/{self.epoch}/{self.seq}" if self.seq is not None else self.node
        return " ".join(part for part in (self.event_id, self.agent_id, place) if part)


class Watermark(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The last seq of this gateway's outbox that nobody in the fleet needs, as far as the pipeline can tell."""

    epoch: Name
    through_seq: Seq


class Taken(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many findings were news, and how many were known."""

    raised: int
    known: int


class FindingsDesk:
    def __init__(self, *, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def take(self, findings: Sequence[PipelineFinding]) -> Taken:
        """Raise an incident for each finding that never had one."""
        told: dict[str, Incident] = {}
        for finding in findings:
            kind, subject = _PREFIX + finding.rule, finding.subject
            key = f"{kind} {subject}"
            if key in told or self._store.note(_TOLD, key) is not None:
                continue
            told[key] = Incident(
                kind=kind,
                subject=subject,
                at_ms=self._clock.now_ms(),
                corr_id=finding.corr_id or None,
                detail={
                    name: value
                    for name, value in (
                        ("node", finding.node),
                        ("epoch", finding.epoch),
                        ("seq", finding.seq),
                        ("eventId", finding.event_id),
                        ("agentId", finding.agent_id),
                    )
                    if value not in (None, "")
                },
                closed_at_ms=None,
            )
        if told:
            at_ms = self._clock.now_ms()
            notes = [Note(collection=_TOLD, key=key, value=b"", at_ms=at_ms) for key in told]
            await self._store.append([], notes=notes, incidents=list(told.values()))
        return Taken(raised=len(told), known=len(findings) - len(told))

    async def keep_from(self, watermark: Watermark) -> int:
        """Prune nothing above the watermark while its lease lasts. Gives the seq through which may be pruned."""
        if watermark.epoch != self._store.epoch:
            raise Refusal(
                Code.EPOCH_MISMATCH,
                f"the outbox is in epoch {self._store.epoch}, and the watermark speaks of another",
                field="watermark.epoch",
                hint="Export the outbox, and run the pipeline again.",
            )
        now_ms = self._clock.now_ms()
        through_seq = min(watermark.through_seq, self._store.head().seq)
        bound = Subscriber(
            consumer_node_id=PIPELINE_WATERMARK,
            epoch=watermark.epoch,
            last_seq=through_seq,
            updated_at_ms=now_ms,
            lease_expires_at_ms=now_ms + _LEASE_MS,
        )
        await self._store.note_subscriber(bound)
        return through_seq
