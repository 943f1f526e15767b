"""Taking a batch from a source: inbox, ledger, ACKs, deliveries and cursor move together, or not at all."""

import pytest

from agentpost.protocol.codec import Unreadable, decode_event, encode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.payloads import AckType
from agentpost.store.interface import Store
from agentpost.store.values import Acceptance, Inbound, LedgerState
from agentpost.testing import START_MS, a_message, an_ack
from tests.store.building import (
    NODE,
    PEER,
    PEER_EPOCH,
    a_batch,
    a_change,
    append_messages,
    deliveries_of,
    from_peer,
    incoming,
    refused,
    visible,
)

FIRST, SECOND, THIRD = from_peer(1), from_peer(2), from_peer(3)


def an_unreadable(seq: int | None) -> Unreadable:
    refusal = Refusal(Code.UNKNOWN_KIND, "kind 'poem' is not one that this protocol knows", field="kind")
    return Unreadable(raw=b"\x81poem", refusal=refusal, seq=seq, event_id="evt_poem")


def backlog_ids(store: Store, agent: str = "ada") -> list[str]:
    return [item.entry.event_id for item in store.backlog(agent)]


@pytest.mark.req("CUR-1", "CUR-2", "ACK-2", "PIPE-2")
async def test_a_batch_becomes_inbox_ledger_acks_and_cursor_at_once(store: Store) -> None:
    """What was read is queued for its agents, acknowledged in the own outbox, and passed by the cursor."""
    chain = b"c" * 32
    taken = await store.accept(a_batch(incoming(FIRST), incoming(SECOND, "ada", "eve"), through_chain=chain))
    pairs = ((FIRST.event_id, "ada"), (SECOND.event_id, "ada"), (SECOND.event_id, "eve"))
    assert (taken.new, taken.repeated, taken.orphans, taken.cursor_seq) == (pairs, (), (), 2)

    cursor = store.cursor(PEER)
    assert cursor is not None
    assert store.cursors() == [cursor]
    assert (cursor.source_node_id, cursor.epoch, cursor.last_seq) == (PEER, PEER_EPOCH, 2)
    assert (cursor.last_chain, cursor.updated_at_ms) == (chain, START_MS + 1_000)

    assert backlog_ids(store) == [FIRST.event_id, SECOND.event_id]
    assert backlog_ids(store, "eve") == [SECOND.event_id]
    item = store.backlog("eve")[0]
    assert (item.source_node_id, item.source_seq, item.raw) == (PEER, 2, encode_event(SECOND))
    assert (item.entry.state, item.entry.inbox_seq, item.entry.attempts) == (LedgerState.QUEUED, 2, 0)
    assert item.entry.accepted_at_ms == START_MS + 1_000

    acks = [decode_event(stored.raw) for stored in store.read_outbox(0).events]
    assert [(ack.payload.ref_event_id, ack.payload.acked_by_agent_id) for ack in acks] == list(pairs)
    assert {ack.source_node_id for ack in acks} == {NODE}


@pytest.mark.req("CUR-1")
async def test_the_cursor_passes_what_was_not_for_this_gateway(store: Store) -> None:
    """Events that the source left out, and those without a local recipient, move the cursor and nothing else."""
    nobody = Inbound(event=from_peer(3), raw=encode_event(from_peer(3)))
    taken = await store.accept(a_batch(nobody, through=9))
    assert (taken.new, taken.cursor_seq) == ((), 9)
    assert store.inbox_position().latest_seq == 0
    assert store.head().seq == 0
    assert (await store.accept(a_batch(incoming(from_peer(10)), after=9))).cursor_seq == 10


async def test_each_source_has_its_own_cursor(store: Store) -> None:
    """Reading one source does not move the cursor of another."""
    other = a_message(1, seq=1, source_node_id="node-c", source_agent_id="cleo")
    await store.accept(a_batch(incoming(FIRST), incoming(SECOND)))
    await store.accept(a_batch(incoming(other), source_node_id="node-c", source_epoch="epoch-of-c"))
    assert [(cursor.source_node_id, cursor.last_seq) for cursor in store.cursors()] == [(PEER, 2), ("node-c", 1)]
    assert store.cursor("node-d") is None


@pytest.mark.req("RTY-3", "CUR-2")
async def test_a_repeated_batch_is_a_no_op(store: Store) -> None:
    """The same batch again, as after a lost answer, injects nothing, acknowledges nothing, moves nothing."""
    batch = a_batch(incoming(FIRST), incoming(SECOND, "ada", "eve"), unreadable=(an_unreadable(3),), through=3)
    await store.accept(batch)
    before = visible(store, events=[FIRST, SECOND])
    again = await store.accept(batch)
    assert again.new == ()
    assert again.repeated == ((FIRST.event_id, "ada"), (SECOND.event_id, "ada"), (SECOND.event_id, "eve"))
    assert again.cursor_seq == 3
    assert visible(store, events=[FIRST, SECOND]) == before


