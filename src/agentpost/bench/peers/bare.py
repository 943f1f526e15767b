"""The limit of a round trip in Python: the same records in as many transactions, written by hand, and nothing else.

Two processes, each with a database of its own (APSW, WAL, `synchronous=FULL`), and a socket between them. A message is
a row of the sender's outbox with its delivery, then of the receiver's inbox with its ledger; its two ACKs are rows of
the receiver's outbox, and move the delivery. What the rows say is up to a `Hand`: the plain one seals, signs, chains
and checks nothing, so no gateway can be faster; `guarded` has one that does. Where they stand is up to `Tables`: the
plain ones have what a trip needs; `kept` has those of a gateway. Nothing is routed or sent again.
"""

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from agentpost.bench.peers.running import receiver
from agentpost.bench.peers.tables import RECEIVER_NODE, SENDER_NODE, PlainTables, Row, Tables
from agentpost.bench.peers.trip import BODY, Trip, median_ms

__all__ = ["BarePair", "Hand", "Mail", "PlainHand", "bare_pair", "receive", "trip_pair"]

# As many as our links put into a frame of a crowd.
_BATCH: Final = 128
_LENGTH: Final = struct.Struct(">I")
_CONNECT_SECONDS: Final = 15.0
# What a field `rest` takes besides its value.
_REST_BYTES: Final = 8
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

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

    def heard(self, frame: Any) -> list[tuple[str, str, bytes]]:
        """Of each ACK in a frame its type, the id of what it answers, and its bytes."""
        ...


class PlainHand:
    """Records as they are; each can be made as long as it would be if it were sealed and said who decided what."""

    def __init__(self, node_id: str, *, message_bytes: int = 0, ack_bytes: int = 0) -> None:
        self._node_id = node_id
        self._seq = 0
        self._bytes = {"message": message_bytes, "ack": ack_bytes}

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

    def heard(self, frame: Any) -> list[tuple[str, str, bytes]]:
        acks = [(_decode(body)["payload"], body) for _, _, body in frame]
        return [(ack["ackType"], ack["refEventId"], body) for ack, body in acks]

    def _rows(self, kind: str, payloads: Iterable[dict[str, Any]]) -> list[Row]:
        rows: list[Row] = []
        for payload in payloads:
            self._seq += 1
            # In the order of their making, as ULIDs are: an index on them grows at its right edge.
            event_id = f"evt_{self._node_id[-6:]}{self._seq:020d}"
            envelope = {"eventId": event_id, "seq": self._seq, "kind": kind, "sourceNodeId": self._node_id}
            record = {**envelope, "createdAt": time.time(), "payload": payload}
            body = _encode(record)
            if (missing := self._bytes[kind] - len(body) - _REST_BYTES) > 0:
                body = _encode({**record, "rest": bytes(missing)})
            rows.append((self._seq, event_id, body))
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

    def __init__(self, wire: _Wire, hand: Hand, tables: Tables) -> None:
        self._wire = wire
        self._hand = hand
        self._tables = tables

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
            self._tables.heard(acks)
            now = time.perf_counter()
            took += [now - sent_at.pop(event_id) for ack_type, event_id, _ in acks if ack_type == "processed"]
        seconds = time.perf_counter() - start
        return Trip(window=window, messages=messages, seconds=seconds, p50_ms=median_ms(took))

    def _send(self, count: int) -> list[str]:
        rows = self._hand.messages(count)
        self._tables.sent(rows)
        self._wire.send(self._hand.pack(rows))
        return [event_id for _, event_id, _ in rows]

    def close(self) -> None:
        self._tables.close()


@contextlib.contextmanager
def bare_pair(folder: Path) -> Generator[BarePair]:
    """Sender and receiver of plain records, with their databases in `folder`."""
    with trip_pair(__name__, PlainHand(SENDER_NODE), PlainTables, folder) as pair:
        yield pair


@contextlib.contextmanager
def trip_pair(
    receiver_module: str, hand: Hand, open_tables: Callable[[Path], Tables], folder: Path
) -> Generator[BarePair]:
    """A sender with this hand, and the receiver that a module is, which is told a port and the folder."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_CONNECT_SECONDS)
        with receiver(receiver_module, listening.getsockname()[1], str(folder)):
            connection, _ = listening.accept()
            with connection:
                pair = BarePair(_Wire(connection), hand, open_tables(folder / "sender.db"))
                yield pair
                pair.close()


def receive(hand: Hand, open_tables: Callable[[Path], Tables], *, port: int, folder: Path) -> None:
    """The receiver's process: takes and answers what comes, until the sender is gone."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        wire, tables = _Wire(connection), open_tables(folder / "receiver.db")
        print("ready", flush=True)  # noqa: T201 - this is what the parent waits for
        while (frame := wire.receive()) is not None:
            mail = hand.mail(frame)
            accepted = hand.acks(mail, "accepted")
            tables.took([(event_id, body) for event_id, body, _ in mail], accepted)
            hand.run(mail)
            processed = hand.acks(mail, "processed")
            tables.settled([event_id for event_id, _, _ in mail], processed)
            wire.send(hand.pack(accepted + processed))


if __name__ == "__main__":
    receive(PlainHand(RECEIVER_NODE), PlainTables, port=int(sys.argv[1]), folder=Path(sys.argv[2]))
