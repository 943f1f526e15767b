"""Compaction: what nobody needs any more leaves the streams, and nothing else does."""

from pathlib import Path

import pytest

from agentpost.protocol.errors import Code
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.integrity import check_home
from agentpost.store.interface import Store
from agentpost.store.values import Appended, Compacted, InboxPosition, KnownNode
from agentpost.testing import START_MS, a_message
from tests.store.building import (
    EPOCH,
    NODE,
    a_batch,
    a_change,
    a_settlement,
    a_subscriber,
    append_messages,
    chain_is_whole,
    deliveries_of,
    from_peer,
    incoming,
    open_sqlite,
    outbox_seqs,
    refused,
    to_nodes,
    visible,
)

A_STRANGER = KnownNode(
    node_id="node-z", signing_public="z", tier=NodeTier.BACKBONE, admitted_by=NODE, pinned_at_ms=START_MS
)


async def compact(store: Store, *, retention: int = 0, now_ms: int = START_MS, limit: int = 10_000) -> Compacted:
    return await store.compact(store.watermarks(now_ms=now_ms, retention_events=retention), limit=limit)


async def take_and_settle(store: Store, count: int, *, settled: int) -> None:
    events = [from_peer(number) for number in range(1, count + 1)]
    await store.accept(a_batch(*(incoming(event) for event in events)))
    for event in events[:settled]:
        await store.settle(a_settlement(event))


@pytest.mark.req("PIPE-7")
async def test_the_outbox_is_pruned_below_the_slowest_subscriber_less_the_retention(store: Store) -> None:
    """What every active subscriber has read is pruned, except for the retention window."""
    await append_messages(store, 20)
    await store.note_subscriber(a_subscriber(18))
    await store.note_subscriber(a_subscriber(12, node_id="node-c"))
    assert await compact(store, retention=5) == Compacted(
        outbox_events=7, inbox_events=0, outbox_floor_seq=7, inbox_floor_seq=0
    )
    assert outbox_seqs(store) == list(range(8, 21))
    assert await compact(store, retention=5) == Compacted(
        outbox_events=0, inbox_events=0, outbox_floor_seq=7, inbox_floor_seq=0
    )


@pytest.mark.req("PIPE-7")
async def test_without_an_active_subscriber_nothing_is_pruned(store: Store) -> None:
    """Nobody has shown to have read anything, so everything stays."""
    await append_messages(store, 5)
    before = visible(store)
    assert (await compact(store)).outbox_events == 0
    assert visible(store) == before


@pytest.mark.req("PIPE-7", "CUR-5")
async def test_a_subscriber_whose_lease_expired_does_not_count(store: Store) -> None:
    """One that has gone silent neither holds back compaction nor, alone, allows it."""
    await append_messages(store, 10)
    await store.note_subscriber(a_subscriber(3, node_id="node-c", lease_expires_at_ms=START_MS))
    assert (await compact(store)).outbox_events == 0
    await store.note_subscriber(a_subscriber(8, lease_expires_at_ms=START_MS + 1))
    assert (await compact(store)).outbox_floor_seq == 8


@pytest.mark.req("PIPE-7", "CUR-6")
async def test_a_subscriber_of_another_epoch_does_not_count(store: Store) -> None:
    """A position in another life of the outbox says nothing about this one."""
    await append_messages(store, 10)
    await store.note_subscriber(a_subscriber(9, node_id="node-c", epoch="an earlier life"))
    assert (await compact(store)).outbox_events == 0
    await store.note_subscriber(a_subscriber(4))
    assert (await compact(store)).outbox_floor_seq == 4


@pytest.mark.req("PIPE-7")
async def test_a_subscriber_cannot_have_read_what_is_not_there(store: Store) -> None:
    """A cursor beyond the end prunes up to the end, and the next event has the next seq."""
    await append_messages(store, 3)
    await store.note_subscriber(a_subscriber(1_000))
    assert (await compact(store)).outbox_floor_seq == 3
    assert await store.append([a_message(4)]) == Appended(first_seq=4, last_seq=4)


@pytest.mark.req("PIPE-8", "PIPE-7")
async def test_an_unaccepted_delivery_holds_its_event(store: Store) -> None:
    """What may have to be sent again stays until its ACK is seen, even if every subscriber has read past it."""
    await append_messages(store, 4)
    waiting = a_message(5)
    await store.append([waiting], deliveries=deliveries_of(waiting, "bob"))
    await append_messages(store, 5, first=6)
    await store.note_subscriber(a_subscriber(10))
    assert (await compact(store)).outbox_floor_seq == 4
    await store.append([], changes=[a_change(waiting, DeliverySignal.ACK_TIMEOUT)])
    assert (await compact(store)).outbox_floor_seq == 4
    await store.append([], changes=[a_change(waiting, DeliverySignal.ACCEPTED)])
    assert (await compact(store)).outbox_floor_seq == 10
    assert store.find_event(waiting.event_id) is None