@pytest.mark.req("RTY-3", "CUR-1")
async def test_a_batch_that_overlaps_brings_only_what_is_new(store: Store) -> None:
    """A batch that begins before the cursor is taken from the cursor on."""
    await store.accept(a_batch(incoming(FIRST), incoming(SECOND)))
    taken = await store.accept(a_batch(incoming(SECOND), incoming(THIRD), after=1))
    assert (taken.new, taken.cursor_seq) == (((THIRD.event_id, "ada"),), 3)
    assert backlog_ids(store) == [FIRST.event_id, SECOND.event_id, THIRD.event_id]


@pytest.mark.req("RTY-3", "ENV-5")
async def test_a_resend_of_a_known_event_is_not_injected_again(store: Store) -> None:
    """The same eventId at a later seq, in a later batch or in the same one, reaches the agent once."""
    again, third_time = from_peer(1, seq=2, attempt=2), from_peer(1, seq=3, attempt=3)
    taken = await store.accept(a_batch(incoming(FIRST), incoming(again)))
    assert (taken.new, taken.repeated) == (((FIRST.event_id, "ada"),), ((FIRST.event_id, "ada"),))
    taken = await store.accept(a_batch(incoming(third_time), after=2))
    assert (taken.new, taken.repeated, taken.cursor_seq) == ((), ((FIRST.event_id, "ada"),), 3)
    assert len(store.backlog("ada")) == 1
    assert store.inbox_position().latest_seq == 1
    assert store.head().seq == 1


@pytest.mark.req("RTY-3", "ACK-5")
async def test_a_resend_that_adds_an_agent_is_new_for_that_agent_only(store: Store) -> None:
    """The ledger knows pairs: an agent that was added later gets the event, the first one does not get it again."""
    await store.accept(a_batch(incoming(FIRST, "ada")))
    taken = await store.accept(a_batch(incoming(from_peer(1, seq=2, attempt=2), "ada", "eve"), after=1))
    assert (taken.new, taken.repeated) == (((FIRST.event_id, "eve"),), ((FIRST.event_id, "ada"),))
    entry = store.ledger_entry(FIRST.event_id, "eve")
    assert entry is not None
    assert entry.inbox_seq == 1
    assert store.inbox_position().latest_seq == 1
    assert store.head().seq == 2


@pytest.mark.req("CUR-1", "CUR-3", "CUR-6", "ENV-8")
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param(a_batch(incoming(from_peer(4)), after=3), Code.SEQUENCE_GAP, id="gap"),
        pytest.param(a_batch(incoming(THIRD), after=2, source_epoch="another life"), Code.EPOCH_MISMATCH, id="epoch"),
        pytest.param(
            a_batch(incoming(THIRD), incoming(a_message(4, seq=4, source_node_id="node-z")), after=2),
            Code.FOREIGN_SOURCE,
            id="foreign",
        ),
        pytest.param(
            a_batch(incoming(from_peer(4)), incoming(THIRD), after=2, through=4), Code.SEQUENCE_GAP, id="disorder"
        ),
        pytest.param(a_batch(incoming(THIRD), incoming(THIRD), after=2), Code.SEQUENCE_GAP, id="one seq twice"),
        pytest.param(a_batch(incoming(from_peer(9)), after=2, through=8), Code.SEQUENCE_GAP, id="beyond the end"),
        pytest.param(a_batch(incoming(from_peer(2)), after=2, through=4), Code.SEQUENCE_GAP, id="before the start"),
        pytest.param(a_batch(after=2, through=1), Code.SEQUENCE_GAP, id="ends before it starts"),
        pytest.param(a_batch(after=-1, through=4), Code.SEQUENCE_GAP, id="starts before the first"),
    ],
)
async def test_a_batch_that_does_not_fit_is_refused_and_nothing_changes(
    store: Store, bad: Acceptance, code: Code
) -> None:
    """A gap, another epoch, another's event or a wrong order: refused with its code, as if it never came."""
    await store.accept(a_batch(incoming(FIRST), incoming(SECOND)))
    before = visible(store, events=[FIRST, SECOND, THIRD])
    with refused(code):
        await store.accept(bad)
    assert visible(store, events=[FIRST, SECOND, THIRD]) == before
    assert (await store.accept(a_batch(incoming(THIRD), after=2))).new == ((THIRD.event_id, "ada"),)


@pytest.mark.req("CUR-1")
@pytest.mark.parametrize(("after", "through"), [(1, 2), (-5, -1), (0, -1)])
async def test_an_unknown_source_is_read_from_its_beginning(store: Store, after: int, through: int) -> None:
    """The first batch of a source starts at its first event; nothing can put a cursor anywhere else."""
    with refused(Code.SEQUENCE_GAP):
        await store.accept(a_batch(after=after, through=through))
    assert store.cursors() == []


