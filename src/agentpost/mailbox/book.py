"""The operations of a mailbox on its file, each inside a transaction that somebody else began.

Whatever can be refused is refused before the first write, so a refusal leaves the transaction as it was.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from agentpost.mailbox.interface import MailboxPolicy
from agentpost.mailbox.picking import Picker, Stored, stored
from agentpost.mailbox.statements import SQL
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
    decode_message,
    encode_message,
    nack_outcome,
)
from agentpost.store.database import Database

__all__ = ["Book"]

# What one call does of the sweeper's work at most, so that no caller waits for a day's leftovers.
_SWEPT_A_CALL: Final = 256
_FORGOTTEN_A_CALL: Final = 256
_NO_LIMIT: Final = 2**63 - 1
_SILENCE: Final = "no ack in time"


class Book:
    """The operations of one connection. `now_ms` is the caller's clock."""

    def __init__(self, database: Database, policy: MailboxPolicy) -> None:
        self._database = database
        self._policy = policy

    def enqueue(self, messages: Sequence[MailboxMessage], *, now_ms: int) -> list[EnqueueAck]:
        of_session: dict[str, list[MailboxMessage]] = {}
        for message in messages:
            of_session.setdefault(message.to, []).append(message)
        is_new: dict[tuple[str, str], int] = {}
        for name, group in of_session.items():
            for msg_id, pending in self._enqueue_group(name, group, now_ms).items():
                is_new[name, msg_id] = pending
        acks: list[EnqueueAck] = []
        pending_of: dict[str, int] = {}
        for message in messages:
            # Of the same id twice in a batch, the first is queued.
            queued = is_new.pop((message.to, message.msg_id), None)
            if queued is not None:
                pending_of[message.to] = queued
            pending = pending_of.get(message.to)
            if pending is None:
                pending = self._database.value(SQL.pending, (self._session(message.to),))
            acks.append(EnqueueAck(msg_id=message.msg_id, queued=queued is not None, pending=pending))
        return acks

    def _enqueue_group(self, name: str, messages: Sequence[MailboxMessage], now_ms: int) -> dict[str, int]:
        """Queue the messages of one session whose ids are new: each with how many are pending once it is queued."""
        database, session = self._database, self._session(name)
        by_id = {message.msg_id: message for message in reversed(messages)}
        seen = {msg_id for msg_id in by_id if database.row(SQL.seen, (session, msg_id)) is not None}
        fresh = [message for message in messages if message.msg_id not in seen and by_id[message.msg_id] is message]
        if not fresh:
            return {}
        first_id = database.value(SQL.last_message) + 1
        pending = database.value(SQL.pending, (session,))
        expires_at_ms = now_ms + round(self._policy.ttl_seconds * 1000)
        ranks: dict[str, int] = {}
        remembered: list[tuple[object, ...]] = []
        rows: list[tuple[object, ...]] = []
        for number, message in enumerate(fresh, first_id):
            sender, created_at = message.sender, message.created_at
            if sender not in ranks:
                ranks[sender] = database.value(SQL.last_rank_of_pair, (session, sender)) or 0
            rank = ranks[sender] = max(created_at, ranks[sender])
            remembered.append((session, message.msg_id, number, now_ms))
            body = encode_message(message)
            rows.append(
                (number, session, message.msg_id, sender, rank, created_at, message.attempt, expires_at_ms, body)
            )
        database.run_many(SQL.remember, remembered)
        database.run_many(SQL.add_message, rows)
        database.run(SQL.count_pending, (len(fresh), session))
        return {message.msg_id: pending + count for count, message in enumerate(fresh, 1)}

    def dequeue(self, session_name: str, limit: int, *, now_ms: int) -> list[MailboxMessage]:
        self.sweep(now_ms=now_ms)
        session = self._known_session(session_name)
        if session is None:
            return []
        picker = Picker(self._database, session, now_ms=now_ms)
        due_at_ms = now_ms + round(self._policy.in_flight_timeout_seconds * 1000)
        taken: list[Stored] = []
        while len(taken) < limit and (found := picker.next_messages(limit - len(taken))):
            # The sweep above may have left some: nobody is handed what has expired.
            self._end([each for each in found if each.expires_at_ms <= now_ms], MailboxSignal.TTL)
            living = [each for each in found if each.expires_at_ms > now_ms]
            self._database.run_many(SQL.hand_out, [(due_at_ms, each.id) for each in living])
            taken += living
        if taken:
            self._database.run(SQL.count_pending, (-len(taken), session))
        return [_message(each.body, each.attempt) for each in taken]

    def ack(self, session_name: str, msg_ids: Sequence[str], *, now_ms: int) -> None:
        self.sweep(now_ms=now_ms)
        self._end(self._in_flight(session_name, msg_ids, MailboxSignal.ACK), MailboxSignal.ACK)

    def nack(self, session_name: str, msg_id: str, reason: str, *, now_ms: int) -> None:
        self.sweep(now_ms=now_ms)
        for each in self._in_flight(session_name, [msg_id], MailboxSignal.NACK):
            self._nack(each, reason, at_ms=now_ms)

    def extend(self, session_name: str, msg_id: str, seconds: float, *, now_ms: int) -> None:
        self.sweep(now_ms=now_ms)
        # Only what may be acked now may have more time; a repeat of an ack has nothing to extend.
        found = self._in_flight(session_name, [msg_id], MailboxSignal.ACK)
        if not found:
            raise Refusal(Code.INVALID_TRANSITION, f"message {msg_id} is acked already")
        self._database.run(SQL.extend, (now_ms + round(seconds * 1000), found[0].id))

    def peek(self, session_name: str, *, after: str | None, limit: int) -> list[MessageSummary]:
        session = self._known_session(session_name)
        if session is None:
            return []
        start = None if after is None else self._found(session_name, after)
        rows: list[MessageSummary] = []
        if start is None or start.state is MailboxState.IN_FLIGHT:
            rows += self._page(SQL.in_flight_page, session, start, limit)
            start = None
        if len(rows) < limit:
            rows += self._page(SQL.pending_page, session, start, limit - len(rows))
        return rows

    def _page(self, sql: str, session: int, start: Stored | None, limit: int) -> list[MessageSummary]:
        position = (-1, -1) if start is None else (start.rank, start.id)
        return [
            MessageSummary(msg_id=row[0], sender=row[1], created_at=row[2], attempt=row[3], state=MailboxState(row[4]))
            for row in self._database.rows(sql, (session, *position, limit))
        ]

    def purge(self, session_name: str) -> None:
        session = self._known_session(session_name)
        if session is not None:
            self._database.run(SQL.note_ends_of_living, (session,))
            self._database.run(SQL.purge_living, (session,))
            self._database.run(SQL.no_pending, (session,))

    def peek_dead_letter(self, session_name: str, *, after: str | None, limit: int) -> list[DeadLetterEntry]:
        session = self._known_session(session_name)
        if session is None:
            return []
        after_id = 0 if after is None else self._found(session_name, after).id
        return [
            DeadLetterEntry.of(_message(body, attempt), reason=reason, failed_at=failed_at, attempts=attempts)
            for body, attempt, reason, failed_at, attempts in self._database.rows(
                SQL.dead_page, (session, after_id, limit)
            )
        ]

    def purge_dead_letter(self, session_name: str) -> None:
        session = self._known_session(session_name)
        if session is not None:
            self._database.run(SQL.note_ends_of_dead, (session,))
            self._database.run(SQL.purge_dead, (session,))

    def sweep(self, *, now_ms: int, limit: int = _SWEPT_A_CALL) -> int:
        """End what outlived its time, and nack what nobody acked in time (MBX-6). Gives how many there were."""
        # The TTL first: what is past both ends as expired, as it would have in time.
        expired = [stored(row) for row in self._database.rows(SQL.past_ttl, (now_ms, limit))]
        self._end(expired, MailboxSignal.TTL)
        silent = [stored(row) for row in self._database.rows(SQL.overdue_in_flight, (now_ms, limit))]
        for each in silent:
            # As if it had been nacked when its time was over, not when somebody looked.
            self._nack(each, _SILENCE, at_ms=each.due_at_ms, signal=MailboxSignal.IN_FLIGHT_TIMEOUT)
        return len(expired) + len(silent)

    def forget(self, *, now_ms: int, limit: int = _FORGOTTEN_A_CALL) -> int:
        """Forget ids that were seen longer ago than the retention and whose messages are gone (MBX-3)."""
        before = self._database.changed_rows()
        self._database.run(SQL.forget, (now_ms - round(self._policy.retention_seconds * 1000), limit))
        return self._database.changed_rows() - before

    def state_of(self, session_name: str, msg_id: str) -> tuple[MailboxState | None, str | None]:
        """Where a message is in its life, and why it is a dead letter; None for what is purged or never was."""
        try:
            state, found = self._look_up(session_name, msg_id)
        except Refusal:
            return None, None
        return state, None if found is None else self._database.value(SQL.reason, (found.id,))

    def _nack(self, each: Stored, reason: str, *, at_ms: int, signal: MailboxSignal = MailboxSignal.NACK) -> None:
        state = walk(MAILBOX, each.state, signal)[-1]
        outcome = nack_outcome(each.attempt, self._policy.max_retries, self._policy.base_backoff_seconds)
        walk(MAILBOX, state, outcome.signal)
        if outcome.delay_seconds is None:
            why = f"max_retries exhausted: {reason}" if reason else "max_retries exhausted"
            self._database.run(SQL.bury, (why, at_ms // 1000, outcome.attempts, each.id))
            self._database.run(SQL.note_burial, (each.session, each.msg_id))
        else:
            due_at_ms = at_ms + round(outcome.delay_seconds * 1000)
            self._database.run(SQL.retry, (outcome.attempts, due_at_ms, each.id))
            self._database.run(SQL.count_pending, (1, each.session))

    def _end(self, ended: Sequence[Stored], signal: MailboxSignal) -> None:
        if not ended:
            return
        ends = [(walk(MAILBOX, each.state, signal)[-1].value, each.session, each.msg_id) for each in ended]
        self._database.run_many(SQL.drop_message, [(each.id,) for each in ended])
        self._database.run_many(SQL.note_end, ends)
        waited = [(-1, each.session) for each in ended if each.state is MailboxState.PENDING]
        if waited:
            self._database.run_many(SQL.count_pending, waited)

    def _in_flight(self, session_name: str, msg_ids: Sequence[str], signal: MailboxSignal) -> list[Stored]:
        """The messages that the signal moves. Those it leaves as they are (a repeat) are left out; others refuse it."""
        session = self._known_session(session_name)
        moved: list[Stored] = []
        for msg_id in dict.fromkeys(msg_ids):
            row = None if session is None else self._database.row(SQL.living, (session, msg_id))
            each = None if row is None else stored(row)
            state = self._look_up(session_name, msg_id)[0] if each is None else each.state
            if walk(MAILBOX, state, signal) and each is not None:
                moved.append(each)
        return moved

    def _look_up(self, session_name: str, msg_id: str) -> tuple[MailboxState, Stored | None]:
        session = self._known_session(session_name)
        row = None if session is None else self._database.row(SQL.remembered, (session, msg_id))
        if row is None or row[1] == "purged":
            raise Refusal(Code.NOT_FOUND, f"there is no message {msg_id} in the mailbox of {session_name}")
        message, ended = row
        if message is None:
            return MailboxState(ended), None
        found = stored(self._database.row(SQL.message, (message,)))
        return found.state, found

    def _found(self, session_name: str, msg_id: str) -> Stored:
        _, found = self._look_up(session_name, msg_id)
        if found is None:
            raise Refusal(Code.NOT_FOUND, f"message {msg_id} is not there any more; start again with the first page")
        return found

    def _session(self, name: str) -> int:
        session = self._known_session(name)
        return self._database.value(SQL.add_session, (name,)) if session is None else session

    def _known_session(self, name: str) -> int | None:
        return self._database.value(SQL.session_id, (name,))


def _message(body: bytes, attempt: int) -> MailboxMessage:
    return replace(decode_message(body, max_bytes=_NO_LIMIT), attempt=attempt)