@pytest.mark.req("PIPE-8")
async def test_a_resend_frees_the_place_of_the_first_send(store: Store) -> None:
    """Once an event was sent again, it is the new send that is held."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    await append_messages(store, 3, first=2)
    await store.append([], changes=[a_change(event, DeliverySignal.ACK_TIMEOUT)])
    await store.append([a_message(1, attempt=2)], changes=[a_change(event, DeliverySignal.RESENT)])
    await store.note_subscriber(a_subscriber(5))
    assert (await compact(store)).outbox_floor_seq == 4
    found = store.find_event(event.event_id)
    assert found is not None
    assert found.seq == 5


@pytest.mark.req("PIPE-7")
async def test_the_inbox_is_pruned_up_to_the_acked_seq_less_the_retention(store: Store) -> None:
    """Only what every agent has settled leaves the inbox, and the retention window stays."""
    await take_and_settle(store, 10, settled=6)
    assert (await compact(store, retention=2)).inbox_floor_seq == 4
    assert store.inbox_position() == InboxPosition(latest_seq=10, acked_seq=6)
    assert [item.entry.inbox_seq for item in store.backlog("ada")] == [7, 8, 9, 10]
    assert (await compact(store, retention=0)).inbox_events == 2


@pytest.mark.req("PIPE-7", "RTY-5")
async def test_an_open_event_is_never_pruned(store: Store) -> None:
    """An event that one agent has not settled stays, however many settled ones follow it."""
    events = [from_peer(number) for number in range(1, 6)]
    await store.accept(a_batch(*(incoming(event) for event in events)))
    for event in events[1:]:
        await store.settle(a_settlement(event))
    assert (await compact(store)).inbox_events == 0
    assert [item.source_seq for item in store.backlog("ada")] == [1]


@pytest.mark.req("RTY-3", "PIPE-7")
async def test_the_ledger_still_knows_what_the_inbox_has_forgotten(store: Store) -> None:
    """A resend that arrives after its event was pruned is still a repeat, and is not injected again."""
    await take_and_settle(store, 3, settled=3)
    await compact(store)
    head = store.head()
    taken = await store.accept(a_batch(incoming(from_peer(2, seq=4, attempt=2)), after=3))
    assert (taken.new, taken.repeated) == ((), ((from_peer(2).event_id, "ada"),))
    assert store.backlog("ada") == []
    assert store.head() == head
    assert store.inbox_position() == InboxPosition(latest_seq=3, acked_seq=3)


@pytest.mark.req("RTY-3", "PIPE-7")
async def test_a_new_agent_gets_a_pruned_event_at_a_new_place(store: Store) -> None:
    """A resend that adds an agent after the event was pruned brings the event back for that agent alone."""
    await take_and_settle(store, 3, settled=3)
    await compact(store)
    taken = await store.accept(a_batch(incoming(from_peer(2, seq=4, attempt=2), "ada", "eve"), after=3))
    assert taken.new == ((from_peer(2).event_id, "eve"),)
    assert [item.entry.inbox_seq for item in store.backlog("eve")] == [4]
    assert store.inbox_position() == InboxPosition(latest_seq=4, acked_seq=3)


@pytest.mark.req("PIPE-7")
async def test_compaction_goes_in_steps(store: Store) -> None:
    """No step prunes more than its limit, and the steps together prune everything that may go."""
    await take_and_settle(store, 10, settled=10)  # 10 acks and 10 replies
    await store.note_subscriber(a_subscriber(20))
    steps = [await compact(store, limit=8) for _ in range(4)]
    assert [step.outbox_events for step in steps] == [8, 8, 4, 0]
    assert [step.inbox_events for step in steps] == [8, 2, 0, 0]
    assert (steps[-1].outbox_floor_seq, steps[-1].inbox_floor_seq) == (20, 10)


@pytest.mark.req("ENV-2", "PIPE-7")
async def test_both_streams_count_on_after_everything_was_pruned(store: Store) -> None:
    """An empty stream remembers where it was."""
    await take_and_settle(store, 3, settled=3)
    head = store.head()
    await store.note_subscriber(a_subscriber(6))
    await compact(store)
    assert store.read_outbox(0).events == ()
    assert store.head() == head
    assert await store.append([a_message(7)]) == Appended(first_seq=7, last_seq=7)
    await store.accept(a_batch(incoming(from_peer(4)), after=3))
    assert store.inbox_position() == InboxPosition(latest_seq=4, acked_seq=3)


async def test_the_chain_stays_whole_over_a_compaction(store: Store) -> None:
    """What is left after pruning still hangs together, and what follows builds on it."""
    await append_messages(store, 10)
    await store.note_subscriber(a_subscriber(6))
    await compact(store)
    await append_messages(store, 3, first=11)
    assert chain_is_whole(store)


@pytest.mark.req("ENV-2", "PIPE-7")
async def test_both_streams_count_on_after_a_restart_with_everything_pruned(home: Path) -> None:
    """Pruned to nothing and opened again, the outbox and the inbox go on where they were."""
    store = open_sqlite(home)
    await take_and_settle(store, 3, settled=3)
    await store.note_subscriber(a_subscriber(6))
    await compact(store)
    head = store.head()
    await store.close()

    store = open_sqlite(home)
    assert store.head() == head
    assert await store.append([a_message(7)]) == Appended(first_seq=7, last_seq=7)
    await store.accept(a_batch(incoming(from_peer(4)), after=3))
    assert store.inbox_position() == InboxPosition(latest_seq=4, acked_seq=3)
    await store.close()
    assert check_home(home).problems == ()


async def test_a_subscriber_is_what_it_said_last(store: Store) -> None:
    """Each subscriber has one record, and the latest word counts, even a lower one."""
    await store.note_subscriber(a_subscriber(9))
    await store.note_subscriber(a_subscriber(5, node_id="node-c"))
    await store.note_subscriber(a_subscriber(4, updated_at_ms=START_MS + 1))
    assert store.subscribers() == [a_subscriber(4, updated_at_ms=START_MS + 1), a_subscriber(5, node_id="node-c")]


async def test_a_retention_below_nothing_is_refused(store: Store) -> None:
    """A negative retention would prune what was not read yet; it is refused."""
    with refused(Code.INVALID_FIELD):
        await store.compact(store.watermarks(now_ms=0, retention_events=-1))


@pytest.mark.req("PIPE-7")
async def test_a_gateway_by_itself_prunes_what_it_has_read(store: Store) -> None:
    """Without another node in the room the gateway's own reader is the only one: what it has not read stays."""
    await store.append([to_nodes(a_message(number), NODE) for number in range(1, 11)])
    assert watermark_alone(store) == 0
    await store.accept(a_batch(through=7, source_node_id=NODE, source_epoch=EPOCH))
    assert watermark_alone(store) == 7
    assert watermark_alone(store, retention=3) == 4
    assert store.watermarks(now_ms=START_MS, retention_events=0).outbox_seq == 0
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0, is_alone=True))
    assert outbox_seqs(store)[0] == 8


