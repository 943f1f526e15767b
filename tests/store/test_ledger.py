"""The ledger: what was taken for an agent is tried, tried again, and closed exactly once."""

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Code
from agentpost.store.interface import Store
from agentpost.store.values import InboxPosition, LedgerEntry, LedgerState, Outcome, Settlement
from agentpost.testing import START_MS, a_message, a_reply
from tests.store.building import (
    NODE,
    a_batch,
    a_settlement,
    deliveries_of,
    from_peer,
    incoming,
    refused,
    visible,
)

EVENTS = [from_peer(number) for number in range(1, 6)]
FIRST, SECOND, THIRD = EVENTS[:3]


async def take(store: Store, *agents: str) -> None:
    await store.accept(a_batch(*(incoming(event, *agents) for event in EVENTS)))


def entry_of(store: Store, event_id: str, agent: str = "ada") -> LedgerEntry:
    entry = store.ledger_entry(event_id, agent)
    assert entry is not None
    return entry


@pytest.mark.req("RTY-4")
async def test_an_attempt_is_counted_before_it_is_made(store: Store) -> None:
    """Each engagement has a number and a time, so that a crash during it can be seen afterwards."""
    await take(store)
    assert await store.engage(FIRST.event_id, "ada", at_ms=10) == 1
    entry = entry_of(store, FIRST.event_id)
    assert (entry.state, entry.attempts, entry.engaged_at_ms) == (LedgerState.ENGAGED, 1, 10)
    assert await store.engage(FIRST.event_id, "ada", at_ms=20) == 2
    assert entry_of(store, FIRST.event_id).engaged_at_ms == 20


@pytest.mark.req("RTY-3")
async def test_an_attempt_says_until_when_the_agent_has_the_event(store: Store) -> None:
    """Who has it for a time has it until then; the next attempt begins without what was said for the last one."""
    await take(store)
    await store.engage(FIRST.event_id, "ada", at_ms=10, until_ms=500)
    assert entry_of(store, FIRST.event_id).due_at_ms == 500
    await store.engage(FIRST.event_id, "ada", at_ms=20)
    assert entry_of(store, FIRST.event_id).due_at_ms == 0


@pytest.mark.req("RTY-4")
async def test_a_failed_attempt_waits_and_stays_in_the_backlog(store: Store) -> None:
    """A dispatch that failed is neither read nor lost: it has its error, and a time to try again."""
    await take(store)
    await store.engage(FIRST.event_id, "ada", at_ms=10)
    await store.postpone(FIRST.event_id, "ada", due_at_ms=2_000, error="the runtime was away")
    entry = entry_of(store, FIRST.event_id)
    assert (entry.state, entry.attempts, entry.due_at_ms) == (LedgerState.QUEUED, 1, 2_000)
    assert (entry.error, entry.outcome) == ("the runtime was away", None)
    assert store.backlog("ada")[0].entry == entry


@pytest.mark.req("RTY-4")
async def test_an_attempt_that_never_reached_its_agent_is_undone(store: Store) -> None:
    """It does not count, and the event is due; of another attempt, or of what has its outcome, nothing is undone."""
    await take(store)
    fresh = entry_of(store, FIRST.event_id)
    await store.engage(FIRST.event_id, "ada", at_ms=10, until_ms=500)
    assert not await store.give_back(FIRST.event_id, "ada", attempt=2, engaged_at_ms=None)
    assert await store.give_back(FIRST.event_id, "ada", attempt=1, engaged_at_ms=None)
    assert entry_of(store, FIRST.event_id) == fresh
    assert not await store.give_back(FIRST.event_id, "ada", attempt=1, engaged_at_ms=None)
    await store.engage(FIRST.event_id, "ada", at_ms=20)
    await store.postpone(FIRST.event_id, "ada", due_at_ms=30, error="busy")
    await store.engage(FIRST.event_id, "ada", at_ms=40, until_ms=500)
    assert await store.give_back(FIRST.event_id, "ada", attempt=2, engaged_at_ms=20)
    entry = entry_of(store, FIRST.event_id)
    assert (entry.state, entry.attempts, entry.engaged_at_ms, entry.due_at_ms) == (LedgerState.QUEUED, 1, 20, 0)
    assert entry.error == "busy"
    await store.engage(SECOND.event_id, "ada", at_ms=50)
    await store.settle(a_settlement(SECOND))
    assert not await store.give_back(SECOND.event_id, "ada", attempt=1, engaged_at_ms=None)
    assert not await store.give_back(SECOND.event_id, "eve", attempt=1, engaged_at_ms=None)


