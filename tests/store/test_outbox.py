"""The outbox: every event gets the next place, and only events of this node get one."""

import asyncio

import pytest

from agentpost.protocol.codec import MAX_EVENT_BYTES, decode_event
from agentpost.protocol.errors import Code
from agentpost.store.interface import Store
from agentpost.store.values import CHAIN_START, Appended, Head
from agentpost.testing import START_MS, a_message, a_reply, an_ack, an_event_id
from tests.store.building import (
    EPOCH,
    NODE,
    a_subscriber,
    append_messages,
    chain_is_whole,
    deliveries_of,
    outbox_seqs,
    refused,
    visible,
)


@pytest.mark.req("ENV-2")
async def test_the_first_event_has_seq_1_and_each_next_one_the_next(store: Store) -> None:
    """An outbox counts from 1, without a hole, whether events come one by one or together."""
    assert store.head() == Head(seq=0, chain=CHAIN_START)
    assert await store.append([a_message(1)]) == Appended(first_seq=1, last_seq=1)
    assert await store.append([a_message(2), a_message(3)]) == Appended(first_seq=2, last_seq=3)
    assert outbox_seqs(store) == [1, 2, 3]
    assert store.head().seq == 3


@pytest.mark.req("ENV-2", "ENV-4")
async def test_an_event_reads_back_as_it_was_appended_with_its_place(store: Store) -> None:
    """What is read from the outbox is the event that was appended, with the seq it was given."""
    sent = a_message(1, body="grüße 🙂", to_agents=("bob", "eve"))
    await store.append([a_message(9), sent])
    stored = store.find_event(sent.event_id)
    assert stored is not None
    assert decode_event(stored.raw) == a_message(1, body="grüße 🙂", to_agents=("bob", "eve"), seq=2)


async def test_an_append_of_nothing_changes_nothing(store: Store) -> None:
    """Appending no events is allowed and gives no seq."""
    await append_messages(store, 2)
    before = visible(store)
    assert await store.append([]) == Appended(first_seq=3, last_seq=2)
    assert visible(store) == before


@pytest.mark.req("PIPE-1")
async def test_an_event_of_another_node_is_refused_and_nothing_changes(store: Store) -> None:
    """A gateway cannot be made to speak in the name of another, not even in one event of many."""
    await append_messages(store, 2)
    before = visible(store)
    foreign = a_message(3, source_node_id="node-z")
    with refused(Code.FOREIGN_SOURCE) as caught:
        await store.append([a_message(4), foreign, a_message(5)], deliveries=deliveries_of(foreign, "bob"))
    assert caught.value.field == "sourceNodeId"
    assert visible(store, events=[]) == before
    assert store.deliveries_of(foreign.event_id) == []
    assert await store.append([a_message(4)]) == Appended(first_seq=3, last_seq=3)


@pytest.mark.req("ENV-2")
async def test_an_event_that_is_too_large_leaves_no_hole(store: Store) -> None:
    """A refused append takes no seq, even when good events stood before the bad one."""
    with refused(Code.TOO_LARGE):
        await store.append([a_message(1), a_message(2, body="x" * (MAX_EVENT_BYTES + 1))])
    assert store.head().seq == 0
    assert await store.append([a_message(3)]) == Appended(first_seq=1, last_seq=1)
    assert chain_is_whole(store)


@pytest.mark.req("ENV-2")
async def test_text_that_cannot_be_encoded_is_refused_by_field(store: Store) -> None:
    """Half a surrogate pair is no text: the refusal names the field and nothing is written."""
    with refused(Code.INVALID_FIELD) as caught:
        await store.append([a_message(1, body="\ud800")])
    assert caught.value.field == "payload.body"
    assert store.head().seq == 0


