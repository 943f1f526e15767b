"""Which payloads events speak of, who may read them, and those that nobody needs any more (PIPE-5, PIPE-7).

A name outlives its event: whether a payload is needed is asked of the events that are kept, in the transaction that
drops it. What is in a payload, and how it is kept, is the business of `blobs`.
"""

from collections.abc import Iterable, Sequence

from agentpost.protocol.envelope import Event
from agentpost.store.blobs import drop_blob
from agentpost.store.database import Database
from agentpost.store.payload_rules import KnownPayload, judge_payloads
from agentpost.store.queries import SQL
from agentpost.store.transaction import Transaction
from agentpost.store.values import NamedPayload, PayloadUsage, PrunedPayloads

__all__ = [
    "may_read_payload",
    "missing_payloads",
    "name_events",
    "name_payloads",
    "payload_sources",
    "payload_usage",
    "prune_payloads",
]


def name_payloads(tx: Transaction, payloads: Sequence[NamedPayload]) -> None:
    rows = [
        (each.sha256, node_id, each.source_node_id, each.seq, each.size_bytes)
        for each in payloads
        for node_id in each.readers
    ]
    tx.database.run_many(SQL.name_payload, rows)


def name_events(tx: Transaction, events: Iterable[Event]) -> None:
    """Note the payloads of events that this transaction takes."""
    rows = [(event.payload_ref.sha256, event.event_id) for event in events if event.payload_ref is not None]
    if rows:
        tx.database.run_many(SQL.name_payload_event, rows)


def may_read_payload(database: Database, sha256: str, node_id: str) -> bool:
    return database.value(SQL.may_read_payload, (sha256, node_id)) > 0


def payload_sources(database: Database, sha256: str) -> list[str]:
    """The other gateways that named this payload."""
    return [row[0] for row in database.rows(SQL.sources_of_payload, (sha256,))]


def missing_payloads(database: Database, limit: int) -> list[NamedPayload]:
    return [
        NamedPayload(sha256=row[0], source_node_id=row[1], seq=row[2], size_bytes=row[3])
        for row in database.rows(SQL.missing_payloads, (limit,))
    ]


def prune_payloads(tx: Transaction, now_ms: int, grace_ms: int, after_sha256: str, limit: int) -> PrunedPayloads:
    """Look at the next `limit` payloads; mark those that nobody needs, drop those that nobody has needed for long."""
    tx.flush()
    known = [
        KnownPayload(sha256=row[0], size_bytes=row[1], unneeded_since_ms=row[2], is_needed=bool(row[3]))
        for row in tx.database.rows(SQL.payloads_in_order, (after_sha256, limit))
    ]
    verdicts = judge_payloads(known, now_ms=now_ms, grace_ms=grace_ms, limit=limit)
    for sha256, since_ms in verdicts.mark.items():
        if since_ms is None:
            tx.database.run(SQL.unmark_unneeded, (sha256,))
        else:
            tx.database.run(SQL.mark_unneeded, (sha256, since_ms))
    for sha256 in verdicts.drop:
        drop_blob(tx, sha256)
        for forget in (SQL.forget_payload_readers, SQL.forget_payload_events, SQL.unmark_unneeded):
            tx.database.run(forget, (sha256,))
    return verdicts.pruned


def payload_usage(database: Database) -> PayloadUsage:
    row = database.row(SQL.payload_usage)
    return PayloadUsage() if row is None else PayloadUsage(payloads=row[0], size_bytes=row[1])
