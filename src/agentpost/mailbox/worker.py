"""Work on a mailbox file, in transactions: by a thread of its own, or in the thread of whoever asks.

Other processes write the same file: each transaction takes its turn. Unlike a gateway's writer nothing here keeps
anything of the file in mind from one transaction to the next.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import ConstraintViolated, Database

__all__ = ["Blocking", "Worker", "WorkerThread"]

T = TypeVar("T")

_MOST_TOGETHER: Final = 256


class Worker(Protocol):
    def submit(self, work: Callable[[], T], *, must_last: bool = True) -> "asyncio.Future[T]":
        """Run `work` in a transaction. The future is done when that is durable.

        What need not last does not wait for the disk: with the power it may be gone, as if it had never been done.
        """
        ...

    def stop(self) -> None:
        """Finish what is waiting, and take no more. Blocks until it has."""
        ...


class _Job(Struct, eq=False):
    future: "asyncio.Future[Any]"
    work: Callable[[], Any]
    must_last: bool
    result: Any = None
    error: Exception | None = None


class WorkerThread:
    """Runs work in a thread. Whoever waits while it commits shares the next commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="agentpost-mailbox", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], *, must_last: bool = True) -> "asyncio.Future[T]":
        future = _new_future(self._stopped)
        self._waiting.put(_Job(future, work, must_last))
        return future

    def stop(self) -> None:
        self._stopped = True
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        more = True
        while more:
            jobs, more = self._take()
            if jobs:
                _do(self._database, jobs)
                # A closed loop has nobody who waits any more, and what was written stays written.
                with contextlib.suppress(RuntimeError):
                    jobs[0].future.get_loop().call_soon_threadsafe(_answer, jobs)

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


class Blocking:
    """Runs work at once, in the caller's thread: its event loop stands still for as long as that takes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopped = False

    def submit(self, work: Callable[[], T], *, must_last: bool = True) -> "asyncio.Future[T]":
        future = _new_future(self._stopped)
        jobs = [_Job(future, work, must_last)]
        _do(self._database, jobs)
        _answer(jobs)
        return future

    def stop(self) -> None:
        self._stopped = True


def _new_future(is_stopped: bool) -> "asyncio.Future[Any]":
    if is_stopped:
        raise Refusal(Code.UNAVAILABLE, "the mailbox is closed")
    return asyncio.get_running_loop().create_future()


def _do(database: Database, jobs: list[_Job]) -> None:
    """Give each job its result or its error."""
    if not _try_together(database, jobs):
        for job in jobs:
            _try_together(database, [job])


def _try_together(database: Database, jobs: list[_Job]) -> bool:
    """Whether each job has its answer. A job that fails after it wrote spoils the transaction for all."""
    try:
        database.sync_commits(any(job.must_last for job in jobs))
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
    for job in jobs:
        if job.future.done():
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
