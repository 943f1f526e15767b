"""How messages of a mailbox file leave it: acked, nacked until they are dead letters, expired, forgotten.

Works inside a transaction that somebody else began.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from agentpost.mailbox.interface import MailboxPolicy
from agentpost.mailbox.picking import Stored, stored
from agentpost.mailbox.statements import SQL
from agentpost.protocol.machine import walk
from agentpost.protocol.mailbox import MAILBOX, MailboxSignal, MailboxState, nack_outcome
from agentpost.store.database import Database

__all__ = ["LOOKED_BACK_AT", "Endings"]

# What one call does of the sweeper's work at most, so that no caller waits for a day's leftovers.
_SWEPT_A_CALL: Final = 256
# How many ids, or messages, one look for old ones passes.
LOOKED_BACK_AT: Final = 4_096
# How many acked messages are removed together. Until then enqueues may meet them, so they are few.
_REMOVED_TOGETHER: Final = 16
_START: Final = (0, "")
_SILENCE: Final = "no ack in time"


class Endings:
    def __init__(self, database: Database, policy: MailboxPolicy) -> None:
        self._database = database
        self._policy = policy
        # Acked here and not removed yet: until when each was in flight, and its number. Who is killed leaves them to
        # the sweep, which finds them when their time in flight is over.
        self._acked: list[tuple[int, int]] = []

    def ack(self, session_name: str, msg_id: str, *, now_ms: int) -> bool:
        """Ack a message that is in flight; False if it is not. The one page that says so is all that changes."""
        # The whole answer is read: a commit that fails has to be heard of.
        found = self._database.rows(SQL.ack, (session_name, msg_id, now_ms))
        for message, until_ms in found:
            self._acked.append((until_ms, message))
        return bool(found)

    @property
    def has_acked_to_remove(self) -> bool:
        """Whether it is worth it: removed together, messages share the pages that change."""
        return len(self._acked) >= _REMOVED_TOGETHER

    def remove_acked(self) -> None:
        """Remove what was acked here."""
        if self._acked:
            self._database.run_packed(SQL.drop_ended_messages, (), array("q", [message for _, message in self._acked]))
            self._database.run_many(SQL.leave_line_ended, self._acked)
            self._acked = []

    def nack(self, each: Stored, reason: str, *, at_ms: int, signal: MailboxSignal = MailboxSignal.NACK) -> None:
        state = walk(MAILBOX, each.state, signal)[-1]
        outcome = nack_outcome(each.attempt, self._policy.max_retries, self._policy.base_backoff_seconds)
        walk(MAILBOX, state, outcome.signal)
        if outcome.delay_seconds is None:
            why = f"max_retries exhausted: {reason}" if reason else "max_retries exhausted"
            self._database.run(SQL.bury, (why, at_ms // 1000, outcome.attempts, each.id))
            self._database.run(SQL.note_burial, (each.session, each.msg_id))
            self._remove([each])
        else:
            retry_at_ms = at_ms + round(outcome.delay_seconds * 1000)
            self._database.run(SQL.retry, (outcome.attempts, retry_at_ms, each.id))
            self.put_back(each)

    def put_back(self, each: Stored) -> None:
        """Out of flight, into the line of its session, where it stood."""
        self._database.run(SQL.move_in_line, each.move(None))
        self._database.run(SQL.note_in_flight, (None, each.session, each.msg_id))
        self._database.run(SQL.count_pending, (1, each.session))

    def end(self, ended: Sequence[Stored], signal: MailboxSignal) -> None:
        if not ended:
            return
        ends = [(walk(MAILBOX, each.state, signal)[-1].value, each.session, each.msg_id) for each in ended]
        self._database.run_many(SQL.note_end, ends)
        waited = [(-1, each.session) for each in ended if each.state is MailboxState.PENDING]
        self._database.run_many(SQL.count_pending, waited)
        self._remove(ended)

    def _remove(self, gone: Sequence[Stored]) -> None:
        self._database.run_many(SQL.leave_line, [each.spot for each in gone])
        self._database.run_packed(SQL.drop_messages, (), array("q", [each.id for each in gone]))

    def sweep_if_due(self, *, now_ms: int) -> int:
        return self.sweep(now_ms=now_ms) if self._database.value(SQL.is_time_for_sweep, (now_ms,)) else 0

    def sweep(self, *, now_ms: int, limit: int = _SWEPT_A_CALL) -> int:
        """End what outlived its time, and nack what nobody acked in time (MBX-6). Gives how many there were."""
        # The TTL first: what is past both ends as expired, as it would have in time. The oldest expire first, unless
        # the clock was set back or a process has another TTL: `look_back` finds those.
        expired = self._past_ttl(0, limit, now_ms=now_ms)
        self.end(expired, MailboxSignal.TTL)
        rows = self._database.rows(SQL.overdue_in_flight, (now_ms, limit))
        acked = [stored(row) for row in rows if row[9]]
        if acked:
            self._remove(acked)
        for row in rows:
            if not row[9]:
                self.end_if_over(stored(row), now_ms=now_ms)
        return len(expired) + len(rows)

    def end_if_over(self, each: Stored, *, now_ms: int) -> bool:
        """End a message that outlived its time, or nack it if nobody acked it in time; False if neither."""
        if each.expires_at_ms <= now_ms:
            self.end([each], MailboxSignal.TTL)
        elif each.in_flight_until_ms is not None and each.in_flight_until_ms <= now_ms:
            # As if it had been nacked when its time was over, not when somebody looked.
            self.nack(each, _SILENCE, at_ms=each.in_flight_until_ms, signal=MailboxSignal.IN_FLIGHT_TIMEOUT)
        else:
            return False
        return True

    def _past_ttl(self, after: int, look_at: int, *, now_ms: int) -> list[Stored]:
        return [stored(row) for row in self._database.rows(SQL.past_ttl, (after, look_at, now_ms))]

    def look_back(self, *, now_ms: int, look_at: int = LOOKED_BACK_AT) -> int:
        """Expire messages behind others that expire later, and forget old ids. Gives how many there were.

        Looks at the next `look_at` from where the last look ended, whoever that was, and starts again behind the last
        of all: an index by age would cost every call more than this walk does.
        """
        start = self._database.value(SQL.walk)
        expired = self._past_ttl(start, look_at, now_ms=now_ms)
        end = self._database.value(SQL.end_of_walk, (start, look_at - 1)) or 0
        if end != start:
            self._database.run(SQL.walk_through_messages, (end,))
        self.end(expired, MailboxSignal.TTL)
        return len(expired) + self.forget(now_ms=now_ms, look_at=look_at)

    def forget(self, *, now_ms: int, look_at: int = LOOKED_BACK_AT) -> int:
        """Forget ids that were seen longer ago than the retention and whose messages are gone (MBX-3)."""
        before = self._database.changed_rows()
        seen_before_ms = now_ms - round(self._policy.retention_seconds * 1000)
        _, *start = self._database.row(SQL.walk) or (0, *_START)
        end = self._database.row(SQL.end_of_look_back, (*start, look_at - 1))
        if end is None:
            self._database.run(SQL.forget_after, (*start, seen_before_ms))
        else:
            self._database.run(SQL.forget_between, (*start, *end, seen_before_ms))
        forgotten = self._database.changed_rows() - before
        if start != list(end or _START):
            self._database.run(SQL.walk_through_ids, end or _START)
        return forgotten
