"""Work on a mailbox file, in transactions: by a thread of its own, or in the thread of whoever asks.

Other processes write the same file: each transaction takes its turn. Unlike a gateway's writer nothing here trusts what
it knew of the file in an earlier transaction.
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
    async def run(
        self,
        work: Callable[[], T],
        *,
        must_last: bool = True,
        begins: bool = True,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Run `work` in a transaction, and come back when that is durable.

        What need not last does not wait for the disk: with the power it may be gone, as if it had never been done.
        `begins=False` is for work that is one statement, or begins by itself if there is no transaction yet.
        `undo` is done with a result that nobody hears, because who asked for it was cancelled.
        """
        ...

    def stop(self) -> None:
        """Finish what is waiting, and take no more. Blocks until it has."""
        ...


class _Job(Struct, eq=False):
    future: "asyncio.Future[Any]"
    work: Callable[[], Any]
    must_last: bool
    begins: bool
    undo: Callable[[Any], None] | None = None
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

    async def run(
        self,
        work: Callable[[], T],
        *,
        must_last: bool = True,
        begins: bool = True,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        if self._stopped:
            raise _closed()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = _Job(future, work, must_last, begins, undo)
        self._waiting.put(job)
        try:
            return await future
        except asyncio.CancelledError:
            # A future that is cancelled itself has its answer to come.
            if not future.cancelled():
                self._undo(job)
            raise

    def _undo(self, job: _Job) -> None:
        undo, result = job.undo, job.result
        if undo is not None and job.error is None and not self._stopped:
            nobody: asyncio.Future[None] = job.future.get_loop().create_future()
            nobody.cancel()
            self._waiting.put(_Job(nobody, lambda: undo(result), False, True))

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
                    jobs[0].future.get_loop().call_soon_threadsafe(self._answer, jobs)

    def _answer(self, jobs: list[_Job]) -> None:
        for job in jobs:
            if job.future.done():
                self._undo(job)
            elif job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)

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

    async def run(
        self,
        work: Callable[[], T],
        *,
        must_last: bool = True,
        begins: bool = True,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        # Nobody is cancelled while this runs: whoever asked hears the result.
        if self._stopped:
            raise _closed()
        return _run_alone(self._database, work, must_last, begins)

    def stop(self) -> None:
        self._stopped = True


def _closed() -> Refusal:
    return Refusal(Code.UNAVAILABLE, "the mailbox is closed")


def _do(database: Database, jobs: list[_Job]) -> None:
    """Give each job its result or its error."""
    if len(jobs) > 1 and _try_together(database, jobs):
        return
    for job in jobs:
        job.result, job.error = None, None
        try:
            job.result = _run_alone(database, job.work, job.must_last, job.begins)
        except Exception as error:  # noqa: BLE001 - callers are told; a thread that ended would leave them waiting
            job.error = error


def _try_together(database: Database, jobs: list[_Job]) -> bool:
    """Whether each job has its answer. A job that fails after it wrote spoils the transaction for all."""
    try:
        database.sync_commits(any(job.must_last for job in jobs))
        database.begin()
        for job in jobs:
            before = database.changed_rows()
            try:
                job.result = job.work()
            except Refusal as refusal:
                job.error = refusal
                if database.changed_rows() != before:
                    raise
        database.commit()
    except Exception:  # noqa: BLE001 - whose fault it was shows when each runs alone
        with contextlib.suppress(Exception):
            database.rollback()
        return False
    return True


def _run_alone(database: Database, work: Callable[[], T], must_last: bool, begins: bool) -> T:
    try:
        database.sync_commits(must_last)
        if begins:
            database.begin()
        result = work()
        database.commit()
    except Exception as error:
        with contextlib.suppress(Exception):
            database.rollback()
        if isinstance(error, ConstraintViolated):
            raise Refusal(Code.CONFLICT, str(error)) from None
        raise
    return result