@pytest.mark.req("ACK-2", "PIPE-2", "RTY-3")
async def test_settling_closes_the_pair_and_appends_what_tells_of_it(store: Store) -> None:
    """The outcome, the reply and its own delivery are there together."""
    await take(store)
    acks = store.head().seq
    reply = a_reply(FIRST, by_agent_id="ada", by_node_id=NODE, body="yes")
    settlement = Settlement(
        event_id=FIRST.event_id,
        to_agent_id="ada",
        outcome=Outcome.PROCESSED,
        at_ms=START_MS + 2_000,
        events=(reply,),
        deliveries=deliveries_of(reply, "bob", due_at_ms=START_MS + 9_000),
    )
    assert await store.settle(settlement) is True
    entry = entry_of(store, FIRST.event_id)
    assert (entry.state, entry.outcome, entry.settled_at_ms) == (
        LedgerState.SETTLED,
        Outcome.PROCESSED,
        START_MS + 2_000,
    )
    assert decode_event(store.read_outbox(acks).events[0].raw).event_id == reply.event_id
    assert [delivery.seq for delivery in store.deliveries_of(reply.event_id)] == [acks + 1]
    assert store.next_due_at_ms() == START_MS + 9_000


@pytest.mark.req("RTY-3")
async def test_settling_twice_says_false_and_appends_nothing(store: Store) -> None:
    """Only the call that closed the pair tells of it; a second one, even with another outcome, changes nothing."""
    await take(store)
    assert await store.settle(a_settlement(FIRST)) is True
    before = visible(store, events=EVENTS)
    assert await store.settle(a_settlement(FIRST)) is False
    assert await store.settle(a_settlement(FIRST, outcome=Outcome.FAILED_TERMINAL)) is False
    assert visible(store, events=EVENTS) == before


@pytest.mark.req("RTY-3")
async def test_many_are_settled_together_each_once(store: Store) -> None:
    """Of many settlements those close a pair that find it open, and only they tell of it."""
    await take(store)
    await store.settle(a_settlement(FIRST))
    seq = store.head().seq
    unknown = a_settlement(FIRST, agent="eve")
    together = [a_settlement(event) for event in (FIRST, SECOND, THIRD, SECOND)]
    assert await store.settle_all([*together, unknown]) == [False, True, True, False, False]
    told = [decode_event(stored.raw).event_id for stored in store.read_outbox(seq).events]
    assert told == [event.event_id for each in together[1:3] for event in each.events]
    assert {entry_of(store, event.event_id).state for event in (SECOND, THIRD)} == {LedgerState.SETTLED}


@pytest.mark.req("PIPE-1")
async def test_many_are_settled_all_or_none(store: Store) -> None:
    """If what tells of one of them cannot be appended, none is closed."""
    await take(store)
    before = visible(store, events=EVENTS)
    good = a_settlement(FIRST)
    spoiled = replace(a_settlement(SECOND), events=(a_message(1, source_node_id="node-z"),))
    with refused(Code.FOREIGN_SOURCE):
        await store.settle_all([good, spoiled])
    assert visible(store, events=EVENTS) == before
    assert await store.settle_all([good]) == [True]


@pytest.mark.req("RTY-3")
async def test_settling_one_agent_leaves_the_others_open(store: Store) -> None:
    """Each (event, agent) has an end of its own."""
    await take(store, "ada", "eve")
    await store.settle(a_settlement(FIRST, agent="eve"))
    assert FIRST.event_id in [item.entry.event_id for item in store.backlog("ada")]
    assert FIRST.event_id not in [item.entry.event_id for item in store.backlog("eve")]


async def test_what_was_never_accepted_cannot_be_settled_engaged_or_postponed(store: Store) -> None:
    """An unknown pair is not found, and asking for it changes nothing."""
    await take(store)
    before = visible(store, events=EVENTS)
    with refused(Code.NOT_FOUND):
        await store.settle(a_settlement(FIRST, agent="eve"))
    with refused(Code.NOT_FOUND):
        await store.engage(from_peer(99).event_id, "ada", at_ms=1)
    with refused(Code.NOT_FOUND):
        await store.postpone(FIRST.event_id, "eve", due_at_ms=1, error="no")
    assert visible(store, events=EVENTS) == before


