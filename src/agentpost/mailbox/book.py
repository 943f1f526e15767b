"""The operations of a mailbox on its file, each inside a transaction that somebody else began.

What is refused before the first write leaves the transaction as it was. A batch of acks may be refused after it: then
whoever began the transaction rolls it back.
"""

from array import array
from collections.abc import Mapping, Sequence

from msgspec import Struct

from agentpost.mailbox.ending import Endings
from agentpost.mailbox.fitting import ALWAYS_FIT, that_fit
from agentpost.mailbox.interface import MailboxPolicy
from agentpost.mailbox.looking import Looks
from agentpost.mailbox.picking import Picked, Picker, Stored, stored
from agentpost.mailbox.statements import SQL
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.machine import walk
from agentpost.protocol.mailbox import (
    MAILBOX,
    EnqueueAck,
    MailboxMessage,
    MailboxSignal,
    restored_message,
)
from agentpost.store.database import Database, Row

__all__ = ["Book"]


class _Line(Struct):
    """The line of a session, while messages are put into it."""

    session: int
    pending: int
    # Of any message in the file.
    last_number: int
    # Of the last message of a sender.
    ranks: dict[str, int]
    added: int = 0


class Book:
    """The operations of one connection. `now_ms` is the caller's clock."""

    def __init__(self, database: Database, policy: MailboxPolicy) -> None:
        self._database = database
        self._policy = policy
        self.endings = Endings(database, policy)
        self.looks = Looks(database, self.endings)

    def enqueue(self, messages: Sequence[MailboxMessage], bodies: Sequence[bytes], *, now_ms: int) -> list[EnqueueAck]:
        """Queue the messages whose ids are new. `bodies` are the same messages as they are kept."""
        database = self._database
        number = 0
        expires_at_ms = now_ms + round(self._policy.ttl_seconds * 1000)
        lines: dict[str, _Line] = {}
        rows: list[tuple[object, ...]] = []
        spots: list[tuple[int, int, int]] = []
        acks: list[EnqueueAck] = []
        for message, body in zip(messages, bodies, strict=True):
            line = lines.get(message.to)
            if line is None:
                line = lines[message.to] = self._line(message)
                number = max(number, line.last_number)
            before = database.changed_rows()
            database.run(SQL.remember, (line.session, message.msg_id, number + 1, now_ms))
            queued = database.changed_rows() != before
            if queued:
                number += 1
                line.added += 1
                rank = self._rank(line, message)
                spots.append((line.session, rank, number))
                rows.append(
                    (
                        number,
                        line.session,
                        message.msg_id,
                        message.sender,
                        rank,
                        message.created_at,
                        # MBX-5: the mailbox counts its own deliveries, whatever the sender says.
                        0,
                        expires_at_ms,
                        body,
                    )
                )
            acks.append(EnqueueAck(msg_id=message.msg_id, queued=queued, pending=line.pending + line.added))
        if rows:
            database.run_many(SQL.add_message, rows)
            database.run_many(SQL.line_up, spots)
            for line in lines.values():
                database.run(SQL.count_pending, (line.added, line.session))
        return acks

    def _line(self, first: MailboxMessage) -> "_Line":
        """The line of the session that a message is for, which is made for its first message."""
        values = (first.to, first.sender)
        row = self._database.row(SQL.line_to_join, values)
        if row is None:
            self._database.run(SQL.add_line, (self._database.value(SQL.add_session, (first.to,)),))
            row = self._database.row(SQL.line_to_join, values) or _no_row()
        session, pending, last_number, last_rank = row
        return _Line(session, pending, last_number, {first.sender: last_rank or 0})

    def _rank(self, line: "_Line", message: MailboxMessage) -> int:
        last = line.ranks.get(message.sender)
        if last is None:
            last = self._database.value(SQL.last_rank_of_pair, (line.session, message.sender)) or 0
        rank = line.ranks[message.sender] = max(message.created_at, last)
        return rank

    def dequeue(self, session_name: str, limit: int, *, now_ms: int) -> list[MailboxMessage]:
        fitting = limit
        if limit > ALWAYS_FIT:
            sizes = self._database.rows(SQL.sizes_in_line, (session_name, limit))
            fitting = len(that_fit(sizes, lambda row: row[0]))
        rows = self._database.rows(SQL.next_in_line, (session_name, now_ms, fitting))
        # The last column says whether there may be more to it than that these are the next.
        if not rows or any(row[-1] for row in rows):
            return self._take_with_care(session_name, limit, now_ms)
        self._hand_out([stored(row) for row in rows], now_ms)
        return [restored_message(row[9], attempt=row[5]) for row in rows]

    def _take_with_care(self, session_name: str, limit: int, now_ms: int) -> list[MailboxMessage]:
        """Hand out the next messages where time has done something, or a sender may be held back."""
        self.endings.sweep_if_due(now_ms=now_ms)
        session = self.looks.session_id(session_name)
        if session is None:
            return []
        picker = Picker(self._database, session, now_ms=now_ms)
        taken: list[Picked] = []
        fit = True
        while fit and len(taken) < limit and (found := picker.next_messages(limit - len(taken))):
            fitting = that_fit([*taken, *found], lambda each: each.body_bytes)[len(taken) :]
            fit = len(fitting) == len(found)
            if fitting:
                self._hand_out([each.stored for each in fitting], now_ms)
            taken += fitting
        if not taken:
            return []
        tried = [(each.stored.id,) for each in taken if each.stored.retry_at_ms is not None]
        self._database.run_many(SQL.no_retry, tried)
        bodies = dict(self._database.rows_packed(SQL.bodies, (), array("q", [each.stored.id for each in taken])))
        return [restored_message(bodies[each.stored.id], attempt=each.stored.attempt) for each in taken]

    def _hand_out(self, living: Sequence[Stored], now_ms: int) -> None:
        due_at_ms = now_ms + round(self._policy.in_flight_timeout_seconds * 1000)
        moves: list[tuple[int, ...]] = []
        notes: list[tuple[object, ...]] = []
        for found in living:
            # No ack comes in time after a message has expired.
            until_ms = min(due_at_ms, found.expires_at_ms)
            moves.append(found.move(until_ms))
            notes.append((until_ms, found.session, found.msg_id))
        self._database.run_many(SQL.move_in_line, moves)
        self._database.run_many(SQL.note_in_flight, notes)
        self._database.run(SQL.count_pending, (-len(living), living[0].session))

    def ack(self, session_name: str, msg_ids: Sequence[str], *, now_ms: int) -> None:
        # One ack is one statement, and needs no transaction of several.
        is_alone = len(msg_ids) == 1 and not self.endings.has_acked_to_remove
        if not is_alone:
            self._database.begin_if_none()
        for msg_id in msg_ids:
            if not self.endings.ack(session_name, msg_id, now_ms=now_ms):
                # Not in flight, or no longer: a repeat changes nothing, anything else refuses.
                self._database.begin_if_none()
                walk(MAILBOX, self.looks.look_up(session_name, msg_id, now_ms)[0], MailboxSignal.ACK)
        if not is_alone:
            self.endings.remove_acked()

    def nack(self, session_name: str, msg_id: str, reason: str, *, now_ms: int) -> None:
        each = self._moved(session_name, msg_id, MailboxSignal.NACK, now_ms)
        if each is not None:
            self.endings.nack(each, reason, at_ms=now_ms)

    def extend(self, session_name: str, msg_id: str, seconds: float, *, now_ms: int) -> None:
        # Only what may be acked now may have more time; a repeat of an ack has nothing to extend.
        each = self._moved(session_name, msg_id, MailboxSignal.ACK, now_ms)
        if each is None:
            raise Refusal(Code.INVALID_TRANSITION, f"message {msg_id} is acked already")
        until_ms = min(now_ms + round(seconds * 1000), each.expires_at_ms)
        self._database.run(SQL.move_in_line, each.move(until_ms))
        self._database.run(SQL.note_in_flight, (until_ms, each.session, each.msg_id))

    def give_back(self, session_name: str, handed_out: Mapping[str, int]) -> None:
        """Undo what is left of hand-overs that nobody heard of; the attempt tells them from later ones."""
        session = self.looks.session_id(session_name)
        for msg_id, attempt in handed_out.items():
            ended, message, until_ms = self._database.row(SQL.remembered, (session, msg_id)) or ("", None, None)
            if ended is None and until_ms is not None:
                each = stored(self._database.row(SQL.message, (message,)))
                if each.attempt == attempt:
                    self.endings.put_back(each)

    def purge(self, session_name: str) -> None:
        session = self.looks.session_id(session_name)
        if session is not None:
            for step in (
                SQL.purge_in_flight,
                SQL.purge_line,
                SQL.no_pending,
                SQL.note_ends_of_living,
                SQL.purge_messages,
            ):
                self._database.run(step, (session,))

    def purge_dead_letter(self, session_name: str) -> None:
        session = self.looks.session_id(session_name)
        if session is not None:
            self._database.run(SQL.note_ends_of_dead, (session,))
            self._database.run(SQL.purge_dead, (session,))

    def _moved(self, session_name: str, msg_id: str, signal: MailboxSignal, now_ms: int) -> Stored | None:
        """The message that the signal moves; None if it leaves it as it is (a repeat). What it cannot move refuses."""
        state, message = self.looks.look_up(session_name, msg_id, now_ms)
        return stored(self._database.row(SQL.message, (message,))) if walk(MAILBOX, state, signal) else None


def _no_row() -> Row:
    raise LookupError("a row that was just added is not there")
