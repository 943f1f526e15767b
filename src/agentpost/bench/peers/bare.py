"""The limit of a round trip in Python: the same records in as many transactions, written by hand, and nothing else.

Two processes, each with a database of its own (APSW, WAL, `synchronous=FULL`), and a socket between them. A message is
a row of the sender's outbox with its delivery, then of the receiver's inbox with its ledger; its two ACKs are rows of
the receiver's outbox, and move the delivery. Nothing is sealed, signed, chained, checked, routed or sent again, so no
gateway can be faster than this.
"""

# apsw's type stubs use collections.abc.Buffer, which Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from agentpost.bench.peers.running import receiver
from agentpost.bench.peers.trip import BODY, Trip, median_ms

__all__ = ["BarePair", "bare_pair"]

# As many as our links put into a frame of a crowd.
_BATCH: Final = 128
_LENGTH: Final = struct.Struct(">I")
_CONNECT_SECONDS: Final = 15.0
_SCHEMA: Final = """
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE deliveries (event_id TEXT PRIMARY KEY, state INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE inbox (seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE ledger (event_id TEXT PRIMARY KEY, state INTEGER NOT NULL) WITHOUT ROWID;
"""
_STATES: Final = {"accepted": 1, "processed": 2}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class _Wire:
    """Frames of many events over one socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._incoming = connection.makefile("rb")

    def send(self, events: Any) -> None:
        frame = _encode(events)
        self._connection.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> Any:
        """The next frame, None at the end."""
        length = self._incoming.read(_LENGTH.size)
        return _decode(self._incoming.read(*_LENGTH.unpack(length))) if length else None


class BarePair:
    """The sender, joined to a receiver in another process."""

    def __init__(self, wire: _Wire, path: Path) -> None:
        self._wire = wire
        self._database = _open(path)
        self._seq = 0

    def trip(self, *, window: int, messages: int) -> Trip:
        """Send with `window` messages under way until all are seen as processed."""
        sent_at: dict[str, float] = {}
        took: list[float] = []
        sent = 0
        start = time.perf_counter()
        while len(took) < messages:
            while wanted := min(window - len(sent_at), messages - sent, _BATCH):
                sent += wanted
                sent_at.update(dict.fromkeys(self._send(wanted), time.perf_counter()))
            acks = [_decode(raw)["payload"] for raw in self._wire.receive()]
            with _transaction(self._database):
                self._database.executemany(
                    "UPDATE deliveries SET state = ? WHERE event_id = ?",
                    [(_STATES[ack["ackType"]], ack["refEventId"]) for ack in acks],
                )
            now = time.perf_counter()
            took += [now - sent_at.pop(ack["refEventId"]) for ack in acks if ack["ackType"] == "processed"]
        seconds = time.perf_counter() - start
        return Trip(window=window, messages=messages, seconds=seconds, p50_ms=median_ms(took))

    def _send(self, count: int) -> list[str]:
        ids = [_new_id() for _ in range(count)]
        payload = {"toAgents": ["bench-receiver"], "body": BODY}
        rows = [
            (seq, event_id, _event(event_id, "message", node="bench-a", seq=seq, payload=payload))
            for seq, event_id in enumerate(ids, start=self._seq + 1)
        ]
        self._seq += count
        with _transaction(self._database):
            self._database.executemany("INSERT INTO outbox VALUES (?, ?, ?)", rows)
            self._database.executemany("INSERT INTO deliveries VALUES (?, 0)", _alone(ids))
        self._wire.send(rows)
        return ids

    def close(self) -> None:
        self._database.close()


@contextlib.contextmanager
def bare_pair(folder: Path) -> Generator[BarePair]:
    """Sender and receiver, with their databases in `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_CONNECT_SECONDS)
        with receiver(__name__, listening.getsockname()[1], str(folder)):
            connection, _ = listening.accept()
            with connection:
                pair = BarePair(_Wire(connection), folder / "sender.db")
                yield pair
                pair.close()


def _receive(port: int, path: Path) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        wire, database = _Wire(connection), _open(path)
        print("ready", flush=True)  # noqa: T201 - this is what the parent waits for
        while (events := wire.receive()) is not None:
            ids = [event_id for _, event_id, _ in events]
            with _transaction(database):
                database.executemany(
                    "INSERT INTO inbox (event_id, body) VALUES (?, ?)",
                    [(event_id, body) for _, event_id, body in events],
                )
                database.executemany("INSERT INTO ledger VALUES (?, 0)", _alone(ids))
                accepted = _append_acks(database, ids, "accepted")
            with _transaction(database):
                database.executemany("UPDATE ledger SET state = 2 WHERE event_id = ?", _alone(ids))
                processed = _append_acks(database, ids, "processed")
            wire.send(accepted + processed)


def _append_acks(database: apsw.Connection, ids: Iterable[str], ack_type: str) -> list[bytes]:
    acks = [(_new_id(), {"ackType": ack_type, "refEventId": event_id, "ackedByNodeId": "bench-b"}) for event_id in ids]
    rows = [(ack_id, _event(ack_id, "ack", node="bench-b", seq=0, payload=payload)) for ack_id, payload in acks]
    database.executemany("INSERT INTO outbox (event_id, body) VALUES (?, ?)", rows)
    return [body for _, body in rows]


def _event(event_id: str, kind: str, *, node: str, seq: int, payload: dict[str, Any]) -> bytes:
    envelope = {"eventId": event_id, "seq": seq, "kind": kind, "sourceNodeId": node, "createdAt": time.time()}
    return _encode({**envelope, "payload": payload})


def _new_id() -> str:
    return f"evt_{os.urandom(13).hex()}"


def _alone(ids: Iterable[str]) -> list[tuple[str]]:
    return [(event_id,) for event_id in ids]


def _open(path: Path) -> apsw.Connection:
    database = apsw.Connection(str(path))
    database.pragma("journal_mode", "WAL")
    database.pragma("synchronous", "FULL")
    database.execute(_SCHEMA)
    return database


@contextlib.contextmanager
def _transaction(database: apsw.Connection) -> Generator[None]:
    database.execute("BEGIN IMMEDIATE")
    yield
    database.execute("COMMIT")


if __name__ == "__main__":
    _receive(int(sys.argv[1]), Path(sys.argv[2]) / "receiver.db")