@pytest.mark.req("PIPE-7", "ROOM-6")
async def test_a_gateway_by_itself_keeps_what_names_another_gateway(store: Store) -> None:
    """The room may not be known yet, so an event for a gateway that has not read it stays until that is revoked."""
    await store.append([to_nodes(a_message(1)), to_nodes(a_message(2), "node-z"), to_nodes(a_message(3))])
    assert watermark_alone(store) == 1
    await store.note_subscriber(a_subscriber(3, node_id="node-z"))
    assert watermark_alone(store) == 3
    await store.note_subscriber(a_subscriber(2, node_id="node-z", lease_expires_at_ms=START_MS))
    assert watermark_alone(store) == 1
    await store.pin_node(A_STRANGER)
    assert watermark_alone(store) == 1
    await store.revoke_node("node-z", at_ms=START_MS)
    assert watermark_alone(store) == 3


def watermark_alone(store: Store, *, retention: int = 0) -> int:
    return store.watermarks(now_ms=START_MS, retention_events=retention, is_alone=True).outbox_seq


@pytest.mark.req("PIPE-7")
async def test_watermarks_that_were_asked_for_before_are_good_for_a_round(store: Store) -> None:
    """What comes while a round prunes in steps stays: what is new stands behind what was asked for."""
    await append_messages(store, 6)
    await store.note_subscriber(a_subscriber(6))
    watermarks = store.watermarks(now_ms=START_MS, retention_events=0)
    assert (await store.compact(watermarks, limit=2)).outbox_floor_seq == 2
    waiting = a_message(7)
    await store.append([waiting], deliveries=deliveries_of(waiting, "bob"))
    await store.note_subscriber(a_subscriber(7))
    assert (await store.compact(watermarks, limit=100)).outbox_floor_seq == 6
    assert outbox_seqs(store) == [7]


@pytest.mark.req("RTY-7")
async def test_a_purge_forgets_the_events_of_its_own_letters_only(store: Store) -> None:
    """An event that left the outbox is kept as long as one of its deliveries is a dead letter."""
    events = [a_message(number) for number in (1, 2)]
    await store.append(events, deliveries=[each for event in events for each in deliveries_of(event, "bob", "eve")])
    await store.append(
        [],
        changes=[a_change(event, DeliverySignal.EXPIRED, agent=agent) for event in events for agent in ("bob", "eve")],
    )
    await store.note_subscriber(a_subscriber(2))
    assert (await compact(store)).outbox_floor_seq == 2
    await store.purge_deliveries([(events[0].event_id, "bob")])
    assert store.find_event(events[0].event_id) is not None
    await store.purge_deliveries([(events[0].event_id, "eve")])
    assert store.find_event(events[0].event_id) is None
    assert store.find_event(events[1].event_id) is not None
