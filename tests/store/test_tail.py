"""The end of the outbox in memory: it says the same as the file, or leaves it to the file."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from agentpost.protocol.errors import Refusal
from agentpost.store import tail as tail_module
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import Head, OutboxSlice, StreamSlice
from agentpost.testing import START_MS, a_message
from tests.store.building import NODE, a_subscriber, deliveries_of

READERS = ("node-b", "node-c", "node-d")


async def append(store: SqliteStore, first: int, to: Sequence[Sequence[str]]) -> None:
    """Messages from number `first` on, each for these nodes, in one transaction."""
    events = [a_message(number, source_node_id=NODE) for number in range(first, first + len(to))]
    await store.append([replace(event, to_nodes=tuple(nodes)) for event, nodes in zip(events, to, strict=True)])


def ends_of(store: SqliteStore, part: OutboxSlice) -> dict[str, Head]:
    """Where the streams end that have an event of this part, as the file says."""
    ends: dict[str, Head] = {}
    for reader in READERS:
        for event in store.read_stream(reader, part.after_seq, limit=1_000, max_bytes=1 << 30).events:
            if part.events and event.seq <= part.events[-1].seq:
                ends[reader] = Head(seq=event.seq, chain=event.chain)
    return ends


def slices(
    store: SqliteStore, after_seq: int, limit: int, max_bytes: int, *, may_lag: bool
) -> list[OutboxSlice | StreamSlice]:
    outbox = store.read_outbox(after_seq, limit=limit, max_bytes=max_bytes, may_lag=may_lag)
    if outbox.ends is None:
        outbox = replace(outbox, ends=ends_of(store, outbox))
    found: list[OutboxSlice | StreamSlice] = [outbox]
    found += [
        store.read_stream(reader, after_seq, limit=limit, max_bytes=max_bytes, may_lag=may_lag) for reader in READERS
    ]
    return found


@pytest.mark.req("PIPE-9")
@pytest.mark.parametrize("seed", range(4))
async def test_what_a_feed_is_given_is_what_stands_in_the_file(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever was appended and pruned, a feed gets the same events, chains and ends from memory as from the file."""
    monkeypatch.setattr(tail_module, "_MOST_EVENTS", 40)
    chance = random.Random(seed)
    number = 1
    for _ in range(60):
        to = [chance.sample(READERS, chance.randint(0, 2)) for _ in range(chance.randint(1, 7))]
        await append(sqlite_store, number, to)
        number += len(to)
        if chance.random() < 0.1:
            last_seq = sqlite_store.head().seq
            await sqlite_store.note_subscriber(a_subscriber(last_seq))
            retention = chance.randint(0, 30)
            await sqlite_store.compact(sqlite_store.watermarks(now_ms=START_MS, retention_events=retention))
        for _ in range(5):
            after_seq = max(sqlite_store.head().seq - chance.randint(-1, 50), 0)
            limit, max_bytes = chance.randint(1, 20), chance.choice([1, 2_000, 1 << 20])
            said = slices(sqlite_store, after_seq, limit, max_bytes, may_lag=True)
            assert said == slices(sqlite_store, after_seq, limit, max_bytes, may_lag=False)


async def test_what_a_neighbour_spoiled_is_not_missed(sqlite_store: SqliteStore) -> None:
    """Appends that share a commit with one that is refused are there for the feeds, as they stand in the file."""
    await append(sqlite_store, 1, [["node-b"]])
    good = [replace(a_message(number, source_node_id=NODE), to_nodes=("node-b",)) for number in (2, 4)]
    bad = replace(a_message(3, source_node_id=NODE), to_nodes=("node-b",))
    twice = deliveries_of(bad, "bob", "bob")
    answers = await asyncio.gather(
        sqlite_store.append(good[:1]),
        sqlite_store.append([bad], deliveries=twice),
        sqlite_store.append(good[1:]),
        sqlite_store.append([bad], deliveries=twice),
        return_exceptions=True,
    )
    assert [isinstance(answer, Refusal) for answer in answers] == [False, True, False, True]
    for after_seq in range(4):
        said = slices(sqlite_store, after_seq, 10, 1 << 20, may_lag=True)
        assert said == slices(sqlite_store, after_seq, 10, 1 << 20, may_lag=False)


async def test_a_feed_that_keeps_up_does_not_read_the_file(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was appended just now is not read back."""
    await append(sqlite_store, 1, [["node-b"]])
    sqlite_store.read_stream("node-b", 0, may_lag=True)
    monkeypatch.setattr("agentpost.store.streams.read_stream", None)
    for number in range(2, 10):
        await append(sqlite_store, number, [["node-b"], ["node-c"]] if number % 2 else [["node-b"]])
        assert sqlite_store.read_stream("node-b", sqlite_store.head().seq - 1, may_lag=True).through_seq
