"""A mailbox in a file: no daemon, several processes at once, durable before a call returns (MBX-9, MBX-10).

async with FileMailbox.open("mail.db") as mailbox:
    await mailbox.enqueue(message)
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from agentpost.mailbox import asking
from agentpost.mailbox.book import Book
from agentpost.mailbox.ending import LOOKED_BACK_AT
from agentpost.mailbox.interface import MAX_PAGE, MailboxPolicy
from agentpost.mailbox.worker import Blocking, Worker, WorkerThread
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import DeadLetterEntry, EnqueueAck, MailboxMessage, MailboxState, MessageSummary
from agentpost.store.database import Database, FileKind
from agentpost.store.queries import migrations
from agentpost.world import Chance, Clock, SystemChance, SystemClock

__all__ = ["FileMailbox"]

T = TypeVar("T")

# A turn takes a few milliseconds; who has not had one after this long has met a stopped process.
_LONGEST_WAIT_MS: Final = 60_000
# Other processes tell nobody that they enqueued something: who waits for a message looks this often.
_LOOK_EVERY_SECONDS: Final = 0.1


class FileMailbox:
    """One process's way to a mailbox file."""

    def __init__(
        self, database: Database, worker: Worker, *, policy: MailboxPolicy, clock: Clock, chance: Chance
    ) -> None:
        self._book = Book(database, policy)
        self._clock = clock
        self._chance = chance
        self._database = database
        self._worker = worker
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_released = False

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        policy: MailboxPolicy | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        blocking: bool = False,
        vfs: str | None = None,
        on_failure: Callable[[Refusal], None] | None = None,
    ) -> Self:
        """Open a mailbox file, or make one that only its owner can read.

        If the disk fails, every call is refused from then on: close the mailbox, and open it again. `on_failure` is
        called once, from any thread, when that happens.

        With `blocking` each call runs in the caller's thread: quicker for a program that makes one call after the
        other and has nothing else to do meanwhile, because its event loop stands still until the disk has it.
        """
        path = Path(path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite gives its log and shared memory the mode of the file.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise Refusal(Code.STORAGE_FAILED, f"the mailbox {path} cannot be opened: {error.strerror}") from None
        database = Database.open_shared(path, FileKind.MAILBOX, busy_timeout_ms=_LONGEST_WAIT_MS, vfs=vfs)
        try:
            database.migrate(migrations("agentpost.mailbox"))
            database.renew_log()
        except BaseException:
            database.abandon()
            raise
        worker = Blocking(database, on_failure) if blocking else WorkerThread(database, on_failure)
        return cls(
            database,
            worker,
            policy=policy or MailboxPolicy(),
            clock=clock or SystemClock(),
            chance=chance or SystemChance(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def enqueue(self, message: MailboxMessage) -> EnqueueAck:
        return (await self.enqueue_many([message]))[0]

    async def enqueue_many(self, messages: Sequence[MailboxMessage]) -> list[EnqueueAck]:
        bodies = asking.check_messages(messages)
        acks = await self._run(lambda now_ms: self._enqueue(messages, bodies, now_ms))
        self._tell_those_who_wait()
        return acks

    def _enqueue(self, messages: Sequence[MailboxMessage], bodies: Sequence[bytes], now_ms: int) -> list[EnqueueAck]:
        # Several ids are looked at for each one that comes, so what may be forgotten does not pile up. By chance: a
        # process that counted might end before it is its turn.
        if self._chance.fraction() * LOOKED_BACK_AT < 4 * len(messages):
            self._book.endings.look_back(now_ms=now_ms)
        return self._book.enqueue(messages, bodies, now_ms=now_ms)

    async def dequeue(self, session: str, *, wait_seconds: float = 0) -> MailboxMessage | None:
        found = await self.dequeue_many(session, 1, wait_seconds=wait_seconds)
        return found[0] if found else None

    async def dequeue_many(self, session: str, limit: int, *, wait_seconds: float = 0) -> list[MailboxMessage]:
        asking.check_name(session, "session")
        asking.check_batch(limit)
        asking.check_wait(wait_seconds)
        found = await self._dequeue(session, limit)
        if found or not wait_seconds:
            return found
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        while not found and not self._is_released and (left := until - loop.time()) > 0:
            await self.wait_for_news(min(left, _LOOK_EVERY_SECONDS))
            found = await self._dequeue(session, limit)
        return found

    def _dequeue(self, session: str, limit: int) -> Awaitable[list[MailboxMessage]]:
        # A hand-over that is lost with the power is one that comes again, as it would without an ack in time.
        return self._worker.run(
            lambda: self._book.dequeue(session, limit, now_ms=self._clock.now_ms()),
            must_last=False,
            undo=lambda found: self._book.give_back(session, {each.msg_id: each.attempt for each in found}),
        )

    async def give_back(self, session: str, handed_out: Mapping[str, int]) -> None:
        """Undo hand-overs that their receiver never heard of: pending again, and not counted as attempts."""
        await self._run(lambda _: self._book.give_back(session, handed_out), must_last=False)
        self._tell_those_who_wait()

    async def wait_for_news(self, seconds: float) -> None:
        """Until something is enqueued here, or the time is over. What other processes enqueue is not heard."""
        loop = asyncio.get_running_loop()
        news: asyncio.Future[None] = loop.create_future()
        self._waiting.add(news)
        timer = loop.call_later(seconds, _tell, news)
        try:
            await news
        finally:
            timer.cancel()
            self._waiting.discard(news)

    def release(self) -> None:
        """Let nobody wait any longer, nor from now on: for a server that is about to stop."""
        self._is_released = True
        self._tell_those_who_wait()

    def _tell_those_who_wait(self) -> None:
        for news in self._waiting:
            _tell(news)

    async def ack(self, session: str, msg_id: str) -> None:
        await self.ack_many(session, [msg_id])

    async def ack_many(self, session: str, msg_ids: Sequence[str]) -> None:
        asking.check_name(session, "session")
        asking.check_batch(len(msg_ids))
        for msg_id in msg_ids:
            asking.check_name(msg_id, "msg_id")
        await self._run(lambda now_ms: self._book.ack(session, msg_ids, now_ms=now_ms), begins=False)

    async def nack(self, session: str, msg_id: str, reason: str) -> None:
        asking.check_name(session, "session")
        asking.check_name(msg_id, "msg_id")
        why = asking.checked_reason(reason)
        await self._run(lambda now_ms: self._book.nack(session, msg_id, why, now_ms=now_ms))

    async def extend(self, session: str, msg_id: str, seconds: float) -> None:
        asking.check_name(session, "session")
        asking.check_name(msg_id, "msg_id")
        asking.check_extension(seconds)
        await self._run(lambda now_ms: self._book.extend(session, msg_id, seconds, now_ms=now_ms))

    async def peek(self, session: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[MessageSummary]:
        asking.check_name(session, "session")
        asking.check_page(limit)
        return await self._swept(lambda now_ms: self._book.looks.peek(session, after=after, limit=limit, now_ms=now_ms))

    async def purge(self, session: str) -> None:
        asking.check_name(session, "session")
        await self._run(lambda _: self._book.purge(session))

    async def peek_dead_letter(
        self, session: str, *, after: str | None = None, limit: int = MAX_PAGE
    ) -> list[DeadLetterEntry]:
        asking.check_name(session, "session")
        asking.check_page(limit)
        return await self._swept(
            lambda now_ms: self._book.looks.peek_dead_letter(session, after=after, limit=limit, now_ms=now_ms)
        )

    async def purge_dead_letter(self, session: str) -> None:
        asking.check_name(session, "session")
        await self._run(lambda _: self._book.purge_dead_letter(session))

    async def state_of(self, session: str, msg_id: str) -> tuple[MailboxState | None, str | None]:
        """Where a message is in its life, with the reason if it is a dead letter; None if nobody knows it."""
        return await self._run(
            lambda now_ms: self._book.looks.state_of(session, msg_id, now_ms=now_ms), must_last=False
        )

    async def waiting_abroad(self) -> list[str]:
        """The sessions with an @ in their names for which something is pending."""
        return await self._run(lambda now_ms: self._book.looks.waiting_abroad(now_ms=now_ms), must_last=False)

    async def sweep(self) -> int:
        """Do what time asks for and forget what may be forgotten. Gives how much there was, 0 once there is no more."""
        return await self._run(self._sweep, must_last=False)

    def _sweep(self, now_ms: int) -> int:
        endings = self._book.endings
        endings.remove_acked()
        return endings.sweep_if_due(now_ms=now_ms) + endings.look_back(now_ms=now_ms)

    async def _swept(self, look: Callable[[int], T]) -> T:
        """A look at the mailbox as it is now, not as somebody's last call left it."""

        def work(now_ms: int) -> tuple[T] | None:
            return None if self._book.endings.sweep_if_due(now_ms=now_ms) else (look(now_ms),)

        # A sweep a transaction, so that others have their turn however much there is.
        while (seen := await self._run(work, must_last=False)) is None:
            pass
        return seen[0]

    def _run(self, work: Callable[[int], T], *, must_last: bool = True, begins: bool = True) -> Awaitable[T]:
        # The time is that of the transaction, so that who comes later is later.
        return self._worker.run(lambda: work(self._clock.now_ms()), must_last=must_last, begins=begins)

    @property
    def failure(self) -> Refusal | None:
        """Why every call is refused, if the disk has failed."""
        return self._worker.failure

    async def close(self) -> None:
        await asyncio.to_thread(self._worker.stop)
        if self._worker.failure is None:
            self._database.close()
        else:
            # Not one write more: whoever opens the file next finds out what is in it.
            self._database.abandon()


def _tell(news: "asyncio.Future[None]") -> None:
    if not news.done():
        news.set_result(None)
