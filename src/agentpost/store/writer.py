"""The one thread that writes. Whoever waits while it commits shares the next commit: one fsync for all of them.

A caller hands in a piece of work, a function of a `Transaction`, and awaits its result. The thread takes all that is
waiting, runs it in one transaction and answers everybody after the commit. Work that fails is taken out and the rest
runs again without it, so nobody pays for another's mistake. No delay is added: alone, a caller commits at once.

After a failed write or sync nothing is retried, since the kernel may have dropped what it could not write: the writer
stops for good, refuses everything, and says so once (`on_failure`). A full disk is different: the transaction is
undone, its callers are told, and the next one may succeed.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from msgspec import Struct

from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import ConstraintViolated, Database
from agentpost.store.tail import Grown
from agentpost.store.transaction import Transaction
from agentpost.store.values import Appended

__all__ = ["Writer"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")

# A crowd is split in two: while SQLite writes one half without Python, the callers of the other half run.
_SPLIT_ABOVE_JOBS: Final = 128
_CHECKPOINT_AT_PAGES: Final = 1000
_COMMITS_A_LOOK_AT_THE_LOG: Final = 8
_FATAL: Final = frozenset({Code.STORAGE_FAILED, Code.STORAGE_CORRUPT})
# After these SQLite may have ended the transaction by itself, with the work of the neighbours in it.
_SPOILS_ALL: Final = _FATAL | {Code.STORAGE_FULL}


# Does the same for many callers at once: an answer for each, which is a refusal for one that changed nothing.
Many = Callable[[Transaction, Sequence[Any]], Sequence[Any]]


class _Job(Struct, eq=False):
    """A piece of work, the future of whoever waits for it, and what came of it.

    An error's traceback leads back to its job, a cycle that only the garbage collector ends: so no `gc=False` here.
    """

    future: "asyncio.Future[Any]"
    # What is asked of `many`, which takes neighbours who ask the same together; without it, a function to call.
    asked: Any
    many: Many | None = None
    result: Any = None
    error: Exception | None = None


class Writer:
    """Owns the write connection from the moment it is started until it is stopped.

    Belongs to the event loop of its first caller, and to another one only after that is closed.
    """

    def __init__(
        self,
        database: Database,
        *,
        transaction: Transaction,
        on_failure: Callable[[Refusal], None] | None = None,
        on_grown: Callable[[Grown], None] | None = None,
    ) -> None:
        self._database = database
        self._transaction = transaction
        self._on_failure = on_failure
        self._on_grown = on_grown
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        self._failure: Refusal | None = None
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="agentpost-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> Refusal | None:
        """Why the writer gave up, if it did."""
        return self._failure

    def submit(self, work: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        """Run `work` in the next transaction. The future is done when that is durable."""
        return self._put(work, None)

    def append(self, events: Sequence[Event], deliveries: Sequence[Delivery]) -> "asyncio.Future[Appended]":
        """Append in the next transaction."""
        return self._put((events, deliveries), _append_many)

    def ask(self, many: Callable[[Transaction, Sequence[A]], Sequence[T | Refusal]], asked: A) -> "asyncio.Future[T]":
        """Have `many` do this in the next transaction, together with what others ask of it at the same time."""
        return self._put(asked, many)

    def _put(self, asked: Any, many: Many | None) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._callers_loop().create_future()
        self._waiting.put(_Job(future, asked, many))
        if self._stopped:
            # It may have come after the last look of the thread; whoever finds it in the queue answers.
            self._refuse_leftovers()
        return future

    def _callers_loop(self) -> asyncio.AbstractEventLoop:
        # Asking asyncio for the loop each time would cost as much as the rest of a submission.
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
        return self._loop

    def stop(self) -> None:
        """Finish what is waiting, then end the thread. Blocks until it has."""
        self._stopped = True
        self._waiting.put(None)
        self._thread.join()
        self._refuse_leftovers()

    def _refuse_leftovers(self) -> None:
        """Answer what nobody will do any more. While the thread lives, it is the one who answers."""
        if self._thread.is_alive():
            return
        leftovers: list[_Job] = []
        with contextlib.suppress(Empty):
            while True:
                job = self._waiting.get_nowait()
                if job is not None:
                    job.error = Refusal(Code.UNAVAILABLE, "the store is closed")
                    leftovers.append(job)
        self._answer(leftovers)

    def _run(self) -> None:
        more = True
        commits = 0
        while more:
            jobs, more = self._take()
            if jobs:
                if self._failure is None:
                    self._commit(jobs)
                else:
                    for job in jobs:
                        # Anew for each: an exception keeps the frames of everyone who was handed it.
                        job.error = Refusal(self._failure.code, self._failure.message)
                self._answer(jobs)
            commits += 1
            if self._failure is None and commits % _COMMITS_A_LOOK_AT_THE_LOG == 0:
                self._checkpoint_if_long()

    def _take(self) -> tuple[list[_Job], bool]:
        """What waits, at least one job and all but half of a crowd; False beside it when this was the last."""
        jobs: list[_Job] = []
        next_job = self._waiting.get_nowait
        job = self._waiting.get()
        most = max(_SPLIT_ABOVE_JOBS, self._waiting.qsize() // 2)
        try:
            while job is not None:
                jobs.append(job)
                if len(jobs) == most:
                    return jobs, True
                job = next_job()
        except Empty:
            return jobs, True
        return jobs, False

    def _commit(self, jobs: list[_Job]) -> None:
        """Run the jobs in one transaction; if one spoils it, each in its own."""
        if self._try_together(jobs):
            return
        for job in jobs:
            job.error = self._failure
            if self._failure is None:
                self._try_together([job])

    def _try_together(self, jobs: list[_Job]) -> bool:
        """Whether each job has its answer. A job that changed nothing may fail without spoiling the others."""
        transaction, database = self._transaction, self._database
        is_of_one = True
        try:
            transaction.begin(only_appends=all(job.many is _append_many for job in jobs))
            for many, group in groupby(jobs, key=_many_of):
                if many is not None:
                    _do_together(transaction, many, list(group))
                    continue
                for job in group:
                    before = database.writes
                    try:
                        job.result = job.asked(transaction)
                    except Exception as error:
                        job.error = _as_refusal(error)
                        if database.writes != before or not isinstance(error, Refusal) or error.code in _SPOILS_ALL:
                            raise
            is_of_one = False
            transaction.commit()
        except Exception as error:  # noqa: BLE001 - callers are told; a thread that ended would leave them waiting
            self._undo()
            if isinstance(error, Refusal) and error.code in _FATAL:
                self._fail(error)
            # A full disk is full for all of them; whatever else a commit fails for belongs to one of them.
            is_of_one = is_of_one or not isinstance(error, Refusal)
            if is_of_one and len(jobs) > 1 and self._failure is None:
                return False
            for each in jobs:
                each.error = each.error or self._failure or _as_refusal(error)
        return True

    def _answer(self, jobs: list[_Job]) -> None:
        """Wake the callers, all with one call into their loop."""
        if jobs:
            # A closed loop has nobody who waits any more, and what was written stays written.
            with contextlib.suppress(RuntimeError):
                jobs[0].future.get_loop().call_soon_threadsafe(self._resolve, jobs, self._transaction.take_grown())

    def _resolve(self, jobs: list[_Job], grown: Grown) -> None:
        if self._on_grown is not None:
            # Before anybody hears that it is there.
            self._on_grown(grown)
        for job in jobs:
            future = job.future
            if future.done():
                # Cancelled: its caller does not wait any more.
                continue
            if job.error is None:
                future.set_result(job.result)
            else:
                future.set_exception(job.error)

    def _undo(self) -> None:
        try:
            self._transaction.rollback()
        except Refusal as refusal:
            self._fail(refusal)

    def _checkpoint_if_long(self) -> None:
        try:
            if self._database.log_pages() >= _CHECKPOINT_AT_PAGES:
                self._database.checkpoint()
        except Refusal as refusal:
            # A full disk leaves the log as it is, and the log is enough; anything else is a failing disk.
            if refusal.code in _FATAL:
                self._fail(refusal)

    def _fail(self, refusal: Refusal) -> None:
        if self._failure is None:
            self._failure = refusal
            if self._on_failure is not None:
                try:
                    self._on_failure(refusal)
                except Exception:  # noqa: BLE001 - see below
                    # Those who wait for an answer must get it, whatever the gateway makes of the news.
                    _log.exception("the gateway could not take the news of a failed disk")


def _many_of(job: _Job) -> Many | None:
    return job.many


def _do_together(transaction: Transaction, many: Many, jobs: list[_Job]) -> None:
    for job, answer in zip(jobs, many(transaction, [job.asked for job in jobs]), strict=True):
        if isinstance(answer, Refusal):
            if answer.code in _SPOILS_ALL:
                raise answer
            job.error = answer
        else:
            job.result = answer


def _append_many(
    transaction: Transaction, appends: Sequence[tuple[Sequence[Event], Sequence[Delivery]]]
) -> list[Appended | Refusal]:
    append = transaction.append
    answers: list[Appended | Refusal] = []
    for events, deliveries in appends:
        try:
            answers.append(append(events, deliveries))
        except Refusal as refusal:
            answers.append(refusal)
    return answers


def _as_refusal(error: Exception) -> Exception:
    if isinstance(error, ConstraintViolated):
        return Refusal(Code.CONFLICT, f"the store refused it: {error}")
    return error
