"""A mailbox in memory, for tests and for programs that need no durability. Behaves as the one in a file does."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from agentpost.mailbox import asking
from agentpost.mailbox.fitting import size_of_summary, that_fit
from agentpost.mailbox.interface import MAX_PAGE, MailboxPolicy
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.machine import walk
from agentpost.protocol.mailbox import (
    MAILBOX,
    DeadLetterEntry,
    EnqueueAck,
    MailboxMessage,
    MailboxSignal,
    MailboxState,
    MessageSummary,
    encode_message,
    nack_outcome,
)
from agentpost.world import Clock, SystemClock

__all__ = ["MemoryMailbox"]

_LIVING = (MailboxState.PENDING, MailboxState.IN_FLIGHT)


class _Kept(Struct, kw_only=True):
    """A message, or what is remembered of one. `due_at_ms` as in the file."""

    message: MailboxMessage
    arrival: int
    rank: int
    seen_at_ms: int
    expires_at_ms: int
    state: MailboxState | Literal["purged"] = MailboxState.PENDING
    due_at_ms: int = 0
    dead: DeadLetterEntry | None = None

    @property
    def place(self) -> tuple[int, int]:
        return self.rank, self.arrival


class MemoryMailbox:
    def __init__(self, *, policy: MailboxPolicy | None = None, clock: Clock | None = None) -> None:
        self._policy = policy or MailboxPolicy()
        self._clock = clock or SystemClock()
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._arrivals = 0
        self._news = asyncio.Condition()

    async def enqueue(self, message: MailboxMessage) -> EnqueueAck:
        return (await self.enqueue_many([message]))[0]

    async def enqueue_many(self, messages: Sequence[MailboxMessage]) -> list[EnqueueAck]:
        asking.check_messages(messages)
        acks = [self._enqueue(message) for message in messages]
        async with self._news:
            self._news.notify_all()
        return acks

    def _enqueue(self, message: MailboxMessage) -> EnqueueAck:
        now_ms = self._clock.now_ms()
        key = (message.to, message.msg_id)
        is_new = key not in self._kept
        if is_new:
            self._arrivals += 1
            pair = [each for each in self._living(message.to) if each.message.sender == message.sender]
            self._kept[key] = _Kept(
                message=replace(message, attempt=0),
                arrival=self._arrivals,
                rank=max([message.created_at, *(each.rank for each in pair)]),
                seen_at_ms=now_ms,
                expires_at_ms=now_ms + round(self._policy.ttl_seconds * 1000),
            )
        pending = sum(each.state is MailboxState.PENDING for each in self._living(message.to))
        return EnqueueAck(msg_id=message.msg_id, queued=is_new, pending=pending)

    async def dequeue(self, session: str, *, wait_seconds: float = 0) -> MailboxMessage | None:
        found = await self.dequeue_many(session, 1, wait_seconds=wait_seconds)
        return found[0] if found else None

    async def dequeue_many(self, session: str, limit: int, *, wait_seconds: float = 0) -> list[MailboxMessage]:
        asking.check_name(session, "session")
        asking.check_batch(limit)
        asking.check_wait(wait_seconds)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        while True:
            found = self._dequeue(session, limit)
            left = until - loop.time()
            if found or left <= 0:
                return found
            try:
                async with asyncio.timeout(min(left, 0.1)), self._news:
                    await self._news.wait()
            except TimeoutError:
                pass

    def _dequeue(self, session: str, limit: int) -> list[MailboxMessage]:
        now_ms = self._sweep()
        taken: list[_Kept] = []
        held: set[str] = set()
        for each in sorted(self._living(session), key=lambda each: each.place):
            if each.state is not MailboxState.PENDING or each.message.sender in held:
                continue
            if each.due_at_ms > now_ms:
                held.add(each.message.sender)
            elif len(taken) < limit:
                taken.append(each)
        taken = that_fit(taken, lambda each: len(encode_message(each.message)))
        for each in taken:
            each.state = MailboxState.IN_FLIGHT
            each.due_at_ms = now_ms + round(self._policy.in_flight_timeout_seconds * 1000)
        return [each.message for each in taken]

    async def give_back(self, session: str, handed_out: Mapping[str, int]) -> None:
        """Undo hand-overs that their receiver never heard of: pending again, and not counted as attempts."""
        for msg_id, attempt in handed_out.items():
            kept = self._kept.get((session, msg_id))
            if kept is not None and kept.state is MailboxState.IN_FLIGHT and kept.message.attempt == attempt:
                kept.state, kept.due_at_ms = MailboxState.PENDING, 0
        async with self._news:
            self._news.notify_all()

    async def ack(self, session: str, msg_id: str) -> None:
        await self.ack_many(session, [msg_id])

    async def ack_many(self, session: str, msg_ids: Sequence[str]) -> None:
        asking.check_batch(len(msg_ids))
        self._sweep()
        for each in self._moved(session, msg_ids, MailboxSignal.ACK):
            each.state = MailboxState.ACKED

    async def nack(self, session: str, msg_id: str, reason: str) -> None:
        why = asking.checked_reason(reason)
        now_ms = self._sweep()
        for each in self._moved(session, [msg_id], MailboxSignal.NACK):
            self._nack(each, why, at_ms=now_ms)

    async def extend(self, session: str, msg_id: str, seconds: float) -> None:
        asking.check_extension(seconds)
        now_ms = self._sweep()
        moved = self._moved(session, [msg_id], MailboxSignal.ACK)
        if not moved:
            raise Refusal(Code.INVALID_TRANSITION, f"message {msg_id} is acked already")
        moved[0].due_at_ms = now_ms + round(seconds * 1000)

    async def peek(self, session: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[MessageSummary]:
        asking.check_name(session, "session")
        asking.check_page(limit)
        self._sweep()
        order = sorted(self._living(session), key=lambda each: (each.state is MailboxState.PENDING, each.place))
        page = [
            MessageSummary(
                msg_id=each.message.msg_id,
                sender=each.message.sender,
                created_at=each.message.created_at,
                attempt=each.message.attempt,
                state=MailboxState(each.state),
            )
            for each in self._page(session, order, after, limit)
        ]
        return that_fit(page, size_of_summary)

    async def purge(self, session: str) -> None:
        asking.check_name(session, "session")
        for each in self._living(session):
            each.state = "purged"

    async def peek_dead_letter(
        self, session: str, *, after: str | None = None, limit: int = MAX_PAGE
    ) -> list[DeadLetterEntry]:
        asking.check_name(session, "session")
        asking.check_page(limit)
        self._sweep()
        order = sorted(self._dead(session), key=lambda each: each.place)
        page = [each.dead for each in self._page(session, order, after, limit) if each.dead is not None]
        return that_fit(page, lambda each: len(encode_message(each)) + 6 * len(each.reason.encode()))

    async def purge_dead_letter(self, session: str) -> None:
        asking.check_name(session, "session")
        for each in self._dead(session):
            each.dead = None

    async def sweep(self) -> int:
        self._sweep()
        return 0

    async def close(self) -> None:
        pass

    def _living(self, session: str) -> list[_Kept]:
        return [each for (name, _), each in self._kept.items() if name == session and each.state in _LIVING]

    def _dead(self, session: str) -> list[_Kept]:
        return [each for (name, _), each in self._kept.items() if name == session and each.dead is not None]

    def _page(self, session: str, order: Sequence[_Kept], after: str | None, limit: int) -> Sequence[_Kept]:
        if after is None:
            return order[:limit]
        at = [each.message.msg_id for each in order]
        if after not in at:
            self._look_up(session, after)
            raise Refusal(Code.NOT_FOUND, f"message {after} is not there any more; start again with the first page")
        return order[at.index(after) + 1 :][:limit]

    def _look_up(self, session: str, msg_id: str) -> tuple[_Kept, MailboxState]:
        asking.check_name(session, "session")
        asking.check_name(msg_id, "msg_id")
        kept = self._kept.get((session, msg_id))
        if kept is None or kept.state == "purged":
            raise Refusal(Code.NOT_FOUND, f"there is no message {msg_id} in the mailbox of {session}")
        return kept, kept.state

    def _moved(self, session: str, msg_ids: Iterable[str], signal: MailboxSignal) -> list[_Kept]:
        found = [self._look_up(session, msg_id) for msg_id in dict.fromkeys(msg_ids)]
        return [kept for kept, state in found if walk(MAILBOX, state, signal)]

    def _nack(self, each: _Kept, reason: str, *, at_ms: int) -> None:
        outcome = nack_outcome(each.message.attempt, self._policy.max_retries, self._policy.base_backoff_seconds)
        if outcome.delay_seconds is None:
            why = f"max_retries exhausted: {reason}" if reason else "max_retries exhausted"
            each.state = MailboxState.DEAD_LETTER
            each.dead = DeadLetterEntry.of(each.message, attempts=outcome.attempts, failed_at=at_ms // 1000, reason=why)
        else:
            each.state = MailboxState.PENDING
            each.due_at_ms = at_ms + round(outcome.delay_seconds * 1000)
            each.message = replace(each.message, attempt=outcome.attempts)

    def _sweep(self) -> int:
        """Do what time asks for; gives the time."""
        now_ms = self._clock.now_ms()
        for each in list(self._kept.values()):
            if each.state in _LIVING and each.expires_at_ms <= now_ms:
                each.state = MailboxState.EXPIRED
            elif each.state is MailboxState.IN_FLIGHT and each.due_at_ms <= now_ms:
                self._nack(each, "no ack in time", at_ms=each.due_at_ms)
        forgotten_before_ms = now_ms - round(self._policy.retention_seconds * 1000)
        self._kept = {
            key: each
            for key, each in self._kept.items()
            if each.state in _LIVING or each.dead is not None or each.seen_at_ms >= forgotten_before_ms
        }
        return now_ms
