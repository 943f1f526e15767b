"""The limit of a round trip in Python: the same records in as many transactions, written by hand, and nothing else.

Two processes, each with a database of its own (APSW, WAL, `synchronous=FULL`), and a socket between them. A message is
a row of the sender's outbox with its delivery, then of the receiver's inbox with its ledger; its two ACKs are rows of
the receiver's outbox, and move the delivery. What the rows say is up to a `Hand`: the plain one seals, signs, chains
and checks nothing, so no gateway can be faster; `guarded` has one that does. Nothing is routed or sent again.
"""

# apsw's type stubs use collections.abc.Buffer, which Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import apsw
import msgspec

from agentpost.bench.peers.running import receiver
from agentpost.bench.peers.trip import BODY, Trip, median_ms

__all__ = ["RECEIVER_NODE", "SENDER_NODE", "BarePair", "Hand", "Mail", "Row", "bare_pair", "receive", "trip_pair"]

SENDER_NODE: Final = "bench-a"
RECEIVER_NODE: Final = "bench-b"
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

# A place in the outbox, an id, and the bytes of the event.
Row = tuple[int, str, bytes]
# What was sent: an id, the bytes, and whatever the hand that read it has to remember for the answers.
Mail = tuple[str, bytes, Any]


class Hand(Protocol):
    """How one side writes its records and reads those of the other."""

    def messages(self, count: int) -> list[Row]:
        """New messages, as rows of the outbox."""
        ...

    def acks(self, mail: Sequence[Mail], ack_type: str) -> list[Row]:
        """The answers to what came, as rows of the outbox."""
        ...

    def pack(self, rows: Sequence[Row]) -> Any:
        """What stands last in the outbox, as a frame for the other side."""
        ...

    def mail(self, frame: Any) -> list[Mail]: ...

    def run(self, mail: Sequence[Mail]) -> None:
        """The turns of the agent that the mail is for."""
        ...

    def heard(self, frame: Any) -> list[tuple[str, str]]:
        """The type of each ACK in a frame, and the id of what it answers."""
        ...


class _PlainHand:
    """Records as they are."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._seq = 0

    def messages(self, count: int) -> list[Row]:
        return self._rows("message", [{"toAgents": ["bench-receiver"], "body": BODY}] * count)

    def acks(self, mail: Sequence[Mail], ack_type: str) -> list[Row]:
        acked = {"ackType": ack_type, "ackedByNodeId": self._node_id}
        return self._rows("ack", [{**acked, "refEventId": event_id} for event_id, _, _ in mail])

    def pack(self, rows: Sequence[Row]) -> Any:
        return rows

    def mail(self, frame: Any) -> list[Mail]:
        return [(event_id, body, None) for _, event_id, body in frame]

    def run(self, mail: Sequence[Mail]) -> None:
        pass

    def heard(self, frame: Any) -> list[tuple[str, str]]:
        acks = [_decode(body)["payload"] for _, _, body in frame]
        return [(ack["ackType"], ack["refEventId"]) for ack in acks]

    def _rows(self, kind: str, payloads: Iterable[dict[str, Any]]) -> list[Row]:
        rows: list[Row] = []
        for payload in payloads:
            self._seq += 1
            # In the order of their making, as ULIDs are: an index on them grows at its right edge.
            event_id = f"evt_{self._node_id}{self._seq:020d}"
            envelope = {"eventId": event_id, "seq": self._seq, "kind": kind, "sourceNodeId": self._node_id}
            rows.append((self._seq, event_id, _encode({**envelope, "createdAt": time.time(), "payload": payload})))
        return rows


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

    def __init__(self, wire: _Wire, hand: Hand, path: Path) -> None:
        self._wire = wire
        self._hand = hand
        self._database = _open(path)

    def trip(self, *, window: int, messages: int) -> Trip:
        """Send with `window` messages under way until all are seen as processed."""
        sent_at: dict[str, float] = {}
        took: list[float] = []
        sent = 0
        start = time.perf_counter()
        while len(took) < messages:
            while wanted := min(window - len(sent_at), messages - sent, _BATCH):
                sent += wanted
                now = time.perf_counter()
                sent_at.update(dict.fromkeys(self._send(wanted), now))
            acks = self._hand.heard(self._wire.receive())
            with _transaction(self._database):
                self._database.executemany(
                    "UPDATE deliveries SET state = ? WHERE event_id = ?",
                    [(_STATES[ack_type], event_id) for ack_type, event_id in acks],
                )
            now = time.perf_counter()
            took += [now - sent_at.pop(event_id) for ack_type, event_id in acks if ack_type == "processed"]
        seconds = time.perf_counter() - start
        return Trip(window=window, messages=messages, seconds=seconds, p50_ms=median_ms(took))

    def _send(self, count: int) -> list[str]:
        rows = self._hand.messages(count)
        ids = [event_id for _, event_id, _ in rows]
        with _transaction(self._database):
            self._database.executemany("INSERT INTO outbox VALUES (?, ?, ?)", rows)
            self._database.executemany("INSERT INTO deliveries VALUES (?, 0)", _alone(ids))
        self._wire.send(self._hand.pack(rows))
        return ids

    def close(self) -> None:
        self._database.close()


@contextlib.contextmanager
def bare_pair(folder: Path) -> Generator[BarePair]:
    """Sender and receiver of plain records, with their databases in `folder`."""
    with trip_pair(__name__, _PlainHand(SENDER_NODE), folder) as pair:
        yield pair


@contextlib.contextmanager
def trip_pair(receiver_module: str, hand: Hand, folder: Path) -> Generator[BarePair]:
    """A sender with this hand, and the receiver that a module is, which is told a port and the folder."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_CONNECT_SECONDS)
        with receiver(receiver_module, listening.getsockname()[1], str(folder)):
            connection, _ = listening.accept()
            with connection:
                pair = BarePair(_Wire(connection), hand, folder / "sender.db")
                yield pair
                pair.close()


def receive(make_hand: Callable[[str], Hand], *, port: int, folder: Path) -> None:
    """The receiver's process: takes and answers what comes, until the sender is gone."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        wire, database, hand = _Wire(connection), _open(folder / "receiver.db"), make_hand(RECEIVER_NODE)
        print("ready", flush=True)  # noqa: T201 - this is what the parent waits for
        while (frame := wire.receive()) is not None:
            mail = hand.mail(frame)
            ids = [event_id for event_id, _, _ in mail]
            accepted = hand.acks(mail, "accepted")
            with _transaction(database):
                database.executemany(
                    "INSERT INTO inbox (event_id, body) VALUES (?, ?)", [(event_id, body) for event_id, body, _ in mail]
                )
                database.executemany("INSERT INTO ledger VALUES (?, 0)", _alone(ids))
                database.executemany("INSERT INTO outbox VALUES (?, ?, ?)", accepted)
            hand.run(mail)
            processed = hand.acks(mail, "processed")
            with _transaction(database):
                database.executemany("UPDATE ledger SET state = 2 WHERE event_id = ?", _alone(ids))
                database.executemany("INSERT INTO outbox VALUES (?, ?, ?)", processed)
            wire.send(hand.pack(accepted + processed))


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
    receive(_PlainHand, port=int(sys.argv[1]), folder=Path(sys.argv[2]))
