"""What a person should look at. One incident at most is open for each kind and subject; closed ones stay listed."""

import json

from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.transaction import Transaction
from agentpost.store.values import Incident

__all__ = ["close_incident", "count_incidents", "incidents", "open_incidents_of", "raise_incident"]


def raise_incident(tx: Transaction, incident: Incident) -> bool:
    before = tx.database.changed_rows()
    tx.database.run(
        SQL.raise_incident,
        (incident.kind, incident.subject, incident.at_ms, incident.corr_id, json.dumps(incident.detail)),
    )
    return tx.database.changed_rows() != before


def close_incident(tx: Transaction, kind: str, subject: str, at_ms: int) -> bool:
    before = tx.database.changed_rows()
    tx.database.run(SQL.close_incident, (at_ms, kind, subject))
    return tx.database.changed_rows() != before


def incidents(database: Database, *, open_only: bool, after_id: int, limit: int) -> list[Incident]:
    rows = database.rows(SQL.open_incidents if open_only else SQL.incidents, (after_id, limit))
    return [_incident(row) for row in rows]


def open_incidents_of(database: Database, kind: str) -> list[Incident]:
    return [_incident(row) for row in database.rows(SQL.open_incidents_of_kind, (kind,))]


def count_incidents(database: Database) -> dict[str, int]:
    return dict(database.rows(SQL.count_open_incidents))


def _incident(row: Row) -> Incident:
    return Incident(
        id=row[0],
        kind=row[1],
        subject=row[2],
        at_ms=row[3],
        corr_id=row[4],
        detail=json.loads(row[5]),
        closed_at_ms=row[6],
    )
