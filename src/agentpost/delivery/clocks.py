"""Notices clocks that are wrong: this gateway's own, or that of a peer (an expiry, an ETA and a deadline go by them).

Every heartbeat says what time it is at its node. A clock that is more than 30 s off is an incident (`clock_off`) that
names the node and by how much, and that closes when the clock is right again. With three or more nodes the clock in the
middle counts as right; with two, each can only say that the other's differs from its own.
"""

import asyncio
import logging
from collections.abc import Mapping
from statistics import median_low
from typing import Final

from agentpost.delivery.ports import RoomView
from agentpost.protocol.errors import Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.store.interface import Store
from agentpost.store.values import Incident
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["CLOCK_OFF", "ClockCheck", "clocks_off"]

_log = logging.getLogger(__name__)

CLOCK_OFF: Final = IncidentKind.CLOCK_OFF
MOST_OFF_MS: Final = 30_000
_LOOK_EVERY_SECONDS: Final = 10.0
_PAGE: Final = 256
_FEWEST_FOR_A_MAJORITY: Final = 3


def clocks_off(ahead_ms: Mapping[str, int], own_node_id: str) -> dict[str, int]:
    """The nodes whose clocks are wrong, each with by how much: positive is ahead, negative behind.

    `ahead_ms` says of each peer by how much its clock is ahead of the own one.
    """
    clocks = {**ahead_ms, own_node_id: 0}
    right_ms = median_low(clocks.values()) if len(clocks) >= _FEWEST_FOR_A_MAJORITY else 0
    return {node_id: each - right_ms for node_id, each in clocks.items() if abs(each - right_ms) > MOST_OFF_MS}


class ClockCheck:
    """`start` it once. `look` is what it does every ten seconds."""

    def __init__(self, *, store: Store, room: RoomView, clock: Clock) -> None:
        self._store = store
        self._room = room
        self._clock = clock
        self._tasks = TaskOwner("clocks")
        # What open incidents say, in milliseconds by node; None until they were read.
        self._told: dict[str, int] | None = None

    def start(self) -> None:
        self._tasks.spawn(self._run(), name="heartbeats")

    async def close(self) -> None:
        await self._tasks.close()

    async def look(self) -> None:
        """Raise what is news, and close what is over."""
        own, ahead_ms = self._store.node_id, self._room.clocks_ahead_ms()
        if self._told is None:
            self._told = self._open_incidents()
        off = clocks_off(ahead_ms, own)
        for node_id, off_ms in off.items():
            told_ms = self._told.get(node_id)
            if told_ms is None or abs(off_ms - told_ms) > MOST_OFF_MS:
                await self._close(node_id)
                await self._raise(node_id, off_ms)
                self._told[node_id] = off_ms
        known = {own, *ahead_ms} if ahead_ms else set[str]()
        gone = self._told.keys() - self._room.snapshot().nodes.keys()
        # Of a node that is not heard at the moment nobody knows whether its clock was set right.
        for node_id in (self._told.keys() & known - off.keys()) | gone:
            await self._close(node_id)
            del self._told[node_id]

    async def _raise(self, node_id: str, off_ms: int) -> None:
        await self._store.raise_incident(
            Incident(
                kind=CLOCK_OFF,
                subject=node_id,
                at_ms=self._clock.now_ms(),
                detail={
                    "nodeId": node_id,
                    "aheadSeconds": round(off_ms / 1000),
                    "isOwn": node_id == self._store.node_id,
                },
            )
        )

    async def _close(self, node_id: str) -> None:
        await self._store.close_incident(CLOCK_OFF, node_id, at_ms=self._clock.now_ms())

    def _open_incidents(self) -> dict[str, int]:
        told: dict[str, int] = {}
        after = 0
        while page := self._store.incidents(after_id=after, limit=_PAGE):
            after = page[-1].id
            for incident in page:
                seconds = incident.detail.get("aheadSeconds")
                if incident.kind == CLOCK_OFF and isinstance(seconds, int):
                    told[incident.subject] = seconds * 1000
        return told

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Refusal as refusal:
                _log.warning("the clocks could not be compared: %s", refusal.message)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
