"""The streams of the outbox: each gateway that reads it gets what names it, and can tell that nothing was left out."""

import asyncio
from pathlib import Path

import pytest

from agentpost.protocol.codec import MAX_EVENT_BYTES, decode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code
from agentpost.protocol.heads import next_chain
from agentpost.store.integrity import check_home
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import CHAIN_START, Appended, StreamSlice
from agentpost.testing import START_MS, a_message
from tests.store.building import (
    NODE,
    PEER,
    PEER_EPOCH,
    a_batch,
    a_settlement,
    a_subscriber,
    append_messages,
    deliveries_of,
    from_peer,
    incoming,
    open_sqlite,
    refused,
    to_nodes,
    visible,
)


def for_nodes(number: int, *nodes: str, body: str = "") -> Event:
    return to_nodes(a_message(number, body=body), *nodes)


def seqs(part: StreamSlice) -> list[int]:
    return [event.seq for event in part.events]


def is_chained(part: StreamSlice, chain: bytes = CHAIN_START) -> bool:
    """Whether the chains of a stream are those that its reader computes from what it has."""
    for event in part.events:
        chain = next_chain(chain, event.raw)
        if event.chain != chain:
            return False
    return part.chain == chain


@pytest.mark.req("PIPE-9")
async def test_a_reader_gets_what_names_it_and_no_more(store: Store) -> None:
    """Three gateways read one outbox, and each has its own stream of it, the own one for local mail included."""
    await store.append(
        [
            for_nodes(1, PEER),
            for_nodes(2, PEER, "node-c"),
            for_nodes(3),
            for_nodes(4, NODE),
            for_nodes(5, "node-c", "node-c"),
        ]
    )
    assert {node: seqs(store.read_stream(node, 0)) for node in (PEER, "node-c", NODE, "node-z")} == {
        PEER: [1, 2],
        "node-c": [2, 5],
        NODE: [4],
        "node-z": [],
    }
    stored = {event.seq: event.raw for event in store.read_outbox(0).events}
    assert all(event.raw == stored[event.seq] for event in store.read_stream("node-c", 0).events)


@pytest.mark.req("PIPE-9")
async def test_a_stream_has_a_chain_of_its_own(store: Store) -> None:
    """A reader that has only its stream can compute every chain of it, over any number of appends and pieces."""
    await store.append([for_nodes(1, PEER), for_nodes(2, "node-c"), for_nodes(3, PEER)])
    await store.append([for_nodes(4, PEER, "node-c")])
    first = store.read_stream(PEER, 0)
    assert is_chained(first)
    await store.append([for_nodes(5, PEER)])
    rest = store.read_stream(PEER, first.through_seq)
    assert seqs(rest) == [5]
    assert is_chained(rest, first.chain)


async def test_a_slice_says_how_far_it_goes(store: Store) -> None:
    """To its last event while more remain, else to the end of the outbox, with both chains as they are there."""
    await store.append([for_nodes(1, PEER), for_nodes(2, PEER), for_nodes(3), for_nodes(4, PEER), for_nodes(5)])
    whole = store.read_outbox(0).events
    part = store.read_stream(PEER, 0, limit=2)
    assert (seqs(part), part.after_seq, part.through_seq, part.last_event_seq) == ([1, 2], 0, 2, 2)
    assert (part.chain, part.outbox_chain) == (part.events[-1].chain, whole[1].chain)
    rest = store.read_stream(PEER, 2, limit=1)
    assert (seqs(rest), rest.after_seq, rest.through_seq, rest.last_event_seq) == ([4], 2, 5, 4)
    assert (rest.chain, rest.outbox_chain) == (rest.events[-1].chain, store.head().chain)
    end = store.read_stream(PEER, 5)
    assert (seqs(end), end.through_seq, end.last_event_seq) == ([], 5, 4)
    assert (end.chain, end.outbox_chain) == (rest.chain, store.head().chain)


async def test_a_reader_without_events_still_learns_where_the_outbox_ends(store: Store) -> None:
    """Its cursor can pass what was not for it; an empty outbox ends where it begins."""
    assert store.read_stream(PEER, 0) == StreamSlice(
        after_seq=0,
        through_seq=0,
        floor_seq=0,
        outbox_chain=CHAIN_START,
        chain=CHAIN_START,
        last_event_seq=0,
        events=(),
    )
    await append_messages(store, 3)
    part = store.read_stream(PEER, 0)
    assert (part.through_seq, part.last_event_seq, part.chain) == (3, 0, CHAIN_START)
    assert part.outbox_chain == store.head().chain


