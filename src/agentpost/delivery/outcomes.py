"""Waiting for what becomes of an event: for whoever asks and wants the answer, and for those who watch."""

import asyncio
from collections.abc import Sequence
from typing import Final

from agentpost.delivery.ports import Wakeups
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal
from agentpost.store.interface import Store

__all__ = ["Outcomes"]

_NOT_THE_END: Final = frozenset({DeliverySignal.ACCEPTED, DeliverySignal.ACK_TIMEOUT, DeliverySignal.RESENT})


class Outcomes:
    """Tells callers when the deliveries of their event have ended. Nothing is polled."""

    def __init__(self, *, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._waiting: dict[EventId, list[asyncio.Future[None]]] = {}
        wakeups.listen(moved=self._moved)

    async def ended(self, event_id: EventId) -> list[Delivery]:
        """The deliveries of an event of this gateway, once all of them have ended."""
        while True:
            # Before the look at the store, so that nothing can happen in between.
            moved = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(event_id, [])
            waiting.append(moved)
            try:
                found = self._store.deliveries_of(event_id)
                if not found:
                    raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} was not sent from here", field="eventId")
                if all(delivery.state in DELIVERY.terminal for delivery in found):
                    return found
                await moved
            finally:
                self._forget(event_id, moved)

    def _forget(self, event_id: EventId, moved: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(event_id)
        if waiting is not None and moved in waiting:
            waiting.remove(moved)
            if not waiting:
                del self._waiting[event_id]

    def _moved(self, changes: Sequence[Change]) -> None:
        if not self._waiting:
            return
        for change in changes:
            if change.signal in _NOT_THE_END:
                continue
            for moved in self._waiting.pop(change.event_id, ()):
                if not moved.done():
                    moved.set_result(None)