@pytest.mark.req("RTY-3")
async def test_what_is_settled_cannot_be_engaged_or_postponed(store: Store) -> None:
    """After the end nothing is tried again."""
    await take(store)
    await store.settle(a_settlement(FIRST))
    before = visible(store, events=EVENTS)
    with refused(Code.INVALID_TRANSITION):
        await store.engage(FIRST.event_id, "ada", at_ms=1)
    with refused(Code.INVALID_TRANSITION):
        await store.postpone(FIRST.event_id, "ada", due_at_ms=1, error="no")
    assert visible(store, events=EVENTS) == before


@pytest.mark.req("PIPE-1")
async def test_a_settlement_whose_event_is_refused_leaves_the_pair_open(store: Store) -> None:
    """If the reply cannot be appended the pair is not closed: outcome and reply come together or not at all."""
    await take(store)
    before = visible(store, events=EVENTS)
    good = a_settlement(FIRST)
    for spoiled in (
        Settlement(
            event_id=FIRST.event_id,
            to_agent_id="ada",
            outcome=Outcome.PROCESSED,
            at_ms=1,
            events=(*good.events, a_message(1, source_node_id="node-z")),
        ),
        Settlement(
            event_id=FIRST.event_id,
            to_agent_id="ada",
            outcome=Outcome.PROCESSED,
            at_ms=1,
            events=good.events,
            deliveries=deliveries_of(good.events[0], "bob", "bob"),
        ),
    ):
        with refused(Code.FOREIGN_SOURCE if not spoiled.deliveries else Code.CONFLICT):
            await store.settle(spoiled)
    assert visible(store, events=EVENTS) == before
    assert await store.settle(good) is True


@pytest.mark.req("RTY-5")
async def test_the_backlog_is_oldest_first_and_has_only_what_is_open(store: Store) -> None:
    """An agent that comes back works what it has not finished, in the order it arrived."""
    await take(store)
    await store.settle(a_settlement(SECOND))
    await store.engage(FIRST.event_id, "ada", at_ms=1)
    await store.postpone(FIRST.event_id, "ada", due_at_ms=10**15, error="later")
    assert [item.source_seq for item in store.backlog("ada")] == [1, 3, 4, 5]
    assert [item.source_seq for item in store.backlog("ada", limit=2)] == [1, 3]
    assert [item.source_seq for item in store.backlog("ada", after_inbox_seq=3)] == [4, 5]
    assert store.backlog("eve") == []


@pytest.mark.req("RTY-5")
async def test_an_agent_added_later_gets_the_event_at_its_old_place(store: Store) -> None:
    """The backlog follows the inbox, whenever an agent was added to an event."""
    await take(store)
    await store.accept(a_batch(incoming(from_peer(6), "eve"), incoming(from_peer(2, seq=7, attempt=2), "eve"), after=5))
    assert [item.entry.inbox_seq for item in store.backlog("eve")] == [2, 6]


async def test_acked_seq_stops_at_the_first_open_event(store: Store) -> None:
    """The inbox counts as done up to the first event that some agent has not settled."""
    assert store.inbox_position() == InboxPosition(latest_seq=0, acked_seq=0)
    await take(store, "ada", "eve")
    assert store.inbox_position() == InboxPosition(latest_seq=5, acked_seq=0)
    for event in (SECOND, THIRD):
        await store.settle(a_settlement(event, agent="ada"))
        await store.settle(a_settlement(event, agent="eve"))
    await store.settle(a_settlement(FIRST, agent="ada"))
    assert store.inbox_position().acked_seq == 0
    await store.settle(a_settlement(FIRST, agent="eve"))
    assert store.inbox_position() == InboxPosition(latest_seq=5, acked_seq=3)
    for event in EVENTS[3:]:
        await store.settle(a_settlement(event, agent="ada"))
        await store.settle(a_settlement(event, agent="eve"))
    assert store.inbox_position() == InboxPosition(latest_seq=5, acked_seq=5)
