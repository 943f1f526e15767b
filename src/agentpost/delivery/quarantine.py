"""Events of other gateways that could not be read (ENV-6): listed, shown, told, and read anew after an upgrade.

The store keeps them with the cursor that passed them. They get no ACK, so their sender sends them again, and in the end
has a dead letter. Nothing here trusts what they say.
"""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from agentpost.protocol.codec import Unreadable
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.store.interface import Store
from agentpost.store.values import Incident, QuarantinedEvent, QuarantineSource
from agentpost.world import Clock

__all__ = ["Quarantine", "QuarantinedView", "incidents_about"]

_log = logging.getLogger(__name__)

_PAGE: Final = 64
# What is shown of bytes that are no event: enough to see what they are.
_SHOWN_BYTES: Final = 4_096
_KINDS: Final = (IncidentKind.UNKNOWN_EVENT_KIND, IncidentKind.MALFORMED_EVENTS)


class QuarantinedView(Struct, frozen=True, kw_only=True):
    """One event with what can be made out: its fields, or else how its bytes begin, in base64."""

    event: QuarantinedEvent
    fields: dict[str, Any] | None
    begins: str | None


def incidents_about(source_node_id: str, unreadable: Sequence[Unreadable], *, at_ms: int) -> tuple[Incident, ...]:
    """What a batch with such events is told as: one incident for each kind of trouble."""
    first: dict[IncidentKind, Unreadable] = {}
    for bad in unreadable:
        first.setdefault(_kind_of(bad.refusal.code.value), bad)
    return tuple(
        Incident(
            kind=kind,
            subject=source_node_id,
            at_ms=at_ms,
            detail={
                "eventId": bad.event_id,
                "seq": bad.seq,
                "code": bad.refusal.code.value,
                "reason": bad.refusal.message,
            },
        )
        for kind, bad in first.items()
    )


class Quarantine:
    """`take_again` takes an event if this version can read it."""

    def __init__(
        self, *, store: Store, clock: Clock, take_again: Callable[[QuarantinedEvent, bytes], Awaitable[bool]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._take_again = take_again

    def list(
        self, *, source_node_id: str | None = None, after_id: int = 0, limit: int = 50
    ) -> "list[QuarantinedEvent]":
        """In the order in which they came."""
        return self._store.quarantined(source_node_id=source_node_id, after_id=after_id, limit=limit)

    def sources(self) -> "list[QuarantineSource]":
        return self._store.quarantine_sources()

    def show(self, quarantine_id: int) -> QuarantinedView:
        found = self._store.quarantined(after_id=quarantine_id - 1, limit=1)
        body = self._store.quarantined_body(quarantine_id)
        if body is None or not found or found[0].id != quarantine_id:
            raise Refusal(
                Code.NOT_FOUND,
                f"there is no event {quarantine_id} in the quarantine",
                field="id",
                hint="See `agentpost quarantine list`.",
            )
        fields = _fields_of(body)
        begins = None if fields is not None else base64.b64encode(body[:_SHOWN_BYTES]).decode("ascii")
        return QuarantinedView(event=found[0], fields=fields, begins=begins)

    async def read_anew(self) -> int:
        """Take what this version can read; gives how many. Afterwards incidents about nothing are closed."""
        taken, after_id = 0, 0
        while page := self._store.quarantined(after_id=after_id, limit=_PAGE):
            after_id = page[-1].id
            for event in page:
                body = self._store.quarantined_body(event.id)
                try:
                    taken += body is not None and await self._take_again(event, body)
                except Refusal as refusal:
                    _log.error("event %d of the quarantine could not be taken: %s", event.id, refusal.message)
                # Mail goes first.
                await asyncio.sleep(0)
        if taken:
            _log.info("%d events of the quarantine can be read by this version and were taken", taken)
        await self.close_incidents()
        return taken

    async def close_incidents(self) -> None:
        """Close the incidents of sources that have nothing of their kind in the quarantine any more."""
        is_open = {kind: self._store.open_incidents_of(kind) for kind in _KINDS}
        if not any(is_open.values()):
            return
        left = {(_kind_of(each.code), each.source_node_id) for each in self._all()}
        for kind, incidents in is_open.items():
            for incident in incidents:
                if (kind, incident.subject) not in left:
                    await self._store.close_incident(kind, incident.subject, at_ms=self._clock.now_ms())

    def _all(self) -> "list[QuarantinedEvent]":
        found: list[QuarantinedEvent] = []
        while page := self._store.quarantined(after_id=found[-1].id if found else 0, limit=1_000):
            found += page
        return found


def _kind_of(code: str) -> IncidentKind:
    is_newer = code == Code.UNKNOWN_KIND.value
    return IncidentKind.UNKNOWN_EVENT_KIND if is_newer else IncidentKind.MALFORMED_EVENTS


def _fields_of(body: bytes) -> dict[str, Any] | None:
    """The fields of an event as plain values, if that is what the bytes are."""
    try:
        found = msgspec.msgpack.decode(body)
        if not isinstance(found, Mapping):
            return None
        # Bytes become base64; what JSON cannot say is shown as bytes.
        return msgspec.json.decode(msgspec.json.encode(cast(dict[str, Any], found)), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
        return None
