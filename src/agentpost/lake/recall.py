"""What the lake tells of a lost gateway: what it sent and what it took, and what became of both.

Reads the outboxes of all, folds what they say, and keeps only the end of it. Knows nothing of homes.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.place import Lake
from agentpost.lake.reading import contiguous, epochs_of, rows
from agentpost.lake.segments import manifests
from agentpost.protocol.delivery import Change, Delivery, advance
from agentpost.protocol.errors import Refusal
from agentpost.protocol.heads import next_chain
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.payloads import AckType, Kind
from agentpost.store.restoring import InboxEvent, addressed_to
from agentpost.store.values import CHAIN_START, Cursor, Outcome

__all__ = ["UNACCEPTED", "Pair", "Recalled", "Taken"]

UNACCEPTED: Final = (DeliveryState.EMITTED, DeliveryState.RETRY_PENDING)
_MAIL: Final = frozenset(kind.value for kind in Kind) - {Kind.ACK, Kind.SIGNAL, Kind.DEAD_LETTER}
_COLUMNS: Final = (
    "event_id",
    "kind",
    "attempt",
    "corr_id",
    "source_agent",
    "created_us",
    "to_agents",
    "to_nodes",
    "route_decision",
    "ref_event_id",
    "ack_type",
    "acked_by_node",
    "acked_by_agent",
    "acked_us",
    "reason",
    "dead_for_agent",
    "dead_attempts",
    "ended_us",
    "eta_us",
    "body",
)
_SIGNALS: Final = {
    AckType.ACCEPTED.value: DeliverySignal.ACCEPTED,
    AckType.PROCESSED.value: DeliverySignal.PROCESSED,
    AckType.FAILED_TERMINAL.value: DeliverySignal.FAILED_TERMINAL,
}

Pair = tuple[str, str]  # event id, agent id


class Taken(Struct):
    """What the own ACKs say of one event for one agent."""

    accepted_at_ms: int
    settled_at_ms: int | None = None
    outcome: Outcome | None = None


class _Row(Struct):
    seq: int
    event_id: str
    kind: str
    attempt: int
    corr_id: str
    source_agent: str
    created_us: int
    to_agents: list[str]
    to_nodes: list[str]
    route_decision: str | None
    ref_event_id: str | None
    ack_type: str | None
    acked_by_node: str | None
    acked_by_agent: str | None
    acked_us: int | None
    reason: str | None
    dead_for_agent: str | None
    dead_attempts: int | None
    ended_us: int | None
    eta_us: int | None
    body: bytes


class Recalled:
    """Of one lost gateway. `read_own` each life of its outbox, then `read_other` for everybody else's.

    `bodies` are the events that it may have taken, by id; `cursors` say how far the others were read here.
    """

    def __init__(
        self, lake: Lake, node_id: str, *, now_ms: int, policy: DeliveryPolicy, lost_at_ms: int | None
    ) -> None:
        self._lake = lake
        self._node_id = node_id
        self._now_ms = now_ms
        self._policy = policy
        self._lost_at_us = None if lost_at_ms is None else lost_at_ms * 1000
        self.deliveries: dict[Pair, Delivery] = {}
        self.taken: dict[Pair, Taken] = {}
        self.bodies: dict[str, InboxEvent] = {}
        self.cursors: list[Cursor] = []
        self.notes: list[str] = []

    # What the gateway itself said

    def read_own(self, epoch: str) -> None:
        for row in self._rows(list(manifests(self._lake, self._node_id, epoch))):
            if row.kind in _MAIL:
                self._sent(row)
                if self._node_id in row.to_nodes:
                    self.bodies[row.event_id] = self._inbox_event(row, self._node_id, epoch)
            if row.kind == Kind.REPLY and row.ref_event_id is not None:
                self._settled((row.ref_event_id, row.source_agent), Outcome.PROCESSED, row.created_us)
                self._heard(row, self._node_id)
            elif row.kind == Kind.ACK and row.ref_event_id is not None and row.acked_by_agent is not None:
                self._acked(row, (row.ref_event_id, row.acked_by_agent))
                self._heard(row, self._node_id)
            elif row.kind == Kind.DEAD_LETTER and row.ref_event_id is not None:
                self._dead(row, (row.ref_event_id, row.dead_for_agent or ""))

    def _sent(self, row: _Row) -> None:
        for agent_id, node_id in zip(row.to_agents, row.to_nodes, strict=True):
            before = self.deliveries.get((row.event_id, agent_id))
            if before is None:
                self.deliveries[row.event_id, agent_id] = Delivery(
                    event_id=EventId(row.event_id),
                    to_agent_id=agent_id,
                    corr_id=row.corr_id,
                    from_agent_id=row.source_agent,
                    to_node_id=node_id or None,
                    route_decision=row.route_decision or "",
                    seq=row.seq,
                    attempts=row.attempt,
                    due_at_ms=self._now_ms + round(self._policy.accepted_ack_timeout_seconds * 1000),
                    emitted_at_ms=row.created_us // 1000,
                )
            else:
                self.deliveries[row.event_id, agent_id] = replace(
                    before, seq=row.seq, attempts=row.attempt, to_node_id=node_id or before.to_node_id
                )

    def _acked(self, row: _Row, pair: Pair) -> None:
        at_us = row.acked_us or row.created_us
        if row.ack_type == AckType.ACCEPTED:
            self.taken.setdefault(pair, Taken(at_us // 1000))
        elif row.ack_type == AckType.PROCESSED:
            self._settled(pair, Outcome.PROCESSED, at_us)
        else:
            self._settled(pair, Outcome.EXPIRED if row.reason == "expired" else Outcome.FAILED_TERMINAL, at_us)

    def _settled(self, pair: Pair, outcome: Outcome, at_us: int) -> None:
        taken = self.taken.setdefault(pair, Taken(at_us // 1000))
        taken.settled_at_ms, taken.outcome = at_us // 1000, outcome

    def _dead(self, row: _Row, pair: Pair) -> None:
        delivery = self.deliveries.get(pair)
        if delivery is not None and delivery.state in UNACCEPTED:
            self.deliveries[pair] = replace(
                delivery,
                state=DeliveryState.DEAD_LETTER,
                attempts=row.dead_attempts or delivery.attempts,
                due_at_ms=None,
                closed_at_ms=(row.ended_us or row.created_us) // 1000,
                reason=row.reason,
            )

    # What others said

    def read_other(self, other: str) -> None:
        for epoch in epochs_of(self._lake, other):
            segments = list(manifests(self._lake, other, epoch))
            chain, read_through = CHAIN_START, 0
            is_reading = True
            try:
                for row in self._rows(segments):
                    self._heard(row, other)
                    if self._node_id in row.to_nodes and row.kind in _MAIL:
                        self.bodies[row.event_id] = self._inbox_event(row, other, epoch)
                    is_for_us = self._node_id in addressed_to(row.body)
                    if is_for_us and self._lost_at_us is not None and row.created_us > self._lost_at_us:
                        is_reading = False
                    if is_reading:
                        chain = next_chain(chain, row.body) if is_for_us else chain
                        read_through = row.seq
            except Refusal as refusal:
                self.notes.append(f"the outbox of {other} was read up to {read_through}: {refusal.message}")
            is_whole = contiguous(self._lake, other, epoch)[0].first_seq == 1
            if not is_whole:
                self.notes.append(f"the lake has not all of the outbox of {other}: it is read from its start again")
            elif read_through and epoch == epochs_of(self._lake, other)[-1]:
                self.cursors.append(
                    Cursor(
                        source_node_id=other,
                        epoch=epoch,
                        last_seq=read_through,
                        last_chain=chain,
                        updated_at_ms=self._now_ms,
                    )
                )

    def _heard(self, row: _Row, source: str) -> None:
        """Move a delivery by what the gateway of its recipient says."""
        if row.kind == Kind.ACK and row.acked_by_node == source and row.ack_type in _SIGNALS:
            pair, signal = (row.ref_event_id or "", row.acked_by_agent or ""), _SIGNALS[row.ack_type]
        elif row.kind == Kind.REPLY:
            pair, signal = (row.ref_event_id or "", row.source_agent), DeliverySignal.REPLY
        else:
            return
        delivery = self.deliveries.get(pair)
        if delivery is None or delivery.to_node_id not in (None, source):
            return
        at_ms = (row.acked_us or row.created_us) // 1000
        due_at_ms = at_ms + self._policy.processed_sla_seconds * 1000 if row.eta_us is None else row.eta_us // 1000
        self.deliveries[pair] = advance(
            delivery,
            Change(
                event_id=delivery.event_id,
                to_agent_id=delivery.to_agent_id,
                signal=signal,
                at_ms=at_ms,
                due_at_ms=due_at_ms + self._policy.processed_sla_grace_seconds * 1000,
                answered_by_event_id=EventId(row.event_id) if row.kind == Kind.REPLY else None,
                reason=row.reason if row.kind == Kind.ACK else None,
            ),
        )

    def _inbox_event(self, row: _Row, source: str, epoch: str) -> InboxEvent:
        return InboxEvent(
            seq=0,
            event_id=row.event_id,
            source_node_id=source,
            source_epoch=epoch,
            source_seq=row.seq,
            received_at_ms=self._now_ms,
            raw=row.body,
            corr_id=row.corr_id,
        )

    def _rows(self, segments: Sequence[SegmentManifest]) -> Iterator[_Row]:
        for row in rows(self._lake, segments, _COLUMNS):
            yield _Row(*row)
