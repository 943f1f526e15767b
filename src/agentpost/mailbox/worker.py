"""The thread that works on a mailbox file. Whoever waits while it commits shares the next commit.

Other processes write the same file: each transaction takes its turn. Unlike a gateway's writer it keeps nothing of
the file in mind from one transaction to the next.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import ConstraintViolated, Database

__all__ = ["Worker"]

T = TypeVar("T")

_MOST_TOGETHER: Final = 256


class _Job(Struct, eq=False):
    future: "asyncio.Future[Any]"
    work: Callable[[], Any]
    result: Any = None
    error: Exception | None = None


class Worker:
    """Runs work in transactions, until it is stopped. Belongs to the event loop of its callers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="agentpost-mailbox", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run `work` in the next transaction. The future is done when that is durable."""
        if self._stopped:
            raise Refusal(Code.UNAVAILABLE, "the mailbox is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put(_Job(future, work))
        return future

    def stop(self) -> None:
        """Finish what is waiting, then end the thread. Blocks until it has."""
        self._stopped = True
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        more = True
        while more:
            jobs, more = self._take()
            if jobs:
                if not self._try_together(jobs):
                    for job in jobs:
                        self._try_together([job])
                _answer(jobs)

    def _take(self) -> tuple[list[_Job], bool]:
        jobs: list[_Job] = []
        job = self._waiting.get()
        with contextlib.suppress(Empty):
            while job is not None:
                jobs.append(job)
                if len(jobs) == _MOST_TOGETHER:
                    return jobs, True
                job = self._waiting.get_nowait()
            return jobs, False
        return jobs, True

    def _try_together(self, jobs: list[_Job]) -> bool:
        """Whether each job has its answer. A job that fails after it wrote spoils the transaction for all."""
        database = self._database
        try:
            database.begin()
            for job in jobs:
                job.result, job.error = None, None
                before = database.changed_rows()
                try:
                    job.result = job.work()
                except Refusal as refusal:
                    job.error = refusal
                    if database.changed_rows() != before:
                        raise
            database.commit()
        except Exception as error:  # noqa: BLE001 - callers are told; a thread that ended would leave them waiting
            with contextlib.suppress(Exception):
                database.rollback()
            if len(jobs) > 1:
                return False
            told = Refusal(Code.CONFLICT, str(error)) if isinstance(error, ConstraintViolated) else error
            jobs[0].error = jobs[0].error or told
        return True


def _answer(jobs: list[_Job]) -> None:
    # A closed loop has nobody who waits any more, and what was written stays written.
    with contextlib.suppress(RuntimeError):
        jobs[0].future.get_loop().call_soon_threadsafe(_resolve, jobs)


def _resolve(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