@pytest.mark.req("ENV-2")
async def test_refused_appends_among_good_ones_leave_no_hole(store: Store) -> None:
    """Callers that are refused while others append at the same time cost nobody a seq."""
    appends = [
        store.append([a_message(number, source_node_id="node-z" if number % 3 == 0 else NODE)])
        for number in range(1, 31)
    ]
    results = await asyncio.gather(*appends, return_exceptions=True)
    good = [result for result in results if isinstance(result, Appended)]
    assert [result.first_seq for result in good] == list(range(1, 21))
    assert outbox_seqs(store) == list(range(1, 21))
    assert chain_is_whole(store)


async def test_the_chain_covers_every_event(store: Store) -> None:
    """The hash at each seq covers its event and all before it, whatever the sizes of the appends."""
    await append_messages(store, 1)
    await append_messages(store, 7, first=2)
    await append_messages(store, 92, first=9)
    assert chain_is_whole(store)


@pytest.mark.req("PIPE-2")
async def test_acks_and_replies_stand_in_the_same_outbox(store: Store) -> None:
    """An acknowledgement and a reply are events of the outbox like any other."""
    asked = a_message(1, source_node_id="node-b", source_agent_id="bob")
    ack = an_ack(asked, by_agent_id="ada", by_node_id=NODE)
    reply = a_reply(asked, by_agent_id="ada", by_node_id=NODE)
    await store.append([ack, reply])
    kinds = [decode_event(stored.raw).kind.value for stored in store.read_outbox(0).events]
    assert kinds == ["ack", "reply"]


async def test_reading_starts_after_a_seq_and_stops_at_the_limit(store: Store) -> None:
    """A reader gets what follows its cursor, in order, and no more than it asked for."""
    await append_messages(store, 200)
    slice_ = store.read_outbox(50, limit=100)
    assert [stored.seq for stored in slice_.events] == list(range(51, 151))
    assert (slice_.after_seq, slice_.floor_seq) == (50, 0)
    assert [stored.seq for stored in store.read_outbox(198).events] == [199, 200]
    assert store.read_outbox(200).events == ()
    assert store.read_outbox(10_000).events == ()
    assert store.read_outbox(0, limit=0).events == ()


async def test_reading_stops_before_the_bytes_are_too_many_but_gives_at_least_one(store: Store) -> None:
    """A slice keeps within its bytes, except that one event is always given: nobody gets stuck on a large one."""
    await store.append([a_message(number, body="x" * 1000) for number in range(1, 6)])
    size = len(store.read_outbox(0, limit=1).events[0].raw)
    assert len(store.read_outbox(0, max_bytes=3 * size).events) == 3
    assert len(store.read_outbox(0, max_bytes=3 * size - 1).events) == 2
    assert len(store.read_outbox(0, max_bytes=1).events) == 1


async def test_finding_an_event_gives_its_latest_send(store: Store) -> None:
    """An event that was sent again is found at its new place; one that never was is not found."""
    await store.append([a_message(1), a_message(2)])
    await store.append([a_message(1, attempt=2)])
    stored = store.find_event(a_message(1).event_id)
    assert stored is not None
    assert (stored.seq, decode_event(stored.raw).trace.attempt) == (3, 2)
    assert store.find_event(an_event_id("never sent")) is None


@pytest.mark.req("PIPE-7")
async def test_after_a_compaction_the_floor_tells_readers_what_is_gone(store: Store) -> None:
    """A reader that asks for pruned events sees where the outbox begins now."""
    events = await append_messages(store, 10)
    await store.note_subscriber(a_subscriber(10))
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=4))
    slice_ = store.read_outbox(0)
    assert slice_.floor_seq == 6
    assert [stored.seq for stored in slice_.events] == [7, 8, 9, 10]
    assert store.find_event(events[5].event_id) is None
    assert store.find_event(events[6].event_id) is not None


async def test_a_store_says_whose_it_is(store: Store) -> None:
    """The node and the life of the outbox are what the store was opened with."""
    assert (store.node_id, store.epoch) == (NODE, EPOCH)
