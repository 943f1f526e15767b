"""The operations of a mailbox on its file, each inside a transaction that somebody else began.

Whatever can be refused is refused before the first write, so a refusal leaves the transaction as it was.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from agentpost.mailbox.interface import MailboxPolicy
from agentpost.mailbox.picking import Picked, Picker, Stored, stored
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
    nack_outcome,
    restored_message,
)
from agentpost.store.database import Database, Row

__all__ = ["LOOKED_BACK_AT", "Book"]

# What one call does of the sweeper's work at most, so that no caller waits for a day's leftovers.
_SWEPT_A_CALL: Final = 256
# How many ids one look for old ones passes.
LOOKED_BACK_AT: Final = 4_096
_START: Final = (0, "")
_SILENCE: Final = "no ack in time"


class Book:
    """The operations of one connection. `now_ms` is the caller's clock."""

    def __init__(self, database: Database, policy: MailboxPolicy) -> None:
        self._database = database
        self._policy = policy
        # How far the look for ids that may be forgotten has come.
        self._looked_back_to: tuple[int, str] = _START

    def enqueue(self, messages: Sequence[MailboxMessage], bodies: Sequence[bytes], *, now_ms: int) -> list[EnqueueAck]:
        """Queue the messages whose ids are new. `bodies` are the same messages as they are kept."""
        of_session: dict[str, dict[str, tuple[MailboxMessage, bytes]]] = {}
        for message, body in zip(messages, bodies, strict=True):
            # Of the same id twice in a batch, the first is queued.
            of_session.setdefault(message.to, {}).setdefault(message.msg_id, (message, body))
        pending: dict[str, int] = {}
        is_new: set[tuple[str, str]] = set()
        for name, group in of_session.items():
            fresh, pending[name] = self._enqueue_group(name, group, now_ms)
            is_new.update((name, msg_id) for msg_id in fresh)
        acks: list[EnqueueAck] = []
        for message in messages:
            key = (message.to, message.msg_id)
            queued = key in is_new
            if queued:
                is_new.remove(key)
                pending[message.to] += 1
            acks.append(EnqueueAck(msg_id=message.msg_id, queued=queued, pending=pending[message.to]))
        return acks

    def _enqueue_group(
        self, name: str, group: dict[str, tuple[MailboxMessage, bytes]], now_ms: int
    ) -> tuple[Sequence[str], int]:
        """Queue the messages of one session whose ids are new: gives those, and how many were pending before."""
        database = self._database
        row = database.row(SQL.session_and_last, (name,))
        if row is None:
            self._database.value(SQL.add_session, (name,))
            row = database.row(SQL.session_and_last, (name,)) or _no_row()
        session, pending, last_id = row
        seen = {row[0] for row in database.rows_packed(SQL.seen, (session,), _packed(group))}
        fresh = [msg_id for msg_id in group if msg_id not in seen]
        if not fresh:
            return fresh, pending
        expires_at_ms = now_ms + round(self._policy.ttl_seconds * 1000)
        ranks: dict[str, int] = {}
        remembered: list[tuple[object, ...]] = []
        rows: list[tuple[object, ...]] = []
        for number, msg_id in enumerate(fresh, (last_id or 0) + 1):
            message, body = group[msg_id]
            sender, created_at = message.sender, message.created_at
            if sender not in ranks:
                ranks[sender] = database.value(SQL.last_rank_of_pair, (session, sender)) or 0
            rank = ranks[sender] = max(created_at, ranks[sender])
            remembered.append((session, msg_id, number, now_ms))
            rows.append((number, session, msg_id, sender, rank, created_at, message.attempt, expires_at_ms, body))
        database.run_many(SQL.remember, remembered)
        database.run_many(SQL.add_message, rows)
        database.run(SQL.count_pending, (len(fresh), session))
        return fresh, pending

    def dequeue(self, session_name: str, limit: int, *, now_ms: int) -> list[MailboxMessage]:
        self.sweep(now_ms=now_ms)
        session = self._known_session(session_name)
        if session is None:
            return []
        picker = Picker(self._database, session, now_ms=now_ms)
        due_at_ms = now_ms + round(self._policy.in_flight_timeout_seconds * 1000)
        taken: list[Picked] = []
        while len(taken) < limit and (found := picker.next_messages(limit - len(taken))):
            # The sweep above may have left some: nobody is handed what has expired.
            self._end([each.stored for each in found if each.stored.expires_at_ms <= now_ms], MailboxSignal.TTL)
            living = [each for each in found if each.stored.expires_at_ms > now_ms]
            if living:
                self._database.run_packed(SQL.hand_out, (due_at_ms,), _ids([each.stored for each in living]))
            taken += living
        if taken:
            self._database.run(SQL.count_pending, (-len(taken), session))
        return [restored_message(each.body, attempt=each.stored.attempt) for each in taken]

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
            rows += self._page(session, MailboxState.IN_FLIGHT, start, limit)
            start = None
        if len(rows) < limit:
            rows += self._page(session, MailboxState.PENDING, start, limit - len(rows))
        return rows

    def _page(self, session: int, state: MailboxState, start: Stored | None, limit: int) -> list[MessageSummary]:
        rows = self._database.rows(SQL.page, (session, state.value, *_place(start), limit))
        return [
            MessageSummary(msg_id=row[0], sender=row[1], created_at=row[2], attempt=row[3], state=state) for row in rows
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
        start = None if after is None else self._found(session_name, after)
        rows = self._database.rows(SQL.dead_page, (session, *_place(start), limit))
        return [
            DeadLetterEntry.of(
                restored_message(body, attempt=attempt), reason=reason, failed_at=failed_at, attempts=attempts
            )
            for body, attempt, reason, failed_at, attempts, _, _ in rows
        ]

    def purge_dead_letter(self, session_name: str) -> None:
        session = self._known_session(session_name)
        if session is not None:
            self._database.run(SQL.note_ends_of_dead, (session,))
            self._database.run(SQL.purge_dead, (session,))

    def sweep(self, *, now_ms: int, limit: int = _SWEPT_A_CALL) -> int:
        """End what outlived its time, and nack what nobody acked in time (MBX-6). Gives how many there were."""
        if not self._database.value(SQL.is_time_for_sweep, (now_ms,)):
            return 0
        # The TTL first: what is past both ends as expired, as it would have in time.
        expired = [stored(row) for row in self._database.rows(SQL.past_ttl, (now_ms, limit))]
        self._end(expired, MailboxSignal.TTL)
        silent = [stored(row) for row in self._database.rows(SQL.overdue_in_flight, (now_ms, limit))]
        for each in silent:
            # As if it had been nacked when its time was over, not when somebody looked.
            self._nack(each, _SILENCE, at_ms=each.due_at_ms, signal=MailboxSignal.IN_FLIGHT_TIMEOUT)
        return len(expired) + len(silent)

    def forget(self, *, now_ms: int, look_at: int = LOOKED_BACK_AT) -> int:
        """Forget ids that were seen longer ago than the retention and whose messages are gone (MBX-3).

        Looks at the next `look_at` ids from where the last look ended, and starts again behind the last of all: an
        index by age would cost every enqueue more than this walk does.
        """
        before = self._database.changed_rows()
        seen_before_ms = now_ms - round(self._policy.retention_seconds * 1000)
        start = self._looked_back_to
        end = self._database.row(SQL.end_of_look_back, (*start, look_at - 1))
        if end is None:
            self._database.run(SQL.forget_after, (*start, seen_before_ms))
        else:
            self._database.run(SQL.forget_between, (*start, *end, seen_before_ms))
        self._looked_back_to = _START if end is None else (end[0], end[1])
        return self._database.changed_rows() - before

    def waiting_abroad(self, *, now_ms: int) -> list[str]:
        """The sessions with an @ in their names for which something is pending."""
        self.sweep(now_ms=now_ms)
        return [name for (name,) in self._database.rows(SQL.waiting_abroad)]

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
        of_end: dict[tuple[str, int], list[Stored]] = {}
        for each in ended:
            end = walk(MAILBOX, each.state, signal)[-1].value
            of_end.setdefault((end, each.session), []).append(each)
        for (end, session), group in of_end.items():
            self._database.run_packed(SQL.drop_messages, (), _ids(group))
            self._database.run_packed(SQL.note_ends, (end, session), _packed(each.msg_id for each in group))
            waited = sum(each.state is MailboxState.PENDING for each in group)
            if waited:
                self._database.run(SQL.count_pending, (-waited, session))

    def _in_flight(self, session_name: str, msg_ids: Sequence[str], signal: MailboxSignal) -> list[Stored]:
        """The messages that the signal moves. Those it leaves as they are (a repeat) are left out; others refuse it."""
        session = self._known_session(session_name)
        rows = [] if session is None else self._database.rows_packed(SQL.living, (session,), _packed(msg_ids))
        living = {each.msg_id: each for each in map(stored, rows)}
        for msg_id in msg_ids:
            each = living.get(msg_id)
            walk(MAILBOX, self._look_up(session_name, msg_id)[0] if each is None else each.state, signal)
        return list(living.values())

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


def _place(start: Stored | None) -> tuple[int, int]:
    """Where the page after this message begins."""
    return (-1, -1) if start is None else (start.rank, start.id)


def _packed(names: Iterable[str]) -> list[bytes]:
    return [name.encode() for name in names]


def _ids(messages: Iterable[Stored]) -> "array[int]":
    return array("q", [each.id for each in messages])


def _no_row() -> Row:
    raise LookupError("a session that was just added is not there")
