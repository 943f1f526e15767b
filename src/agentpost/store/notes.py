"""Notes: small values by collection and key, kept for the layers above. What they say is not known here."""

from collections.abc import Iterable

from agentpost.store.database import Database
from agentpost.store.queries import SQL
from agentpost.store.rules import check_note
from agentpost.store.transaction import Transaction
from agentpost.store.values import Note

__all__ = ["count_notes", "note", "notes", "put_notes"]


def put_notes(tx: Transaction, changed: Iterable[Note]) -> None:
    """Keep each of them in the place of the one before; one without a value goes away."""
    for each in changed:
        check_note(each)
        if each.value is None:
            tx.database.run(SQL.remove_note, (each.collection, each.key))
        else:
            tx.database.run(SQL.put_note, (each.collection, each.key, each.value, each.at_ms))


def note(database: Database, collection: str, key: str) -> Note | None:
    row = database.row(SQL.note, (collection, key))
    return None if row is None else Note(collection=collection, key=key, value=row[0], at_ms=row[1])


def notes(database: Database, collection: str, *, after_key: str, limit: int) -> list[Note]:
    rows = database.rows(SQL.notes, (collection, after_key, limit))
    return [Note(collection=collection, key=row[0], value=row[1], at_ms=row[2]) for row in rows]


def count_notes(database: Database, collection: str) -> int:
    return database.value(SQL.count_notes, (collection,)) or 0
