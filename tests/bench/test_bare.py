"""The limits that round trips are held against have to write what a round trip writes."""

# apsw's type stubs use collections.abc.Buffer, which Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import apsw
import pytest

from agentpost.bench.peers.bare import BarePair, bare_pair
from agentpost.bench.peers.guarded import guarded_pair
from agentpost.bench.peers.kept import kept_pair
from agentpost.bench.peers.trip import BODY
from agentpost.protocol.codec import decode_event
from agentpost.protocol.heads import chain_over
from agentpost.store.values import CHAIN_START


@pytest.mark.parametrize("by_hand", [bare_pair, guarded_pair])
def test_a_trip_by_hand_leaves_every_record_of_a_message(
    by_hand: Callable[[Path], AbstractContextManager[BarePair]], tmp_path: Path
) -> None:
    """Message, delivery, inbox, ledger and two ACKs are there for each message, and every one of them has ended."""
    with by_hand(tmp_path) as pair:
        trip = pair.trip(window=8, messages=40)
    assert trip.messages == 40
    assert trip.p50_ms > 0
    assert _counts(tmp_path / "sender.db", "outbox", "deliveries WHERE state = 2") == [40, 40]
    assert _counts(tmp_path / "receiver.db", "inbox", "ledger WHERE state = 2", "outbox") == [40, 40, 80]


def test_the_limit_of_the_tables_writes_what_a_gateway_writes(tmp_path: Path) -> None:
    """In a gateway's tables each message has its delivery, its place in the streams, and what the sender mirrors."""
    with kept_pair(tmp_path) as pair:
        pair.trip(window=8, messages=40)
    sender, receiver = tmp_path / "sender.db", tmp_path / "receiver.db"
    tables = ("outbox", "streams", "deliveries WHERE state = 'Processed'", "mirror_events")
    assert _counts(sender, *tables) == [40, 40, 40, 80]
    assert _counts(receiver, "inbox", "ledger WHERE state = 'settled'", "outbox", "streams") == [40, 40, 80, 80]
    assert {len(body) for body in _bodies(sender, "outbox")} == {986}
    assert {len(body) for body in _bodies(receiver, "outbox")} == {514}


def test_the_safe_limit_keeps_what_a_gateway_promises(tmp_path: Path) -> None:
    """What is sealed and signed by hand is as safe as what a gateway sends: its events can be read, its words not."""
    with guarded_pair(tmp_path) as pair:
        pair.trip(window=4, messages=12)
    sent, taken = _bodies(tmp_path / "sender.db", "outbox"), _bodies(tmp_path / "receiver.db", "inbox")
    assert [decode_event(body).seq for body in taken] == list(range(1, 13))
    assert chain_over(CHAIN_START, sent) == chain_over(CHAIN_START, taken)
    assert not any(BODY[:16].encode() in body for body in sent)


def _bodies(path: Path, table: str) -> list[bytes]:
    database = apsw.Connection(str(path))
    bodies = [body for (body,) in database.execute(f"SELECT body FROM {table} ORDER BY seq")]  # noqa: S608 - as below
    database.close()
    return bodies


def _counts(path: Path, *tables: str) -> list[int]:
    database = apsw.Connection(str(path))
    counts = [database.execute(f"SELECT count(*) FROM {table}").get for table in tables]  # noqa: S608 - our own words
    database.close()
    return counts
