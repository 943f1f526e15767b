"""Which message is next (MBX-4, MBX-8): the oldest whose sender has no earlier one that waits for another try.

Looks at the first few in order, which is nearly always enough. Where a sender is held back that has written most of
what is there, it asks sender by sender instead: the cost follows the senders, not the messages.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from agentpost.mailbox.statements import SQL
from agentpost.protocol.mailbox import MailboxState
from agentpost.store.database import Database, Row

__all__ = ["Picked", "Picker", "Stored", "stored"]

_LOOK_AHEAD: Final = 64
_BEYOND_ALL: Final = 2**63 - 1
_IN_FLIGHT: Final = 0


class Stored(Struct, frozen=True, gc=False):
    """A living message as the file has it."""

    id: int
    session: int
    msg_id: str
    sender: str
    rank: int
    attempt: int
    retry_at_ms: int | None
    expires_at_ms: int
    in_flight_until_ms: int | None

    @property
    def state(self) -> MailboxState:
        return MailboxState.PENDING if self.in_flight_until_ms is None else MailboxState.IN_FLIGHT

    @property
    def spot(self) -> tuple[int, int, int]:
        """Where it stands: the line, the place in it, and its own number."""
        if self.in_flight_until_ms is None:
            return self.session, self.rank, self.id
        return _IN_FLIGHT, self.in_flight_until_ms, self.id

    def move(self, in_flight_until_ms: int | None) -> tuple[int, int, int, int, int]:
        """From where it stands into flight until then, or into the line of its session."""
        if in_flight_until_ms is None:
            return self.session, self.rank, *self.spot
        return _IN_FLIGHT, in_flight_until_ms, *self.spot


class Picked(Struct, frozen=True, gc=False):
    stored: Stored
    body_bytes: int


def stored(row: Row | None) -> Stored:
    if row is None:
        raise LookupError("a message is remembered and not there")
    return Stored(*row[:9])


def _picked(row: Row) -> Picked:
    return Picked(Stored(*row[:9]), row[9])


class Picker:
    """Picks from one session as of one moment, inside one transaction."""

    def __init__(self, database: Database, session: int, *, now_ms: int) -> None:
        self._database = database
        self._session = session
        self._now_ms = now_ms
        # From which message on a sender is held back; nearly always empty.
        self._held: dict[str, int] = dict(database.rows(SQL.holding, (session, now_ms)))

    def next_messages(self, limit: int) -> list[Picked]:
        """The next ones that live, in order, at most `limit`; what was picked before must not be pending any more."""
        wanted = limit if not self._held else limit + _LOOK_AHEAD
        first = [_picked(row) for row in self._database.rows(SQL.first_pending, (self._session, self._now_ms, wanted))]
        free = [each for each in first if not self._is_held(each.stored)]
        if free or len(first) < wanted:
            return free[:limit]
        return sorted(self._first_of_each_sender(limit), key=lambda each: (each.stored.rank, each.stored.id))[:limit]

    def _is_held(self, each: Stored) -> bool:
        return each.id >= self._held.get(each.sender, _BEYOND_ALL)

    def _first_of_each_sender(self, limit: int) -> Iterator[Picked]:
        sender = ""
        while (found := self._database.value(SQL.next_sender, (self._session, sender))) is not None:
            sender = found
            before_id = self._held.get(sender, _BEYOND_ALL)
            where = (self._session, sender, before_id, self._now_ms, limit)
            for row in self._database.rows(SQL.pending_of_sender, where):
                yield _picked(row)
