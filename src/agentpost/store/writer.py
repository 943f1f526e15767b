"""The one who writes. Whoever waits while it commits shares the next commit: one fsync for all of them.

A caller hands in a piece of work, a function of a `Transaction`, and awaits its result. The writer takes all that is
waiting, runs it in one transaction and answers everybody after the commit. Work that fails is taken out and the rest
runs again without it, so nobody pays for another's mistake. No delay is added: alone, a caller commits at once.

A little work is done on the loop that asked for it, for as long as the disk is quick: to wake another thread and to be
woken by it takes as long as the commit. Much work, work that may take long, and all work on a slow disk is done in a
thread. What is asked for meanwhile follows there, so that everything is written in the order in which it was asked for.
A crowd is handed over in parts: while SQLite writes one without Python, the callers of the other run, and their rows
are made ready.

After a failed write or sync nothing is retried, since the kernel may have dropped what it could not write: the writer
stops for good, refuses everything, and says so once (`on_failure`). A full disk is different: the transaction is
undone, its callers are told, and the next one may succeed.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database
from agentpost.store.jobs import FATAL, LONG, Batch, Job, append_many, gather_ahead, try_together
from agentpost.store.rows import Rows
from agentpost.store.tail import Grown
from agentpost.store.transaction import Transaction
from agentpost.store.values import Appended

__all__ = ["Writer"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")

# What is done on the loop: so many events for so many callers at a time, while a commit takes no longer than this. With
# one caller more the thread has half of a crowd, and the other half runs meanwhile. Few callers with many events have
# nothing else to do, and a thread that writes for them asks for the interpreter's lock at every statement.
_MOST_EVENTS_ON_LOOP: Final = 511
_MOST_CALLERS_ON_LOOP: Final = 127
_QUICK_SECONDS: Final = 0.025
# So many rows at the most are gathered ahead: it is done on the loop.
_MOST_AHEAD: Final = 512
# What a commit takes is judged by those of few jobs, and the latest of them counts so much.
_FEW_JOBS: Final = 8
_LATEST: Final = 0.1
_CHECKPOINT_AT_PAGES: Final = 1000
_COMMITS_A_LOOK_AT_THE_LOG: Final = 8


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
        # What was asked for since the loop last came round, and what the thread is to do; None is the last of it.
        self._asked_for: deque[Job] = deque()
        self._waiting: SimpleQueue[Batch | None] = SimpleQueue()
        # Jobs that the thread has and the loop has no answer to. While there are any, nothing is done on the loop.
        self._in_thread = 0
        # The last rows of what the thread has, if all of that was gathered ahead.
        self._last_ahead: Rows | None = None
        # Whoever has it uses the connection.
        self._connection = threading.Lock()
        # Whether somebody was told already what is about to be written.
        self._is_promised = False
        self._commit_seconds = 0.0
        self._commits_since_look = 0
        self._is_log_long = False
        self._failure: Refusal | None = None
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._thread = threading.Thread(target=self._run, name="agentpost-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> Refusal | None:
        """Why the writer gave up, if it did."""
        return self._failure

    def submit(self, work: Callable[[Transaction], T], *, size: int = LONG) -> "asyncio.Future[T]":
        """Run `work`, which writes about `size` events, in the next transaction. The future is done when it is durable.

        Without a size it may take long.
        """
        return self._put(work, None, size)

    def append(self, events: Sequence[Event], deliveries: Sequence[Delivery]) -> "asyncio.Future[Appended]":
        """Append in the next transaction."""
        return self._put((events, deliveries), append_many, len(events))

    def ask(self, many: Callable[[Transaction, Sequence[A]], Sequence[T | Refusal]], asked: A) -> "asyncio.Future[T]":
        """Have `many` do this in the next transaction, together with what others ask of it at the same time."""
        return self._put(asked, many, 1)

    def promise(self, size: int) -> bool:
        """Whether what is asked for next, of about this size, is written on the loop, where every read waits for it.

        Who hears of it before it is durable then finds it in the store all the same. Nothing is promised that would be
        left to the thread.
        """
        self._callers_loop()
        if self._in_thread or self._stopped or self._failure is not None or self._connection.locked():
            return False
        makes_no_crowd = len(self._asked_for) < _MOST_CALLERS_ON_LOOP
        is_little = makes_no_crowd and size + _size_of(self._asked_for) <= _MOST_EVENTS_ON_LOOP
        self._is_promised = self._is_promised or (is_little and self._commit_seconds <= _QUICK_SECONDS)
        return self._is_promised and is_little

    def keep_promise(self) -> None:
        """Write what was promised before anything is read; nothing to do in another thread than the loop's."""
        if self._is_promised and threading.get_ident() == self._loop_thread:
            self._begin()

    @property
    def has_promised(self) -> bool:
        return self._is_promised

    def _put(self, asked: Any, many: Any, size: int) -> "asyncio.Future[Any]":
        # Runs for every append: what can be asked for once is.
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._callers_loop()
        others = len(self._asked_for)
        is_crowd = others >= _MOST_CALLERS_ON_LOOP or size > _MOST_EVENTS_ON_LOOP or self._stopped
        if is_crowd:
            self.keep_promise()
        future: asyncio.Future[Any] = loop.create_future()
        self._asked_for.append(Job(future, asked, many, size))
        if is_crowd:
            self._hand_over()
        elif not others and not self._in_thread:
            # Not at once: others may ask for something before the loop comes round.
            loop.call_soon(self._begin_next if self._is_promised else self._begin)
        return future

    def _callers_loop(self) -> asyncio.AbstractEventLoop:
        # Asking asyncio for the loop each time would cost as much as the rest of a submission.
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
            self._loop_thread = threading.get_ident()
            self._forget_closed_loop()
        return self._loop

    def _forget_closed_loop(self) -> None:
        """Leave undone what nobody waits for any more. What the thread has begun it ends, and nobody hears of it."""
        self._asked_for.clear()
        self._in_thread, self._is_promised = 0, False
        if not self._stopped:
            with contextlib.suppress(Empty):
                while True:
                    self._waiting.get_nowait()

    def stop(self) -> None:
        """Finish what is waiting, then end the thread. Blocks until it has."""
        self._stopped = True
        self._hand_over()
        self._waiting.put(None)
        self._thread.join()
        with self._connection:
            # The loop may be in the middle of something, and begins nothing new.
            self._refuse_leftovers()

    def _hand_over(self) -> None:
        """Leave what was asked for to the thread."""
        jobs = _all_of(self._asked_for)
        if jobs:
            batch = None if self._stopped else self._gather_ahead(jobs)
            self._last_ahead = None if batch is None else batch.ahead
            self._in_thread += len(jobs)
            self._waiting.put(batch or Batch(jobs))
        if self._stopped:
            # It may have come after the last look of the thread; whoever finds it in the queue answers.
            self._refuse_leftovers()

    def _gather_ahead(self, jobs: Sequence[Job]) -> Batch | None:
        """Make the rows of the jobs here, while the thread writes those of others, if what they follow is known."""
        if _size_of(jobs) > _MOST_AHEAD:
            return None
        if self._in_thread:
            return None if self._last_ahead is None else gather_ahead(jobs, self._last_ahead.ahead())
        if not self._begin_here():
            return None
        try:
            ahead = self._transaction.ahead()
        finally:
            self._connection.release()
        return gather_ahead(jobs, ahead)

    def _refuse_leftovers(self) -> None:
        """Answer what nobody will do any more. While the thread lives, it is the one who answers."""
        if self._thread.is_alive():
            return
        leftovers: list[Job] = []
        with contextlib.suppress(Empty):
            while True:
                batch = self._waiting.get_nowait()
                for job in () if batch is None else batch.jobs:
                    job.error = Refusal(Code.UNAVAILABLE, "the store is closed")
                    leftovers.append(job)
        self._answer(leftovers)

    # On the loop

    def _begin_next(self) -> None:
        """Begin a turn later: those who were told already what is to be written ask for more, and share the commit."""
        self._callers_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Do what was asked for, or hand it over."""
        if not self._asked_for or self._in_thread:
            return
        is_little = _size_of(self._asked_for) <= _MOST_EVENTS_ON_LOOP
        is_quick = is_little and self._commit_seconds <= _QUICK_SECONDS
        is_promised, self._is_promised = self._is_promised, False
        if not (is_quick or is_promised) or not self._begin_here():
            self._hand_over()
            return
        jobs = _all_of(self._asked_for)
        try:
            self._do([Batch(jobs)])
            grown = self._transaction.take_grown()
            self._look_at_log()
        finally:
            self._connection.release()
        self._resolve(jobs, grown)
        if self._is_log_long:
            # A checkpoint takes too long for the loop.
            self.submit(_nothing).add_done_callback(_ignored)

    def _begin_here(self) -> bool:
        """Take the connection, if nobody has it and the store is open."""
        if not self._connection.acquire(blocking=False):
            return False
        if self._stopped:
            self._connection.release()
            return False
        return True

    def _resolve(self, jobs: Sequence[Job], grown: Grown) -> None:
        if self._on_grown is not None:
            # Before anybody hears that it is there.
            self._on_grown(grown)
        for job in jobs:
            job.answer()

    def _resolve_from_thread(self, jobs: Sequence[Job], grown: Grown) -> None:
        self._in_thread -= len(jobs)
        try:
            self._resolve(jobs, grown)
        finally:
            # Whatever went wrong with these, those who came meanwhile wait for this.
            self._begin()

    # In the thread

    def _run(self) -> None:
        more = True
        while more:
            batches, more = self._take()
            with self._connection:
                if batches:
                    self._do(batches)
                    self._answer([job for batch in batches for job in batch.jobs])
                self._look_at_log()
                if self._is_log_long:
                    self._checkpoint()

    def _take(self) -> tuple[list[Batch], bool]:
        """What waits, at least one batch and all but half of a crowd; False beside it when this was the last."""
        batches: list[Batch] = []
        batch = self._waiting.get()
        half, jobs = self._waiting.qsize() // 2, 0
        try:
            while batch is not None:
                batches.append(batch)
                jobs += len(batch.jobs)
                if jobs > _MOST_CALLERS_ON_LOOP and len(batches) >= half:
                    return batches, True
                batch = self._waiting.get_nowait()
        except Empty:
            return batches, True
        return batches, False

    def _answer(self, jobs: list[Job]) -> None:
        """Wake the callers, all with one call into their loop."""
        if jobs:
            # A closed loop has nobody who waits any more, and what was written stays written.
            with contextlib.suppress(RuntimeError):
                loop = jobs[-1].future.get_loop()
                loop.call_soon_threadsafe(self._resolve_from_thread, jobs, self._transaction.take_grown())

    def _checkpoint(self) -> None:
        self._is_log_long = False
        with self._refusals_of_the_log():
            self._database.checkpoint()

    # With the connection

    def _do(self, batches: Sequence[Batch]) -> None:
        """Run the jobs in one transaction; if one spoils it, each in its own."""
        count = sum(len(batch.jobs) for batch in batches)
        if self._failure is not None:
            for batch in batches:
                for job in batch.jobs:
                    # Anew for each: an exception keeps the frames of everyone who was handed it.
                    job.error = Refusal(self._failure.code, self._failure.message)
            return
        start = time.monotonic()
        if not self._try_together(batches):
            for batch in batches:
                for job in batch.jobs:
                    job.error = self._failure
                    if self._failure is None:
                        self._try_together([Batch([job])])
        self._commits_since_look += 1
        if count <= _FEW_JOBS:
            self._commit_seconds += (time.monotonic() - start - self._commit_seconds) * _LATEST

    def _try_together(self, batches: Sequence[Batch]) -> bool:
        are_answered, failure = try_together(batches, self._transaction)
        if failure is not None:
            self._fail(failure)
        return are_answered

    def _look_at_log(self) -> None:
        if self._commits_since_look >= _COMMITS_A_LOOK_AT_THE_LOG and self._failure is None:
            self._commits_since_look = 0
            with self._refusals_of_the_log():
                self._is_log_long = self._database.log_pages() >= _CHECKPOINT_AT_PAGES

    @contextlib.contextmanager
    def _refusals_of_the_log(self) -> Generator[None]:
        try:
            yield
        except Refusal as refusal:
            # A full disk leaves the log as it is, and the log is enough; anything else is a failing disk.
            if refusal.code in FATAL:
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


def _all_of(jobs: deque[Job]) -> list[Job]:
    """Take all of them. Safe beside another thread that does the same: nobody gets what the other has."""
    taken: list[Job] = []
    take, keep = jobs.popleft, taken.append
    with contextlib.suppress(IndexError):
        while True:
            keep(take())
    return taken


def _size_of(jobs: Iterable[Job]) -> int:
    return sum([job.size for job in jobs])


def _nothing(_transaction: Transaction) -> None:
    """A reason for the thread to look at the log."""


def _ignored(done: "asyncio.Future[None]") -> None:
    done.exception()
