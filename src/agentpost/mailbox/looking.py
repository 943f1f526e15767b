"""What can be seen of a mailbox file, inside a transaction that somebody else began."""

from array import array
from collections.abc import Sequence
from typing import Final

from agentpost.mailbox.ending import Endings
from agentpost.mailbox.fitting import size_of_summary, that_fit
from agentpost.mailbox.picking import Stored, stored
from agentpost.mailbox.statements import SQL
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import DeadLetterEntry, MailboxState, MessageSummary, restored_message
from agentpost.store.database import Database, Row

__all__ = ["Looks"]

# Where the first page begins.
_START: Final = (-1, -1)


class Looks:
    """Looks at the file of one connection. `now_ms` is the caller's clock."""

    def __init__(self, database: Database, endings: Endings) -> None:
        self._database = database
        self._endings = endings

    def waiting_abroad(self, *, now_ms: int) -> list[str]:
        """The sessions with an @ in their names for which something is pending."""
        self._endings.sweep_if_due(now_ms=now_ms)
        return [name for (name,) in self._database.rows(SQL.waiting_abroad)]

    def state_of(self, session_name: str, msg_id: str, *, now_ms: int) -> tuple[MailboxState | None, str | None]:
        """Where a message is in its life, and why it is a dead letter; None for what is purged or never was."""
        try:
            state, message = self.look_up(session_name, msg_id, now_ms)
        except Refusal:
            return None, None
        dead = None if message is None else self._database.row(SQL.dead_letter, (message,))
        return state, None if dead is None else dead[2]

    def look_up(self, session_name: str, msg_id: str, now_ms: int) -> tuple[MailboxState, int | None]:
        """The state of a message as of now, and its number if it, or its dead letter, is there."""
        session = self.session_id(session_name)
        row = None if session is None else self._database.row(SQL.remembered, (session, msg_id))
        if row is None or row[0] == "purged":
            raise Refusal(Code.NOT_FOUND, f"there is no message {msg_id} in the mailbox of {session_name}")
        ended, message, until_ms = row
        if ended is not None:
            state = MailboxState(ended)
            return state, message if state is MailboxState.DEAD_LETTER else None
        if self._endings.end_if_over(stored(self._database.row(SQL.message, (message,))), now_ms=now_ms):
            return self.look_up(session_name, msg_id, now_ms)
        return MailboxState.PENDING if until_ms is None else MailboxState.IN_FLIGHT, message

    def peek(self, session_name: str, *, after: str | None, limit: int, now_ms: int) -> list[MessageSummary]:
        session = self.session_id(session_name)
        if session is None:
            return []
        start = None if after is None else self._living(session_name, after, now_ms)
        rows: list[MessageSummary] = []
        if start is None or start.state is MailboxState.IN_FLIGHT:
            rows += self._page(SQL.page_in_flight, MailboxState.IN_FLIGHT, (session, *_place(start), now_ms, limit))
            start = None
        if len(rows) < limit:
            place = (session, *_place(start), now_ms, limit - len(rows))
            rows += self._page(SQL.page_pending, MailboxState.PENDING, place)
        return that_fit(rows, size_of_summary)

    def _page(self, sql: str, state: MailboxState, values: Sequence[int]) -> list[MessageSummary]:
        return [
            MessageSummary(msg_id=row[0], sender=row[1], created_at=row[2], attempt=row[3], state=state)
            for row in self._database.rows(sql, values)
        ]

    def peek_dead_letter(
        self, session_name: str, *, after: str | None, limit: int, now_ms: int
    ) -> list[DeadLetterEntry]:
        session = self.session_id(session_name)
        if session is None:
            return []
        start = _START if after is None else self._dead(session_name, after, now_ms)[:2]
        page = that_fit(self._database.rows(SQL.page_dead, (session, *start, limit)), lambda row: row[1])
        if not page:
            return []
        rows = self._database.rows_packed(SQL.dead_letters, (), array("q", [row[0] for row in page]))
        return [
            DeadLetterEntry.of(
                restored_message(body, attempt=attempt), reason=reason, failed_at=failed_at, attempts=attempts
            )
            for body, attempt, reason, failed_at, attempts in rows
        ]

    def _living(self, session_name: str, msg_id: str, now_ms: int) -> Stored:
        state, message = self.look_up(session_name, msg_id, now_ms)
        if message is None or state is MailboxState.DEAD_LETTER:
            raise _not_there(msg_id)
        return stored(self._database.row(SQL.message, (message,)))

    def _dead(self, session_name: str, msg_id: str, now_ms: int) -> Row:
        state, message = self.look_up(session_name, msg_id, now_ms)
        row = self._database.row(SQL.dead_letter, (message,)) if state is MailboxState.DEAD_LETTER else None
        if row is None:
            raise _not_there(msg_id)
        return row

    def session_id(self, name: str) -> int | None:
        return self._database.value(SQL.session_id, (name,))


def _place(start: Stored | None) -> tuple[int, int]:
    """Where the page after this message begins."""
    return _START if start is None else (start.rank, start.id)


def _not_there(msg_id: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"message {msg_id} is not there any more; start again with the first page")
