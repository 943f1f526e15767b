"""The limit that round trips are held against has to write what a round trip writes."""

# apsw's type stubs use collections.abc.Buffer, which Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from pathlib import Path

import apsw

from agentpost.bench.peers.bare import bare_pair


def test_a_bare_trip_leaves_every_record_of_a_message(tmp_path: Path) -> None:
    """Message, delivery, inbox, ledger and two ACKs are there for each message, and every one of them has ended."""
    with bare_pair(tmp_path) as pair:
        trip = pair.trip(window=8, messages=40)
    assert trip.messages == 40
    assert trip.p50_ms > 0
    assert _counts(tmp_path / "sender.db", "outbox", "deliveries WHERE state = 2") == [40, 40]
    assert _counts(tmp_path / "receiver.db", "inbox", "ledger WHERE state = 2", "outbox") == [40, 40, 80]


def _counts(path: Path, *tables: str) -> list[int]:
    database = apsw.Connection(str(path))
    counts = [database.execute(f"SELECT count(*) FROM {table}").get for table in tables]  # noqa: S608 - our own words
    database.close()
    return counts
