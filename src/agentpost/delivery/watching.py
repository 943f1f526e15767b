"""What happens at this gateway, as it happens: what it says, and what becomes of what it sent. No content.

For people and dashboards who look on. Whoever is too slow misses nothing of the outbox, which is read from where they
are; of the moves of deliveries they get the latest state.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from agentpost.delivery.ports import Wakeups
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Change
from agentpost.protocol.envelope import AckEvent, Event, ReplyEvent
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.recipients import recipients_of
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.world import Clock

__all__ = ["Happening", "Watchers"]


class Happening(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One line of `agentpost watch`. `what` is a kind of event, an `ack:…`, or the state of a delivery."""

    at: str
    what: str
    event_id: EventId
    corr_id: str
    from_agent_id: str | None = None
    to_agents: tuple[str, ...] = ()
    ref_event_id: EventId | None = None
    reason: str | None = None


class Watchers:
    """Everybody who looks on. Costs nothing while nobody does."""

    def __init__(self, *, store: Store, clock: Clock, wakeups: Wakeups) -> None:
        self._store = store
        self._clock = clock
        self._watching: set[_Watcher] = set()
        self.is_released = False
        wakeups.listen(outbox=self._outbox_grew, moved=self._moved)

    async def watch(self) -> AsyncIterator[Happening]:
        """From now on, until the caller has seen enough, or the gateway stops."""
        watcher = _Watcher()
        self._watching.add(watcher)
        after_seq = self._store.head().seq
        try:
            while not self.is_released:
                await watcher.woken.wait()
                watcher.woken.clear()
                while events := self._store.read_outbox(after_seq).events:
                    after_seq = events[-1].seq
                    for each in events:
                        if (happening := _of_event(each.raw)) is not None:
                            yield happening
                moved, watcher.moved = watcher.moved, {}
                for event_id in moved:
                    for happening in self._of_deliveries(event_id):
                        yield happening
        finally:
            self._watching.discard(watcher)

    def release(self) -> None:
        """Let everybody go who looks on: the gateway stops."""
        self.is_released = True
        for watcher in self._watching:
            watcher.woken.set()

    def _of_deliveries(self, event_id: EventId) -> list[Happening]:
        at = format_ms(self._clock.now_ms())
        return [
            Happening(
                at=at,
                what=delivery.state.value,
                event_id=event_id,
                corr_id=delivery.corr_id,
                from_agent_id=delivery.from_agent_id or None,
                to_agents=(delivery.to_agent_id,),
                reason=delivery.reason,
            )
            for delivery in self._store.deliveries_of(event_id)
        ]

    def _outbox_grew(self, _in_hurry: bool) -> None:
        for watcher in self._watching:
            watcher.woken.set()

    def _moved(self, changes: Sequence[Change]) -> None:
        for watcher in self._watching:
            watcher.moved.update(dict.fromkeys(change.event_id for change in changes))
            watcher.woken.set()


class _Watcher:
    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.moved: dict[EventId, None] = {}


def _of_event(raw: bytes) -> Happening | None:
    try:
        event = decode_event(raw)
    except Refusal:
        return None
    return Happening(
        at=event.created_at,
        what=_what(event),
        event_id=event.event_id,
        corr_id=event.corr_id,
        from_agent_id=event.source_agent_id,
        to_agents=recipients_of(event) or ((event.to_agent_id,) if event.to_agent_id else ()),
        ref_event_id=event.payload.ref_event_id if isinstance(event, AckEvent | ReplyEvent) else None,
        reason=event.payload.reason if isinstance(event, AckEvent) else None,
    )


def _what(event: Event) -> str:
    return f"ack:{event.payload.ack_type.value}" if isinstance(event, AckEvent) else event.kind.value
