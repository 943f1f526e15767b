"""Ends the mail and the tasks of agents that were taken away from this gateway, so that their senders hear it at once.

What was accepted before an agent was removed, and what arrives for it after that, ends as `no_route` (ROUTE-3): its
sender is told, and can send it to somebody else. What runs at that moment ends with its turn. An agent counts as
removed while the room says that this node took it out of the mesh: mail for one that was never here, or that lives
elsewhere by now, is not touched.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from agentpost.delivery.carrying import carried_out
from agentpost.delivery.deciding import NO_ROUTE
from agentpost.delivery.outbox import OutboxWriter
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.delivery.task_moves import TaskMoves
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.taskbook import TaskRecord
from agentpost.store.interface import Store
from agentpost.store.values import BacklogItem, Incident
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["RemovedAgents"]

_log = logging.getLogger(__name__)

_PAGE: Final = 256
_AGAIN_SECONDS: Final = 1.0


class GivesUp(Protocol):
    """As much of the turns as this needs."""

    def give_up(self, event: Event, agent_id: str, *, reason: str, error: str) -> Awaitable[bool]: ...


class RemovedAgents:
    """`is_busy_with` says of an event and an agent whether a turn with it is running."""

    def __init__(
        self,
        *,
        store: Store,
        room: RoomView,
        turns: GivesUp,
        moves: TaskMoves,
        clock: Clock,
        wakeups: Wakeups,
        is_busy_with: Callable[[EventId, str], bool],
    ) -> None:
        self._store = store
        self._room = room
        self._turns = turns
        self._moves = moves
        self._clock = clock
        self._outbox = OutboxWriter(store, wakeups)
        self._is_busy_with = is_busy_with
        self._tasks = TaskOwner("removed agents")
        self._to_end: set[str] = set()
        self._wake = asyncio.Event()
        wakeups.listen(inbox=self._inbox_grew, tasks=self._tasks_moved)

    def start(self) -> None:
        """Begin with what a stop of this gateway has left."""
        held = [each.accepted_by_agent_id for each in self._open_tasks() if each.accepted_by_agent_id is not None]
        self._note(*self._store.waiting_agents(), *held)
        self._tasks.spawn(self._run(), name="mail")

    async def close(self) -> None:
        await self._tasks.close()

    def is_removed(self, agent_id: str) -> bool:
        """Whether this node has taken the agent out of the mesh, and nobody has added it again."""
        # Asked with every mail that comes.
        is_here = agent_id in self._store.local_agent_ids()
        return not is_here and self._room.withdrawn_by(agent_id) == self._store.node_id

    async def end(self, agent_id: str) -> int:
        """End all that the agent will never do, apart from what it is busy with. Gives how much that was."""
        return await carried_out(self._end(agent_id))

    async def _end(self, agent_id: str) -> int:
        ended, after = 0, 0
        while page := self._store.backlog(agent_id, after_inbox_seq=after, limit=_PAGE):
            after = page[-1].entry.inbox_seq
            free = [item for item in page if not self._is_busy_with(item.entry.event_id, agent_id)]
            if len(free) < len(page):
                self._note(agent_id)
            if free:
                await self._raise_incident(agent_id, free[0].entry.event_id)
            # One commit for all of them.
            ended += sum(await asyncio.gather(*(self._end_mail(item) for item in free)))
        for record in self._open_tasks():
            if record.is_held_by(agent_id, self._store.node_id):
                await self._raise_incident(agent_id, record.create_event_id)
                ended += await self._end_task(record, agent_id)
        return ended

    async def _end_mail(self, item: BacklogItem) -> bool:
        agent_id = item.entry.to_agent_id
        try:
            event = decode_event(item.raw)
        except Refusal as refusal:
            # A newer version wrote it: it stays until that one is back.
            _log.warning("%s cannot be read any more: %s", item.entry.event_id, refusal.message)
            return False
        return await self._turns.give_up(event, agent_id, reason=NO_ROUTE, error=self._why(agent_id))

    async def _end_task(self, record: TaskRecord, agent_id: str) -> bool:
        """TASK-7: who asked for a task hears that its worker is gone."""
        try:
            move = await self._moves.fail(record, agent_id, failure_class=NO_ROUTE, error_summary=self._why(agent_id))
            await self._outbox.append((move.event,), deliveries=(move.delivery,))
        except Refusal as refusal:
            # It ended meanwhile, or its requester is out of the mesh.
            _log.warning("task %s of %s could not be ended: %s", record.task_id, agent_id, refusal.message)
            return False
        return True

    def _why(self, agent_id: str) -> str:
        return f"{agent_id} was removed from {self._store.node_id}"

    async def _raise_incident(self, agent_id: str, event_id: EventId) -> None:
        # Before the end: a process that dies in between begins here again.
        await self._store.raise_incident(
            Incident(
                kind=NO_ROUTE,
                subject=agent_id,
                at_ms=self._clock.now_ms(),
                detail={"agentId": agent_id, "eventId": event_id, "removedFrom": self._store.node_id},
            )
        )

    def _open_tasks(self) -> list[TaskRecord]:
        """The tasks that agents of this gateway have, whether they are here or not."""
        held: list[TaskRecord] = []
        after = ""
        while page := self._store.tasks(after=after, limit=_PAGE, open_only=True):
            after = page[-1].task_id
            held += [record for record in page if record.accepted_by_node_id == self._store.node_id]
        return held

    # What comes for an agent that has gone

    def _inbox_grew(self, agent_id: str) -> None:
        self._note(agent_id)

    def _tasks_moved(self, task_ids: Sequence[TaskId]) -> None:
        # A claim may be won after its agent has gone.
        for task_id in task_ids:
            record = self._store.task(task_id)
            if record is not None and record.accepted_by_node_id == self._store.node_id:
                self._note(record.accepted_by_agent_id or "")

    def _note(self, *agent_ids: str) -> None:
        removed = {agent_id for agent_id in agent_ids if self.is_removed(agent_id)}
        if removed:
            self._to_end |= removed
            self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            agent_ids, self._to_end = self._to_end, set()
            for agent_id in agent_ids:
                try:
                    if self.is_removed(agent_id):
                        await self._end(agent_id)
                except Refusal as refusal:
                    _log.warning("what %s has left could not be ended: %s", agent_id, refusal.message)
                    self._note(agent_id)
            if self._to_end:
                # A turn is running, or the disk is full.
                await asyncio.sleep(_AGAIN_SECONDS)
