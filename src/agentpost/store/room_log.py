"""The updates of the room on the disk: appended one by one, replaced by one. What they say is not known here."""

from agentpost.store.database import Database
from agentpost.store.queries import SQL
from agentpost.store.transaction import Transaction

__all__ = ["append_room_update", "compact_room", "room_updates"]


def append_room_update(tx: Transaction, update: bytes) -> None:
    tx.database.run(SQL.append_room_update, (update,))


def room_updates(database: Database) -> list[bytes]:
    return [row[0] for row in database.rows(SQL.room_updates)]


def compact_room(tx: Transaction, snapshot: bytes) -> None:
    tx.database.run(SQL.clear_room)
    tx.database.run(SQL.append_room_update, (snapshot,))
