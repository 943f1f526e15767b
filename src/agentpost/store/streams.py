"""The streams of the outbox: for each gateway that reads it, the events that name it, with a chain of their own.

Knows nothing of who reads, or how: a link, the own node for its local mail, or a mirror.
"""

from collections.abc import Collection, Sequence
from typing import Final

from agentpost.store.database import Database
from agentpost.store.outbox import head
from agentpost.store.queries import SQL
from agentpost.store.values import CHAIN_START, Head, StreamEvent, StreamSlice

__all__ = [
    "extend_streams",
    "first_for_others",
    "oldest_unread",
    "prune_streams",
    "read_stream",
    "stream_end",
    "stream_floor",
]

_ROWS_A_READ: Final = 64


def extend_streams(database: Database, rows: Sequence[tuple[str, int, bytes]]) -> None:
    """Write which events (seq) are the next ones of which streams (reader), with the chains that they make."""
    if rows:
        packed = [chain + b"%020d" % seq + node_id.encode() for node_id, seq, chain in rows]
        database.run_packed(SQL.extend_streams, (), packed)


def stream_end(database: Database, consumer_node_id: str) -> Head:
    """The last event of a stream and its chain, be it pruned; the start of a stream that has none."""
    row = database.row(SQL.stream_end, (consumer_node_id,))
    return Head(seq=row[0], chain=row[1]) if row else stream_floor(database, consumer_node_id)


def stream_floor(database: Database, consumer_node_id: str) -> Head:
    """The last event of a stream that was pruned, and its chain."""
    row = database.row(SQL.stream_floor, (consumer_node_id,))
    return Head(seq=row[0], chain=row[1]) if row else Head(seq=0, chain=CHAIN_START)


def read_stream(
    database: Database, consumer_node_id: str, after_seq: int, *, limit: int, max_bytes: int
) -> StreamSlice:
    # One view of the file: neither an append nor a compaction comes between its parts.
    with database.one_view():
        events, outbox_chain, is_more = _events(database, consumer_node_id, after_seq, limit, max_bytes)
        floor_seq = stream_floor(database, consumer_node_id).seq
        if is_more:
            last = events[-1]
            through, end = Head(seq=last.seq, chain=outbox_chain), Head(seq=last.seq, chain=last.chain)
        else:
            through, end = head(database), stream_end(database, consumer_node_id)
    return StreamSlice(
        after_seq=after_seq,
        through_seq=through.seq,
        floor_seq=floor_seq,
        outbox_chain=through.chain,
        chain=end.chain,
        last_event_seq=end.seq,
        events=tuple(events),
    )


def _events(
    database: Database, consumer_node_id: str, after_seq: int, limit: int, max_bytes: int
) -> tuple[list[StreamEvent], bytes, bool]:
    """The next events, the chain of the whole outbox at the last of them, and whether more remain."""
    events: list[StreamEvent] = []
    size, at, outbox_chain = 0, after_seq, CHAIN_START
    while True:
        # One more than asked for shows whether more remain.
        wanted = min(_ROWS_A_READ, max(limit, 1) + 1 - len(events))
        rows = database.rows(SQL.stream_slice, (consumer_node_id, at, wanted))
        for seq, chain, body, chain_there in rows:
            size += len(body)
            if events and (len(events) >= limit or size > max_bytes):
                return events, outbox_chain, True
            events.append(StreamEvent(seq=seq, chain=chain, raw=body))
            outbox_chain = chain_there
        if len(rows) < wanted:
            return events, outbox_chain, False
        at = events[-1].seq


def oldest_unread(database: Database, node_id: str) -> int | None:
    """The first event of a stream that this gateway itself has not read: only the own stream has a cursor here."""
    cursor = database.row(SQL.cursor, (node_id,))
    return database.value(SQL.next_in_stream, (node_id, cursor[2] if cursor else 0))


def first_for_others(database: Database, node_id: str, *, besides: Collection[str]) -> int | None:
    """The first event that is kept and names another gateway, apart from those of `besides`; None if none does."""
    others = [row[0] for row in database.rows(SQL.stream_readers) if row[0] != node_id and row[0] not in besides]
    return min((database.value(SQL.next_in_stream, (each, 0)) for each in others), default=None)


def prune_streams(database: Database, through_seq: int) -> None:
    """Drop the rows of events that are pruned; each stream keeps the chain that its next event builds on."""
    readers = [row[0] for row in database.rows(SQL.stream_readers)]
    database.run_many(SQL.move_stream_floor, [(node_id, through_seq) for node_id in readers])
    database.run_many(SQL.prune_stream, [(node_id, through_seq) for node_id in readers])
