"""Pruning: what nobody needs any more leaves both streams, in small steps, and the chain stays checkable (PIPE-7)."""

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database
from agentpost.store.inbox import inbox_position
from agentpost.store.outbox import head
from agentpost.store.queries import SQL
from agentpost.store.rules import inbox_watermark, outbox_watermark
from agentpost.store.streams import first_for_others, oldest_unread, prune_streams
from agentpost.store.transaction import Transaction
from agentpost.store.values import PIPELINE_WATERMARK, Compacted, Subscriber, Watermarks

__all__ = ["compact", "note_subscriber", "prune_settled", "subscribers", "watermarks"]


def watermarks(
    database: Database, *, node_id: str, epoch: str, now_ms: int, retention_events: int, is_alone: bool
) -> Watermarks:
    """How far both streams may be pruned."""
    alone_through = None
    if is_alone:
        named = first_for_others(database, node_id, besides=[row[0] for row in database.rows(SQL.revoked_nodes)])
        alone_through = head(database).seq if named is None else named - 1
    outbox_seq = outbox_watermark(
        _bounds(database),
        epoch=epoch,
        now_ms=now_ms,
        retention_events=retention_events,
        oldest_unaccepted=database.value(SQL.oldest_unaccepted_seq),
        oldest_unread=oldest_unread(database, node_id),
        alone_through=alone_through,
    )
    acked_seq = inbox_position(database).acked_seq
    return Watermarks(outbox_seq=outbox_seq, inbox_seq=inbox_watermark(acked_seq, retention_events=retention_events))


def compact(tx: Transaction, watermarks: Watermarks, limit: int) -> Compacted:
    """Prune up to the watermarks, at most `limit` events of each stream."""
    tx.flush()
    gateway = tx.database.row(SQL.gateway)
    if gateway is None:
        raise Refusal(Code.STORAGE_CORRUPT, "the database does not say which node it belongs to")
    outbox_floor, inbox_floor = gateway[2], gateway[4]

    outbox_through = min(watermarks.outbox_seq, outbox_floor + limit, tx.seq)
    if outbox_through > outbox_floor:
        # The chain value of the last pruned event is what the first kept one builds on.
        chain = tx.database.value(SQL.outbox_chain_at, (outbox_through,))
        tx.database.run(SQL.move_outbox_floor, (outbox_through, chain))
        tx.database.run(SQL.keep_dead_letter_events, (outbox_floor, outbox_through))
        tx.database.run(SQL.prune_outbox, (outbox_through,))
        prune_streams(tx.database, outbox_through)

    inbox_through = min(watermarks.inbox_seq, inbox_floor + limit)
    if inbox_through > inbox_floor:
        tx.database.run(SQL.move_inbox_floor, (inbox_through,))
        tx.database.run(SQL.prune_inbox, (inbox_through,))

    return Compacted(
        outbox_events=max(outbox_through - outbox_floor, 0),
        inbox_events=max(inbox_through - inbox_floor, 0),
        outbox_floor_seq=max(outbox_through, outbox_floor),
        inbox_floor_seq=max(inbox_through, inbox_floor),
    )


def prune_settled(tx: Transaction, before_ms: int, limit: int) -> int:
    """Forget ledger rows, deliveries and tasks that ended long ago, at most `limit` of each."""
    tx.flush()
    tx.database.run(SQL.prune_failed_attempts, (before_ms, limit))
    before = tx.database.changed_rows()
    tx.database.run(SQL.prune_settled_entries, (before_ms, limit))
    tx.database.run(SQL.prune_ended_deliveries, (before_ms, limit))
    tx.database.run(SQL.prune_task_events, (before_ms, limit))
    tx.database.run(SQL.prune_tasks, (before_ms, limit))
    return tx.database.changed_rows() - before


def subscribers(database: Database) -> list[Subscriber]:
    """The gateways that read this outbox. The pipeline's watermark is none of them."""
    return [each for each in _bounds(database) if each.consumer_node_id != PIPELINE_WATERMARK]


def _bounds(database: Database) -> list[Subscriber]:
    return [
        Subscriber(
            consumer_node_id=row[0], epoch=row[1], last_seq=row[2], updated_at_ms=row[3], lease_expires_at_ms=row[4]
        )
        for row in database.rows(SQL.subscribers)
    ]


def note_subscriber(tx: Transaction, subscriber: Subscriber) -> None:
    tx.database.run(
        SQL.note_subscriber,
        (
            subscriber.consumer_node_id,
            subscriber.epoch,
            subscriber.last_seq,
            subscriber.updated_at_ms,
            subscriber.lease_expires_at_ms,
        ),
    )
