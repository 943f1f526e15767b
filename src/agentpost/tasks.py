"""Background tasks with an owner and a name. A bare `create_task` is banned: its failure would go unheard."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["TaskOwner"]

_log = logging.getLogger(__name__)


class TaskOwner:
    """Holds the tasks of one component: starts them, reports those that fail, ends the rest with itself."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> "asyncio.Task[Any]":
        """Run `work` beside everything else, under a name that shows up in logs and debuggers."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed: %s", task.get_name(), error, exc_info=error)

    async def finish(self) -> None:
        """Wait until all that runs has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel what still runs and wait until all of it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
