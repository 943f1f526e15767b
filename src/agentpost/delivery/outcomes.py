"""Waiting for what becomes of an event: for whoever asks and wants the answer, and for those who watch."""

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from agentpost.delivery.ports import Wakeups
from agentpost.delivery.publish import Publisher, Receipt, SendRequest
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal
from agentpost.store.interface import Store

__all__ = ["Outcomes"]

_NOT_THE_END: Final = frozenset({DeliverySignal.ACCEPTED, DeliverySignal.ACK_TIMEOUT, DeliverySignal.RESENT})


class _Expected(Struct, kw_only=True):
    """One event that somebody waits for, since before it was sent."""

    ended: "asyncio.Future[tuple[Receipt, dict[str, Change]]]"
    missing: set[str] = set()
    last_words: dict[str, Change] = {}
    receipt: Receipt | None = None

    def sent(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self._look()

    def refused(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def heard(self, change: Change) -> None:
        # The first word that ends a delivery is the last one that counts, and nobody else was asked.
        if change.to_agent_id in self.missing:
            self.missing.remove(change.to_agent_id)
            self.last_words[change.to_agent_id] = change
            self._look()

    def _look(self) -> None:
        if self.receipt is not None and not self.missing and not self.ended.done():
            self.ended.set_result((self.receipt, self.last_words))


class Outcomes:
    """Tells callers when the deliveries of their event have ended. Nothing is polled."""

    def __init__(self, *, store: Store, publisher: Publisher, wakeups: Wakeups) -> None:
        self._store = store
        self._publisher = publisher
        self._expected: dict[EventId, _Expected] = {}
        self._waiting: dict[EventId, list[asyncio.Future[None]]] = {}
        self._is_released = False
        wakeups.listen(moved=self._moved, heard=self._heard)

    async def send(self, request: SendRequest) -> tuple[Receipt, dict[str, Change]]:
        """Send a message and wait until it has ended for all its recipients: the last word about each of them.

        Whoever gives up waiting has sent it all the same.
        """
        expected = _Expected(ended=asyncio.get_running_loop().create_future())
        posting = self._publisher.hand_in(request, expected)
        if posting is None:
            return await self._send_alone(request, expected)
        # Before the loop comes round, so before anybody else can hear of it.
        expected.missing.update(posting.placement.to_agents)
        self._expected[posting.event_id] = expected
        try:
            return await expected.ended
        finally:
            del self._expected[posting.event_id]

    async def _send_alone(self, request: SendRequest, expected: _Expected) -> tuple[Receipt, dict[str, Change]]:
        """The same for a message that is more than one event for agents that exist."""
        sent: list[EventId] = []

        def expect(event_id: EventId, to_agents: Sequence[str]) -> None:
            sent.append(event_id)
            expected.missing.update(to_agents)
            self._expected[event_id] = expected

        try:
            expected.sent(await self._publisher.send(request, before=expect))
            return await expected.ended
        finally:
            for event_id in sent:
                del self._expected[event_id]

    async def ended(self, event_id: EventId) -> list[Delivery]:
        """The deliveries of an event of this gateway, once all of them have ended, or the gateway stops."""
        while True:
            # Before the look at the store, so that nothing can happen in between.
            moved = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(event_id, [])
            waiting.append(moved)
            try:
                found = self._store.deliveries_of(event_id)
                if not found:
                    raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} was not sent from here", field="eventId")
                if self._is_released or all(delivery.state in DELIVERY.terminal for delivery in found):
                    return found
                await moved
            finally:
                self._forget(event_id, moved)

    def release(self) -> None:
        """Let everybody go who waits for the end of an event: the gateway stops."""
        self._is_released = True
        for event_id in tuple(self._waiting):
            self._wake(event_id)

    def _forget(self, event_id: EventId, moved: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(event_id)
        if waiting is not None and moved in waiting:
            waiting.remove(moved)
            if not waiting:
                del self._waiting[event_id]

    def _heard(self, changes: Sequence[Change]) -> None:
        if self._expected:
            for change in changes:
                expected = self._expected.get(change.event_id)
                if expected is not None and change.signal not in _NOT_THE_END:
                    expected.heard(change)

    def _moved(self, changes: Sequence[Change]) -> None:
        self._heard(changes)
        if self._waiting:
            for change in changes:
                if change.signal not in _NOT_THE_END:
                    self._wake(change.event_id)

    def _wake(self, event_id: EventId) -> None:
        for moved in self._waiting.pop(event_id, ()):
            if not moved.done():
                moved.set_result(None)
