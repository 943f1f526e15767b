"""Where the two processes of a trip by hand keep their records: each move of a message is one transaction, synced.

`PlainTables` are as small as a trip allows: an outbox, deliveries, an inbox and a ledger, each with one tree.
"""

# apsw's type stubs use collections.abc.Buffer, which Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

import contextlib
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

import apsw

__all__ = ["RECEIVER_NODE", "SENDER_NODE", "PlainTables", "Row", "Tables"]

SENDER_NODE: Final = "bench-a"
RECEIVER_NODE: Final = "bench-b"

_SCHEMA: Final = """
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE deliveries (event_id TEXT PRIMARY KEY, state INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE inbox (seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE ledger (event_id TEXT PRIMARY KEY, state INTEGER NOT NULL) WITHOUT ROWID;
"""
_STATES: Final = {"accepted": 1, "processed": 2}

# A place in the outbox, an id, and the bytes of the event.
Row = tuple[int, str, bytes]


class Tables(Protocol):
    """What one side keeps. Each call is durable when it returns."""

    def sent(self, rows: Sequence[Row]) -> None:
        """New messages, each with a delivery."""
        ...

    def heard(self, acks: Sequence[tuple[str, str, bytes]]) -> None:
        """The type of each ACK, the id of what it answers, and its bytes: deliveries move."""
        ...

    def took(self, mail: Sequence[tuple[str, bytes]], accepted: Sequence[Row]) -> None:
        """What came, as id and bytes, and the ACKs that say so."""
        ...

    def settled(self, event_ids: Sequence[str], processed: Sequence[Row]) -> None:
        """The ends of turns, and the ACKs that say so."""
        ...

    def close(self) -> None: ...


class PlainTables:
    """The least that remembers a message, its delivery, its arrival and its end."""

    def __init__(self, path: Path) -> None:
        self._database = apsw.Connection(str(path))
        self._database.pragma("journal_mode", "WAL")
        self._database.pragma("synchronous", "FULL")
        self._database.execute(_SCHEMA)

    def sent(self, rows: Sequence[Row]) -> None:
        with self._transaction():
            self._append(rows)
            self._database.executemany(
                "INSERT INTO deliveries VALUES (?, 0)", _alone(event_id for _, event_id, _ in rows)
            )

    def heard(self, acks: Sequence[tuple[str, str, bytes]]) -> None:
        with self._transaction():
            self._database.executemany(
                "UPDATE deliveries SET state = ? WHERE event_id = ?",
                [(_STATES[ack_type], event_id) for ack_type, event_id, _ in acks],
            )

    def took(self, mail: Sequence[tuple[str, bytes]], accepted: Sequence[Row]) -> None:
        with self._transaction():
            self._database.executemany("INSERT INTO inbox (event_id, body) VALUES (?, ?)", mail)
            self._database.executemany("INSERT INTO ledger VALUES (?, 0)", _alone(event_id for event_id, _ in mail))
            self._append(accepted)

    def settled(self, event_ids: Sequence[str], processed: Sequence[Row]) -> None:
        with self._transaction():
            self._database.executemany("UPDATE ledger SET state = 2 WHERE event_id = ?", _alone(event_ids))
            self._append(processed)

    def close(self) -> None:
        self._database.close()

    def _append(self, rows: Sequence[Row]) -> None:
        self._database.executemany("INSERT INTO outbox VALUES (?, ?, ?)", rows)

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        yield
        self._database.execute("COMMIT")


def _alone(ids: Iterable[str]) -> list[tuple[str]]:
    return [(event_id,) for event_id in ids]