@pytest.mark.req("CUR-6")
async def test_a_reader_that_is_ahead_sees_that_it_is(store: Store) -> None:
    """A reader that has more than the outbox holds is told where the outbox really ends."""
    await store.append([for_nodes(1, PEER)])
    part = store.read_stream(PEER, 70)
    assert (seqs(part), part.through_seq, part.last_event_seq) == ([], 1, 1)


async def test_a_slice_keeps_within_its_limits_but_gives_at_least_one(store: Store) -> None:
    """Neither a small limit nor a large event leaves a reader stuck, and pieces together are the whole."""
    await store.append([for_nodes(number, PEER, body="x" * 1000) for number in range(1, 201)])
    size = len(store.read_stream(PEER, 0, limit=1).events[0].raw)
    assert seqs(store.read_stream(PEER, 0, limit=0)) == [1]
    assert seqs(store.read_stream(PEER, 0, max_bytes=1)) == [1]
    assert len(store.read_stream(PEER, 0, max_bytes=3 * size + 10).events) == 3
    after, found, chain = 0, list[int](), CHAIN_START
    while part := store.read_stream(PEER, after, limit=64):
        if not part.events:
            break
        assert is_chained(part, chain)
        found, after, chain = found + seqs(part), part.through_seq, part.chain
    assert found == list(range(1, 201))


@pytest.mark.req("PIPE-2", "ACK-1")
async def test_acks_and_replies_go_into_the_streams_too(store: Store) -> None:
    """Whatever is appended, with an acceptance or a settlement, is in the streams of whom it names."""
    event = from_peer(1)
    inbound = incoming(event)
    inbound.acks["ada"] = to_nodes(inbound.acks["ada"], PEER)
    await store.accept(a_batch(inbound))
    settlement = a_settlement(event)
    reply = to_nodes(settlement.events[0], PEER)
    await store.settle(a_settlement(event, events=(reply,)))
    part = store.read_stream(PEER, 0)
    assert [decode_event(each.raw).kind.value for each in part.events] == ["ack", "reply"]
    assert is_chained(part)


@pytest.mark.req("ENV-2")
async def test_a_refused_append_leaves_no_trace_in_a_stream(store: Store) -> None:
    """Neither in the file nor in what the next events build on, whoever shares the commit."""
    await store.append([for_nodes(1, PEER)])
    before = visible(store)
    with refused(Code.TOO_LARGE):
        await store.append([for_nodes(2, PEER, "node-c"), for_nodes(3, PEER, body="x" * (MAX_EVENT_BYTES + 1))])
    assert visible(store) == before
    bad = to_nodes(a_message(5, source_node_id="node-z"), PEER)
    appends = [store.append([for_nodes(4, PEER, "node-c")]), store.append([for_nodes(6, PEER), bad])]
    appends += [store.append([for_nodes(number, PEER, "node-c")]) for number in (7, 8)]
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert [result for result in results if isinstance(result, Appended)] == [
        Appended(first_seq=seq, last_seq=seq) for seq in (2, 3, 4)
    ]
    assert (seqs(store.read_stream(PEER, 0)), seqs(store.read_stream("node-c", 0))) == ([1, 2, 3, 4], [2, 3, 4])
    assert is_chained(store.read_stream(PEER, 0))
    assert is_chained(store.read_stream("node-c", 0))


@pytest.mark.req("ENV-2")
async def test_a_commit_that_is_undone_is_undone_in_the_streams(store: Store) -> None:
    """A delivery that is there already spoils its append, and the streams go on as if it had not been."""
    event = for_nodes(1, PEER)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    appends = [store.append([event], deliveries=deliveries_of(event, "bob")), store.append([for_nodes(2, PEER)])]
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert results[1] == Appended(first_seq=2, last_seq=2)
    part = store.read_stream(PEER, 0)
    assert seqs(part) == [1, 2]
    assert is_chained(part)


@pytest.mark.req("PIPE-7")
async def test_a_pruned_stream_goes_on_where_it_was(store: Store) -> None:
    """Compaction takes the rows of pruned events with it, and the next event builds on what was there."""
    await store.append([for_nodes(1, PEER), for_nodes(2, "node-c"), for_nodes(3, PEER, "node-c"), for_nodes(4)])
    before = {node: store.read_stream(node, 0) for node in (PEER, "node-c")}
    await store.note_subscriber(a_subscriber(4))
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=2))
    part = store.read_stream("node-c", 0)
    assert (seqs(part), part.floor_seq, part.chain) == ([3], 2, before["node-c"].chain)
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))
    for node in (PEER, "node-c"):
        part = store.read_stream(node, 0)
        assert (seqs(part), part.floor_seq, part.last_event_seq, part.through_seq) == ([], 3, 3, 4)
        assert (part.chain, part.outbox_chain) == (before[node].chain, store.head().chain)
    await store.append([for_nodes(5, PEER)])
    assert is_chained(store.read_stream(PEER, 4), before[PEER].chain)


