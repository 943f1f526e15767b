"""The audit log on the disk: entries go in with what they tell of, and nothing ever leaves."""

import json
from collections.abc import Sequence

from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.transaction import Transaction
from agentpost.store.values import AuditEntry

__all__ = ["audit_log", "audit_of", "record_audit"]


def record_audit(tx: Transaction, entries: Sequence[AuditEntry]) -> None:
    rows = [(e.at_ms, e.actor, e.action, e.subject, e.corr_id, e.session_id, json.dumps(e.detail)) for e in entries]
    tx.database.run_many(SQL.record_audit, rows)


def audit_log(database: Database, after_id: int, limit: int) -> list[AuditEntry]:
    return [_entry(row) for row in database.rows(SQL.audit_log, (after_id, limit))]


def audit_of(
    database: Database, *, session_id: str | None, corr_id: str | None, after_id: int, limit: int
) -> list[AuditEntry]:
    if session_id is None:
        rows = database.rows(SQL.audit_of_corr, (corr_id, after_id, limit))
    elif corr_id is None:
        rows = database.rows(SQL.audit_of_session, (session_id, after_id, limit))
    else:
        rows = database.rows(SQL.audit_of_session_and_corr, (corr_id, session_id, after_id, limit))
    return [_entry(row) for row in rows]


def _entry(row: Row) -> AuditEntry:
    return AuditEntry(
        id=row[0],
        at_ms=row[1],
        actor=row[2],
        action=row[3],
        subject=row[4],
        corr_id=row[5],
        session_id=row[6],
        detail=json.loads(row[7]),
    )
