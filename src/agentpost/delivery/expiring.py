"""Ends mail whose time ran out while nobody came for it (ENV-7), so that its sender hears of it then and not later.

Whoever is about to give mail to an agent looks at its time as well (`turns`). Here is what nobody is about to give: the
mail of agents that pull, are paused or have gone, and the far end of a long backlog. What an agent has stays with it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from agentpost.delivery.turns import Turns
from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId
from agentpost.store.interface import Store
from agentpost.store.values import BacklogItem
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["Expiring"]

_log = logging.getLogger(__name__)

# An expiry is a time of day, which may be set at any moment: it is looked at, not waited for.
_LOOK_EVERY_SECONDS: Final = 5.0
_PAGE: Final = 256


class Expiring:
    """`is_busy_with` says of an event and an agent whether somebody is about to give the one to the other."""

    def __init__(
        self, *, store: Store, turns: Turns, clock: Clock, is_busy_with: Callable[[EventId, str], bool]
    ) -> None:
        self._store = store
        self._turns = turns
        self._clock = clock
        self._is_busy_with = is_busy_with
        self._tasks = TaskOwner("expiring")

    def start(self) -> None:
        self._tasks.spawn(self._look_on(), name="mail")

    async def close(self) -> None:
        await self._tasks.close()

    async def look(self) -> int:
        """End what is over; gives how much."""
        ended = skipped = 0
        while True:
            # What has to stay for now stays in front, so the next page begins behind it.
            page = self._store.expired_mail(now_ms=self._clock.now_ms(), limit=_PAGE, skip=skipped)
            over = [item for item in page if not self._is_busy_with(item.entry.event_id, item.entry.to_agent_id)]
            # One commit for all of them.
            ended_now = sum(await asyncio.gather(*map(self._end, over)))
            ended += ended_now
            skipped += len(page) - ended_now
            if len(page) < _PAGE:
                return ended

    async def _end(self, item: BacklogItem) -> bool:
        entry = item.entry
        try:
            event = decode_event(item.raw)
        except Refusal as refusal:
            # A newer version wrote it: it stays until that one is back.
            _log.warning("%s cannot be read any more: %s", entry.event_id, refusal.message)
            return False
        return await self._turns.expire(event, entry.to_agent_id)

    async def _look_on(self) -> None:
        while True:
            try:
                await self.look()
            except Refusal as refusal:
                _log.warning("mail that expired could not be ended: %s", refusal.message)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