@pytest.mark.req("PIPE-7")
async def test_the_floor_of_a_stream_is_the_last_event_that_its_reader_cannot_get(store: Store) -> None:
    """A reader that was away while others' events were pruned has missed nothing."""
    await store.append([for_nodes(1, PEER), *(for_nodes(number, "node-c") for number in range(2, 8))])
    await store.note_subscriber(a_subscriber(7))
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=1))
    assert [store.read_stream(node, 0).floor_seq for node in (PEER, "node-c", "node-z")] == [1, 6, 0]


@pytest.mark.req("PIPE-7", "CUR-2")
async def test_local_mail_that_was_not_read_is_not_pruned(store: Store) -> None:
    """The own stream has a cursor like any other, and what lies beyond it stays, whatever other readers have read."""
    await store.append([for_nodes(1), for_nodes(2, NODE), for_nodes(3), for_nodes(4, NODE)])
    await store.note_subscriber(a_subscriber(4))
    assert (await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))).outbox_floor_seq == 1
    await store.accept(a_batch(source_node_id=NODE, source_epoch=store.epoch, after=0, through=3))
    assert (await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))).outbox_floor_seq == 3
    await store.accept(a_batch(source_node_id=NODE, source_epoch=store.epoch, after=3, through=4))
    assert (await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))).outbox_floor_seq == 4


@pytest.mark.req("PIPE-3")
async def test_streams_go_on_after_a_restart(home: Path) -> None:
    """Opened again, pruned or not, each stream has the chain that it ended with."""
    store = open_sqlite(home)
    await store.append([for_nodes(1, PEER), for_nodes(2, "node-c")])
    await store.note_subscriber(a_subscriber(1))
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))
    ends = {node: store.read_stream(node, 2).chain for node in (PEER, "node-c")}
    await store.close()

    store = open_sqlite(home)
    await store.append([for_nodes(3, PEER, "node-c")])
    for node, chain in ends.items():
        assert is_chained(store.read_stream(node, 2), chain)
    await store.close()
    assert check_home(home).problems == ()


async def test_a_slice_is_of_one_moment(sqlite_store: SqliteStore) -> None:
    """Read while others append, a slice that says it goes to the end has every event up to there."""
    await append_messages(sqlite_store, 1)

    async def grow() -> None:
        for number in range(2, 150):
            await sqlite_store.append([for_nodes(number, PEER)])

    growing = asyncio.ensure_future(grow())
    while not growing.done():
        part = sqlite_store.read_stream(PEER, 0, limit=10_000)
        assert seqs(part) == list(range(2, part.through_seq + 1))
        assert is_chained(part)
        await asyncio.sleep(0)
    await growing


@pytest.mark.req("CUR-6", "RTY-3")
async def test_a_source_of_a_new_epoch_is_read_from_its_start(store: Store) -> None:
    """The cursor begins anew, and the ledger still knows what was taken in the life before."""
    await store.accept(a_batch(incoming(from_peer(1)), through_chain=b"c" * 32))
    with refused(Code.EPOCH_MISMATCH):
        await store.accept(a_batch(incoming(from_peer(1)), source_epoch="its next life"))
    await store.restart_cursor(PEER, epoch="its next life", at_ms=START_MS + 7)
    cursor = store.cursor(PEER)
    assert cursor is not None
    assert (cursor.epoch, cursor.last_seq, cursor.last_chain) == ("its next life", 0, CHAIN_START)
    assert cursor.updated_at_ms == START_MS + 7
    taken = await store.accept(a_batch(incoming(from_peer(1)), incoming(from_peer(2)), source_epoch="its next life"))
    assert (taken.new, taken.repeated) == (((from_peer(2).event_id, "ada"),), ((from_peer(1).event_id, "ada"),))


async def test_a_source_that_was_never_read_can_be_begun(store: Store) -> None:
    """There is a cursor then, at the start."""
    await store.restart_cursor(PEER, epoch=PEER_EPOCH, at_ms=START_MS)
    assert [(cursor.source_node_id, cursor.last_seq) for cursor in store.cursors()] == [(PEER, 0)]
