"""Mirrors of other outboxes (PIPE-9): all events of a source, its readers' streams, and the heads that it signed.

A batch is kept whole and handed on whole, since only its end is signed. Whether the signature and the chain are good is
checked before a batch gets here.
"""

from collections.abc import Iterable

from agentpost.protocol.heads import next_chain
from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.rules import check_mirror_batch, mirror_slice, unmirrored
from agentpost.store.transaction import Transaction
from agentpost.store.values import (
    CHAIN_START,
    MirrorBatch,
    MirrorEvent,
    MirrorPosition,
    MirrorSlice,
    StreamEvent,
)

__all__ = [
    "keep_mirror",
    "last_head_for",
    "mirror_position",
    "mirrors",
    "prune_mirror",
    "read_mirror",
    "read_whole_mirror",
    "restart_mirror",
]


def mirrors(database: Database) -> list[MirrorPosition]:
    return [_position(row) for row in database.rows(SQL.mirrors)]


def mirror_position(database: Database, source_node_id: str) -> MirrorPosition | None:
    row = database.row(SQL.mirror, (source_node_id,))
    return _position(row) if row else None


def keep_mirror(tx: Transaction, batch: MirrorBatch) -> None:
    source, at = batch.source_node_id, mirror_position(tx.database, batch.source_node_id)
    check_mirror_batch(batch, at)
    events = unmirrored(batch, at)
    if not events:
        return
    database = tx.database
    kept = [event.chain + b"%020d" % event.seq + event.raw for event in events]
    database.run_packed(SQL.keep_mirror_events, (source,), kept)
    if rows := _stream_rows(database, source, events):
        database.run_packed(SQL.extend_mirror_streams, (source,), rows)
    database.run(SQL.keep_mirror_head, (source, batch.through_seq, batch.head, batch.signature, batch.at_ms))
    floor_seq, floor_chain = batch.after_seq, batch.before_chain
    if at is not None and at.last_seq:
        floor_seq, floor_chain = at.floor_seq, at.floor_chain
    database.run(
        SQL.move_mirror,
        (source, batch.epoch, batch.through_seq, events[-1].chain, floor_seq, floor_chain, batch.at_ms),
    )


def _stream_rows(database: Database, source: str, events: Iterable[MirrorEvent]) -> list[bytes]:
    """The places of the events in the streams of their readers, each row in one piece."""
    chains: dict[str, bytes] = {}
    rows: list[bytes] = []
    for event in events:
        if event.stream_chains:
            ends = zip(event.to_nodes, event.stream_chains, strict=True)
        else:
            ends = (
                (node_id, next_chain(chains.get(node_id) or _stream_chain(database, source, node_id), event.raw))
                for node_id in dict.fromkeys(event.to_nodes)
            )
        for node_id, chain in ends:
            chains[node_id] = chain
            rows.append(chain + b"%020d" % event.seq + node_id.encode())
    return rows


def _stream_chain(database: Database, source: str, consumer: str) -> bytes:
    row = database.row(SQL.mirror_stream_end, (source, consumer))
    return row[1] if row else CHAIN_START


def restart_mirror(tx: Transaction, source_node_id: str, *, epoch: str, at_ms: int) -> None:
    for drop in (
        SQL.drop_mirror_events,
        SQL.drop_mirror_heads,
        SQL.drop_mirror_streams,
        SQL.unplace_payloads,
    ):
        tx.database.run(drop, (source_node_id,))
    tx.database.run(SQL.move_mirror, (source_node_id, epoch, 0, CHAIN_START, 0, CHAIN_START, at_ms))


def read_mirror(database: Database, source_node_id: str, consumer_node_id: str, after_seq: int) -> MirrorSlice | None:
    with database.one_view():
        position = mirror_position(database, source_node_id)
        if position is None:
            return None
        next_seq: int | None = database.value(SQL.next_in_mirror_stream, (source_node_id, consumer_node_id, after_seq))
        if next_seq is None:
            head = database.row(SQL.last_mirror_head, (source_node_id,))
        else:
            head = database.row(SQL.mirror_head_covering, (source_node_id, next_seq))
        if head is None or head[0] <= after_seq:
            return None
        rows = database.rows(SQL.mirror_stream_slice, (source_node_id, consumer_node_id, after_seq, head[0]))
        return _slice(position, after_seq, head, rows)


def read_whole_mirror(database: Database, source_node_id: str, after_seq: int) -> MirrorSlice | None:
    with database.one_view():
        position = mirror_position(database, source_node_id)
        if position is None:
            return None
        after_seq = max(after_seq, position.floor_seq)
        head = database.row(SQL.mirror_head_covering, (source_node_id, after_seq + 1))
        if head is None:
            return None
        rows = database.rows(SQL.mirror_slice, (source_node_id, after_seq, head[0]))
        return _slice(position, after_seq, head, rows)


def last_head_for(database: Database, source_node_id: str, consumer_node_id: str) -> bytes | None:
    with database.one_view():
        end = database.row(SQL.mirror_stream_end, (source_node_id, consumer_node_id))
        head = database.row(SQL.mirror_head_covering, (source_node_id, end[0])) if end else None
        return head[1] if head else None


def _slice(position: MirrorPosition, after_seq: int, head: Row, rows: Iterable[Row]) -> MirrorSlice:
    events = [StreamEvent(seq=row[0], chain=row[1], raw=row[2]) for row in rows]
    return mirror_slice(position, after_seq, (head[0], head[1], head[2]), events)


def prune_mirror(tx: Transaction, source_node_id: str, through_seq: int) -> int:
    database, position = tx.database, mirror_position(tx.database, source_node_id)
    through_seq = min(through_seq, position.last_seq) if position else 0
    if position is None or through_seq <= position.floor_seq:
        return 0
    readers = [row[0] for row in database.rows(SQL.mirror_readers, (source_node_id,))]
    database.run_many(SQL.prune_mirror_stream, [(source_node_id, node_id, through_seq) for node_id in readers])
    database.run(SQL.move_mirror_floor, (through_seq, source_node_id))
    database.run(SQL.prune_mirror_events, (source_node_id, through_seq))
    database.run(SQL.prune_mirror_heads, (source_node_id, through_seq))
    return through_seq - position.floor_seq


def _position(row: Row) -> MirrorPosition:
    return MirrorPosition(
        source_node_id=row[0],
        epoch=row[1],
        last_seq=row[2],
        last_chain=row[3],
        floor_seq=row[4],
        floor_chain=row[5],
    )
