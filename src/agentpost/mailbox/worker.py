"""Work on a mailbox file, in transactions: by a thread of its own, or in the thread of whoever asks.

Other processes write the same file: each transaction takes its turn. Unlike a gateway's writer nothing here trusts what
it knew of the file in an earlier transaction.

After a failed write or sync a worker refuses everything for good, as a gateway's writer does: the kernel may have
dropped what it could not write, commits that did not wait for the disk among it, and a later sync would report success.
The next one to open the file first writes its log anew (`Database.renew_log`).
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import ConstraintViolated, Database
from agentpost.store.jobs import FATAL

__all__ = ["Blocking", "Worker", "WorkerThread"]

T = TypeVar("T")

_MOST_TOGETHER: Final = 256
_CHECKPOINT_AT_PAGES: Final = 2_000
_COMMITS_A_LOOK_AT_THE_LOG: Final = 32

_log = logging.getLogger(__name__)


class Worker(Protocol):
    @property
    def failure(self) -> Refusal | None:
        """Why the worker refuses everything, if the disk has failed."""
        ...

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


class _Committer:
    """Runs jobs in transactions, and looks after the log, until the disk fails.

    SQLite's own checkpoints hide what a disk does wrong, so they are made here.
    """

    def __init__(self, database: Database, on_failure: Callable[[Refusal], None] | None) -> None:
        self._database = database
        self._on_failure = on_failure
        self.failure: Refusal | None = None
        # A process that makes a single commit looks as well.
        self._commits_since_look = _COMMITS_A_LOOK_AT_THE_LOG

    def run(self, jobs: list[_Job]) -> None:
        """Give each job its result or its error."""
        if len(jobs) > 1 and self.failure is None and self._try_together(jobs):
            return
        for job in jobs:
            job.result, job.error = None, None
            try:
                job.result = self.run_alone(job.work, job.must_last, job.begins)
            except Exception as error:  # noqa: BLE001 - callers are told; a thread that ended would leave them waiting
                job.error = error

    def _try_together(self, jobs: list[_Job]) -> bool:
        """Whether each job has its answer. A job that fails after it wrote spoils the transaction for all."""
        database = self._database
        try:
            database.sync_commits(any(job.must_last for job in jobs))
            database.begin()
            for job in jobs:
                before = database.changed_rows()
                try:
                    job.result = job.work()
                except Refusal as refusal:
                    job.error = refusal
                    if refusal.code in FATAL or database.changed_rows() != before:
                        raise
            database.commit()
        except Exception as error:  # noqa: BLE001 - whose fault it was shows when each runs alone
            self._undo(error)
            return False
        return True

    def run_alone(self, work: Callable[[], T], must_last: bool, begins: bool) -> T:
        if self.failure is not None:
            # Anew for each: an exception keeps the frames of everyone who was handed it.
            raise Refusal(self.failure.code, self.failure.message, hint=self.failure.hint)
        try:
            self._database.sync_commits(must_last)
            if begins:
                self._database.begin()
            result = work()
            self._database.commit()
        except Exception as error:
            self._undo(error)
            if isinstance(error, ConstraintViolated):
                raise Refusal(Code.CONFLICT, str(error)) from None
            raise
        return result

    def _undo(self, error: Exception) -> None:
        self._stop_after(error)
        try:
            self._database.rollback()
        except Exception as failed:  # noqa: BLE001 - the first error is the one to tell
            self._stop_after(failed)

    def look_at_log(self) -> None:
        """Move the log into the file if it is long."""
        self._commits_since_look += 1
        if self._commits_since_look >= _COMMITS_A_LOOK_AT_THE_LOG and self.failure is None:
            self._commits_since_look = 0
            try:
                if self._database.log_pages() >= _CHECKPOINT_AT_PAGES:
                    self._database.checkpoint()
            except Refusal as refusal:
                # A full disk leaves the log as it is, and the log is enough; so does a process that is at it already.
                self._stop_after(refusal)

    def _stop_after(self, error: Exception) -> None:
        if self.failure is None and isinstance(error, Refusal) and error.code in FATAL:
            self.failure = Refusal(error.code, error.message, hint="Check the disk, then open the mailbox again.")
            if self._on_failure is not None:
                try:
                    self._on_failure(self.failure)
                except Exception:  # noqa: BLE001 - callers must get their answers, whatever becomes of the news
                    _log.exception("the news of a failed disk could not be passed on")


class WorkerThread:
    """Runs work in a thread. Whoever waits while it commits shares the next commit."""

    def __init__(self, database: Database, on_failure: Callable[[Refusal], None] | None = None) -> None:
        self._committer = _Committer(database, on_failure)
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="agentpost-mailbox", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> Refusal | None:
        return self._committer.failure

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
                self._committer.run(jobs)
                # Before the answer: what this thread does after it takes the interpreter from those who were answered.
                self._committer.look_at_log()
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

    def __init__(self, database: Database, on_failure: Callable[[Refusal], None] | None = None) -> None:
        self._committer = _Committer(database, on_failure)
        self._stopped = False

    @property
    def failure(self) -> Refusal | None:
        return self._committer.failure

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
        result = self._committer.run_alone(work, must_last, begins)
        self._committer.look_at_log()
        return result

    def stop(self) -> None:
        self._stopped = True


def _closed() -> Refusal:
    return Refusal(Code.UNAVAILABLE, "the mailbox is closed")
