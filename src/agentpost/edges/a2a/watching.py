"""Waiting for what becomes of a task: until it moved, the peer's session ends, or the gateway stops."""

import asyncio
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from agentpost.delivery.ports import Wakeups
from agentpost.edges.a2a.reading import Told
from agentpost.edges.a2a.states import ENDS, INTERRUPTIONS
from agentpost.protocol.ids import TaskId
from agentpost.tasks import TaskOwner

__all__ = ["LONGEST_WAIT_SECONDS", "TaskWatch", "is_settled"]

# However long a peer is willing to wait: a connection that says nothing for longer is cut by somebody on the way.
LONGEST_WAIT_SECONDS: Final = 300.0


def is_settled(told: Told) -> bool:
    """Whether it is the peer's turn, or nobody's: what a stream ends with."""
    return told.state in ENDS or told.state in INTERRUPTIONS


class TaskWatch:
    """Tells whoever waits for a task, or for mail of a peer. Nothing is polled."""

    def __init__(self, wakeups: Wakeups, *, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        wakeups.listen(tasks=self._moved, inbox=self.wake)

    @contextmanager
    def of(self, task_id: TaskId, peer_id: str) -> Generator[asyncio.Event]:
        """An event that is set when something was said about the task, or to the peer. Who looks clears it first."""
        woken = asyncio.Event()
        for name in (task_id, peer_id):
            self._waiting[name].add(woken)
        try:
            yield woken
        finally:
            for name in (task_id, peer_id):
                self._waiting[name].discard(woken)
                if not self._waiting[name]:
                    del self._waiting[name]

    async def first(self, woken: asyncio.Event, ended: asyncio.Event, *, seconds: float) -> bool:
        """Whether it was woken, and not cut: by the end of the session, of the gateway, or of the time."""
        tasks = TaskOwner("a2a")
        events = {"move": woken, "session": ended, "gateway": self._stopping}
        waits = [tasks.spawn(event.wait(), name=f"wait for {name}") for name, event in events.items()]
        try:
            await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.close()
        return woken.is_set() and not ended.is_set() and not self._stopping.is_set()

    def wake(self, name: str) -> None:
        for woken in self._waiting.get(name, ()):
            woken.set()

    def _moved(self, task_ids: Sequence[TaskId]) -> None:
        for task_id in task_ids:
            self.wake(task_id)
