"""Records that end by themselves: unreadable events (ENV-6), closed incidents, invites, sessions, expired keys."""

from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.rules import MOST_QUARANTINED_BYTES, MOST_QUARANTINED_EVENTS
from agentpost.store.transaction import Transaction
from agentpost.store.values import Acceptance, QuarantinedEvent, QuarantineSource

__all__ = ["leave_quarantine", "prune_records", "quarantine", "quarantine_sources", "quarantined", "quarantined_body"]


def quarantine(tx: Transaction, batch: Acceptance) -> None:
    """Keep what could not be read of a batch. The oldest events of a source make room."""
    database, source = tx.database, batch.source_node_id
    # An event that gets no ACK is sent again, and kept once.
    known = [(source, bad.event_id) for bad in batch.unreadable if bad.event_id is not None]
    database.run_many(SQL.forget_quarantined_event, known)
    rows = [
        (
            source,
            batch.source_epoch,
            bad.seq,
            bad.event_id,
            bad.refusal.code.value,
            bad.refusal.message,
            batch.at_ms,
            bad.raw,
        )
        for bad in batch.unreadable
    ]
    database.run_many(SQL.quarantine_event, rows)
    overflow = database.rows(SQL.quarantine_overflow, (source, MOST_QUARANTINED_EVENTS, MOST_QUARANTINED_BYTES))
    if overflow:
        database.run_many(SQL.leave_quarantine, overflow)
        database.run(SQL.count_dropped, (source, len(overflow)))


def leave_quarantine(tx: Transaction, ids: tuple[int, ...]) -> None:
    tx.database.run_many(SQL.leave_quarantine, [(each,) for each in ids])


def quarantined(database: Database, source_node_id: str | None, after_id: int, limit: int) -> list[QuarantinedEvent]:
    if source_node_id is None:
        return [_event(row) for row in database.rows(SQL.quarantined, (after_id, limit))]
    return [_event(row) for row in database.rows(SQL.quarantined_of, (source_node_id, after_id, limit))]


def quarantined_body(database: Database, quarantine_id: int) -> bytes | None:
    return database.value(SQL.quarantined_body, (quarantine_id,))


def quarantine_sources(database: Database) -> list[QuarantineSource]:
    return [
        QuarantineSource(source_node_id=row[0], events=row[1], size_bytes=row[2], dropped=row[3])
        for row in database.rows(SQL.quarantine_sources)
    ]


def prune_records(tx: Transaction, now_ms: int, before_ms: int, limit: int) -> int:
    """Forget what ended before `before_ms`, and the idempotency keys that have expired, at most `limit` of each."""
    database = tx.database
    before = database.changed_rows()
    database.run(SQL.prune_answers, (now_ms, limit))
    for statement in (SQL.prune_quarantine, SQL.prune_incidents, SQL.prune_invites, SQL.prune_agent_invites):
        database.run(statement, (before_ms, limit))
    ended = database.rows(SQL.ended_agent_sessions, (before_ms, limit))
    database.run_many(SQL.prune_refresh_tokens, ended)
    database.run_many(SQL.prune_agent_session, ended)
    return database.changed_rows() - before


def _event(row: Row) -> QuarantinedEvent:
    return QuarantinedEvent(
        id=row[0],
        source_node_id=row[1],
        source_epoch=row[2],
        source_seq=row[3],
        event_id=row[4],
        code=row[5],
        message=row[6],
        at_ms=row[7],
        size_bytes=row[8],
    )