@pytest.mark.req("ENV-6", "CUR-1")
async def test_what_cannot_be_read_goes_to_the_quarantine_and_the_cursor_passes(store: Store) -> None:
    """One unreadable event holds up nobody: it is kept with its bytes and the reason."""
    bad = (an_unreadable(2), an_unreadable(None))
    taken = await store.accept(a_batch(incoming(FIRST), incoming(THIRD), unreadable=bad))
    assert taken.cursor_seq == 3
    assert backlog_ids(store) == [FIRST.event_id, THIRD.event_id]
    kept = store.quarantined()
    assert [entry.source_seq for entry in kept] == [2, None]
    assert (kept[0].source_node_id, kept[0].event_id, kept[0].code) == (PEER, "evt_poem", "unknown_kind")
    assert (kept[0].message, store.quarantined_body(kept[0].id)) == (bad[0].refusal.message, bad[0].raw)
    assert kept[0].at_ms == START_MS + 1_000
    assert store.quarantined(limit=1) == kept[:1]


@pytest.mark.req("CUR-2", "PIPE-1")
async def test_a_batch_whose_ack_is_refused_leaves_no_trace(store: Store) -> None:
    """If the acknowledgement cannot be appended, the event was not taken and the cursor did not move."""
    foreign_ack = an_ack(SECOND, by_agent_id="ada", by_node_id="node-z")
    spoiled = Inbound(event=SECOND, raw=encode_event(SECOND), acks={"ada": foreign_ack})
    before = visible(store, events=[FIRST, SECOND])
    with refused(Code.FOREIGN_SOURCE):
        await store.accept(a_batch(incoming(FIRST), spoiled, unreadable=(an_unreadable(3),), through=3))
    assert visible(store, events=[FIRST, SECOND]) == before


@pytest.mark.req("ACK-3", "PIPE-8", "CUR-2")
async def test_acks_that_are_read_move_the_deliveries_they_speak_of(store: Store) -> None:
    """An acknowledgement in a batch closes the loop of its delivery in the transaction that moves the cursor."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob", "cleo", due_at_ms=START_MS + 20))
    ack = an_ack(event, AckType.PROCESSED, by_agent_id="bob", seq=1)
    change = a_change(event, DeliverySignal.PROCESSED)
    await store.accept(a_batch(Inbound(event=ack, raw=encode_event(ack)), changes=(change,)))
    states = {delivery.to_agent_id: delivery.state for delivery in store.deliveries_of(event.event_id)}
    assert states == {"bob": DeliveryState.PROCESSED, "cleo": DeliveryState.EMITTED}
    assert store.cursor(PEER).last_seq == 1
    assert store.head().seq == 1


@pytest.mark.req("CUR-2")
async def test_an_ack_of_nothing_known_is_told_and_does_not_stop_the_batch(store: Store) -> None:
    """An orphan acknowledgement is handed back to the caller; everything else of the batch is taken."""
    orphan = a_change(a_message(77), DeliverySignal.ACCEPTED)
    taken = await store.accept(a_batch(incoming(FIRST), changes=(orphan,)))
    assert (taken.orphans, taken.new, taken.cursor_seq) == ((orphan,), ((FIRST.event_id, "ada"),), 1)


@pytest.mark.req("CUR-2", "RTY-6")
async def test_a_forbidden_change_refuses_the_batch(store: Store) -> None:
    """A change that the lifecycle does not allow undoes all of the batch, the cursor included."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    before = visible(store, events=[event, FIRST])
    with refused(Code.INVALID_TRANSITION):
        await store.accept(a_batch(incoming(FIRST), changes=(a_change(event, DeliverySignal.SLA_TIMEOUT),)))
    assert visible(store, events=[event, FIRST]) == before


@pytest.mark.req("ENV-2")
async def test_acks_take_the_next_places_after_what_was_appended(store: Store) -> None:
    """The outbox has one sequence, whoever appends to it."""
    await append_messages(store, 3)
    await store.accept(a_batch(incoming(FIRST, "ada", "eve")))
    await append_messages(store, 1, first=4)
    kinds = [decode_event(stored.raw).kind.value for stored in store.read_outbox(0).events]
    assert kinds == ["message", "message", "message", "ack", "ack", "message"]
    assert store.head().seq == 6


async def test_an_event_that_was_never_taken_has_no_ledger_entry(store: Store) -> None:
    """The ledger speaks only of what was accepted, and only for whom."""
    await store.accept(a_batch(incoming(FIRST)))
    assert store.ledger_entry(FIRST.event_id, "eve") is None
    assert store.ledger_entry(SECOND.event_id, "ada") is None
