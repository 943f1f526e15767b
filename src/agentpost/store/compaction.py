"""Pruning: what nobody needs any more leaves both streams, in small steps, and the chain stays checkable (PIPE-7)."""

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database
from agentpost.store.inbox import inbox_position
from agentpost.store.queries import SQL
from agentpost.store.rules import inbox_watermark, outbox_watermark
from agentpost.store.streams import oldest_unread, prune_streams
from agentpost.store.transaction import Transaction
from agentpost.store.values import PIPELINE_WATERMARK, Compacted, Subscriber

__all__ = ["compact", "note_subscriber", "prune_settled", "subscribers"]


def compact(tx: Transaction, now_ms: int, retention_events: int, limit: int) -> Compacted:
    """Prune up to the watermarks, at most `limit` events of each stream."""
    tx.flush()
    gateway = tx.database.row(SQL.gateway)
    if gateway is None:
        raise Refusal(Code.STORAGE_CORRUPT, "the database does not say which node it belongs to")
    outbox_floor, inbox_floor = gateway[2], gateway[4]

    watermark = outbox_watermark(
        _bounds(tx.database),
        epoch=tx.epoch,
        now_ms=now_ms,
        retention_events=retention_events,
        oldest_unaccepted=tx.database.value(SQL.oldest_unaccepted_seq),
        oldest_unread=oldest_unread(tx.database, tx.node_id),
    )
    outbox_through = min(watermark, outbox_floor + limit, tx.seq)
    if outbox_through > outbox_floor:
        # The chain value of the last pruned event is what the first kept one builds on.
        chain = tx.database.value(SQL.outbox_chain_at, (outbox_through,))
        tx.database.run(SQL.move_outbox_floor, (outbox_through, chain))
        tx.database.run(SQL.keep_dead_letter_events, (outbox_floor, outbox_through))
        tx.database.run(SQL.prune_outbox, (outbox_through,))
        prune_streams(tx.database, outbox_through)

    acked_seq = inbox_position(tx.database).acked_seq
    inbox_through = min(inbox_watermark(acked_seq, retention_events=retention_events), inbox_floor + limit)
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
