"""Reading the outbox: its end, its events in order, and one event by its id. What writes it is in `transaction`."""

from typing import Final

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.store.database import Database
from agentpost.store.queries import SQL
from agentpost.store.values import Head, OutboxSlice, StoredEvent

__all__ = ["find_event", "floor", "head", "read_outbox"]

_ROWS_A_READ: Final = 64


def head(database: Database) -> Head:
    row = database.row(SQL.outbox_head)
    return floor(database) if row is None else Head(seq=row[0], chain=row[1])


def floor(database: Database) -> Head:
    """How far the outbox was pruned."""
    row = database.row(SQL.outbox_floor)
    if row is None:
        raise Refusal(Code.STORAGE_CORRUPT, "the database does not say which node it belongs to")
    return Head(seq=row[0], chain=row[1])


def read_outbox(database: Database, after_seq: int, *, limit: int, max_bytes: int) -> OutboxSlice:
    events = _events(database, after_seq, limit, max_bytes)
    pruned = floor(database)
    return OutboxSlice(after_seq=after_seq, floor_seq=pruned.seq, floor_chain=pruned.chain, events=tuple(events))


def _events(database: Database, after_seq: int, limit: int, max_bytes: int) -> list[StoredEvent]:
    events: list[StoredEvent] = []
    size, at = 0, after_seq
    while len(events) < limit:
        rows = database.rows(SQL.outbox_slice, (at, min(_ROWS_A_READ, limit - len(events))))
        for seq, chain, body in rows:
            size += len(body)
            # A compaction between two reads takes events away; a slice has no hole.
            if events and (size > max_bytes or seq != events[-1].seq + 1):
                return events
            events.append(StoredEvent(seq=seq, chain=chain, raw=body))
        if len(rows) < _ROWS_A_READ:
            break
        at = events[-1].seq
    return events


def find_event(database: Database, event_id: EventId) -> StoredEvent | None:
    """The latest send of an event. That of a dead letter is there until somebody purges it (RTY-7)."""
    row = database.row(SQL.outbox_event, (event_id,)) or database.row(SQL.dead_letter_event, (event_id,))
    return StoredEvent(seq=row[0], chain=row[1], raw=row[2]) if row else None
