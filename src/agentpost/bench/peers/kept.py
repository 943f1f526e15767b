"""A round trip by hand in a *gateway's* tables: the plain records of `bare`, as large as events, and nothing else.

The schema and the statements are those of the store, with all that they keep for whoever asks later: streams with
their chains, a mirror of what the other side says, indexes for conversations, states and timers. What the rows say
was made of nothing, so this is what the tables alone allow, in whatever language the rest is written.
"""

import contextlib
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

from agentpost.bench.peers.bare import BarePair, PlainHand, receive, trip_pair
from agentpost.bench.peers.tables import RECEIVER_NODE, SENDER_NODE, Row
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import AckType
from agentpost.store.database import Database
from agentpost.store.queries import SQL
from agentpost.store.values import CHAIN_START, Outcome

__all__ = ["kept_pair"]

_EPOCH: Final = "epoch"
_AGENT: Final = "bench-receiver"
# What `guarded` writes for a message of the bench, and for an ACK to it.
_MESSAGE_BYTES: Final = 986
_ACK_BYTES: Final = 514
# A head and its signature, as a mirror keeps them for each batch.
_HEAD: Final = bytes(200)
_SIGNATURE: Final = bytes(64)
_ACK_TIMEOUT_MS: Final = 20_000
# When the store moves its log into the database file, and how often it looks.
_CHECKPOINT_AT_PAGES: Final = 1000
_COMMITS_A_LOOK: Final = 8


class GatewayTables:
    """One side's records, written with the statements of the store."""

    def __init__(self, path: Path, *, node_id: str, peer: str) -> None:
        self._database = Database.open_writer(path)
        self._database.migrate()
        self._database.run(SQL.create_gateway, (node_id, _EPOCH, 0, CHAIN_START))
        self._peer = peer
        self._read_seq = 0
        self._commits = 0

    def sent(self, rows: Sequence[Row]) -> None:
        now_ms = _now_ms()
        alike = (_AGENT, self._peer, "owner", DeliveryState.EMITTED.value, 1, now_ms + _ACK_TIMEOUT_MS, now_ms)
        with self._transaction():
            self._append(rows)
            self._database.run_packed(
                SQL.add_deliveries,
                (*alike, None, None, None, None, "bench-sender"),
                [f"{event_id}{seq:020d}corr_{event_id[4:]}" for seq, event_id, _ in rows],
            )

    def heard(self, acks: Sequence[tuple[str, str, bytes]]) -> None:
        now_ms = _now_ms()
        with self._transaction():
            self._database.run_packed(
                SQL.keep_mirror_events,
                (self._peer,),
                [CHAIN_START + b"%020d" % seq + body for seq, (_, _, body) in enumerate(acks, self._read_seq + 1)],
            )
            self._read_seq += len(acks)
            self._database.run(SQL.keep_mirror_head, (self._peer, self._read_seq, _HEAD, _SIGNATURE, now_ms))
            mirrored = (self._peer, _EPOCH, self._read_seq, CHAIN_START, 0, CHAIN_START, now_ms)
            self._database.run(SQL.move_mirror, mirrored)
            ended = [event_id + _AGENT for ack_type, event_id, _ in acks if ack_type == AckType.PROCESSED]
            moved = (DeliveryState.PROCESSED.value, None, now_ms, now_ms, None, None, None, DeliveryState.EMITTED.value)
            self._database.run_packed(SQL.move_expected, moved, ended)
            self._move_cursor(now_ms)

    def took(self, mail: Sequence[tuple[str, bytes]], accepted: Sequence[Row]) -> None:
        now_ms = _now_ms()
        places = [f"{place:020d}" for place in range(self._read_seq + 1, self._read_seq + len(mail) + 1)]
        self._read_seq += len(mail)
        with self._transaction():
            self._database.rows_for(SQL.known_events, [event_id for event_id, _ in mail])
            self._database.run_packed(
                SQL.take_events,
                (self._peer, _EPOCH, now_ms),
                [
                    f"{event_id}{place}{place}corr_{event_id[4:]}".encode() + body
                    for place, (event_id, body) in zip(places, mail, strict=True)
                ],
            )
            self._database.run_packed(
                SQL.open_ledger_entries,
                (_AGENT, now_ms),
                [event_id + place for place, (event_id, _) in zip(places, mail, strict=True)],
            )
            self._append(accepted)
            self._move_cursor(now_ms)

    def settled(self, event_ids: Sequence[str], processed: Sequence[Row]) -> None:
        now_ms = _now_ms()
        pairs = [event_id + _AGENT for event_id in event_ids]
        with self._transaction():
            self._database.run_packed(SQL.settle, (now_ms, Outcome.PROCESSED.value, None, now_ms), pairs)
            self._append(processed)

    def close(self) -> None:
        self._database.close()

    def _append(self, rows: Sequence[Row]) -> None:
        self._database.run_packed(
            SQL.append_events,
            (rows[0][0] - 1,),
            [event_id.encode() + CHAIN_START + body for _, event_id, body in rows],
        )
        reader = self._peer.encode()
        self._database.run_packed(SQL.extend_streams, (), [CHAIN_START + b"%020d" % seq + reader for seq, _, _ in rows])

    def _move_cursor(self, now_ms: int) -> None:
        self._database.run(SQL.move_cursor, (self._peer, _EPOCH, self._read_seq, CHAIN_START, now_ms))

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        self._database.begin()
        yield
        self._database.commit()
        self._commits += 1
        if self._commits % _COMMITS_A_LOOK == 0 and self._database.log_pages() >= _CHECKPOINT_AT_PAGES:
            self._database.checkpoint()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _hand(node_id: str) -> PlainHand:
    return PlainHand(node_id, message_bytes=_MESSAGE_BYTES, ack_bytes=_ACK_BYTES)


def _sender_tables(path: Path) -> GatewayTables:
    return GatewayTables(path, node_id=SENDER_NODE, peer=RECEIVER_NODE)


def _receiver_tables(path: Path) -> GatewayTables:
    return GatewayTables(path, node_id=RECEIVER_NODE, peer=SENDER_NODE)


@contextlib.contextmanager
def kept_pair(folder: Path) -> Generator[BarePair]:
    """Sender and receiver of plain records in gateways' tables, with their databases in `folder`."""
    with trip_pair(__name__, _hand(SENDER_NODE), _sender_tables, folder) as pair:
        yield pair


if __name__ == "__main__":
    receive(_hand(RECEIVER_NODE), _receiver_tables, port=int(sys.argv[1]), folder=Path(sys.argv[2]))
