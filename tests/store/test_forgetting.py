"""Forgetting what ended long ago: ledger rows and deliveries go in steps, what is open and dead letters stay."""

import pytest

from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.interface import Store
from agentpost.testing import START_MS, a_message
from tests.store.building import a_batch, a_change, a_settlement, deliveries_of, from_peer, incoming, visible

ENDED_AT_MS = START_MS + 500
EVENTS = [from_peer(number) for number in range(1, 5)]


async def take_and_settle(store: Store) -> None:
    """Four events, of which the first three are settled, one after the other."""
    await store.accept(a_batch(*(incoming(event) for event in EVENTS)))
    for number, event in enumerate(EVENTS[:3]):
        await store.settle(a_settlement(event, events=(), at_ms=START_MS + number))


@pytest.mark.req("RTY-3")
async def test_settled_ledger_rows_are_forgotten_after_their_time(store: Store) -> None:
    """What was settled before the time goes; the rest, and what is open, stays."""
    await take_and_settle(store)
    assert await store.prune_settled(before_ms=START_MS + 2) == 2
    assert [store.ledger_entry(event.event_id, "ada") is None for event in EVENTS] == [True, True, False, False]
    assert [item.source_seq for item in store.inbox_items("ada")] == [3, 4]
    assert await store.prune_settled(before_ms=START_MS + 2) == 0
    assert await store.prune_settled(before_ms=1 << 60) == 1
    assert [item.source_seq for item in store.backlog("ada")] == [4]


async def test_forgetting_goes_in_steps(store: Store) -> None:
    """No step forgets more than its limit, the oldest first, and 0 says that it is done."""
    await take_and_settle(store)
    assert [await store.prune_settled(before_ms=1 << 60, limit=2) for _ in range(3)] == [2, 1, 0]


@pytest.mark.req("RTY-7")
async def test_ended_deliveries_are_forgotten_and_dead_letters_stay(store: Store) -> None:
    """A dead letter stays until somebody purges it; what is under way stays too."""
    signals = {
        1: DeliverySignal.REPLY,
        2: DeliverySignal.PROCESSED,
        3: DeliverySignal.EXPIRED,
        4: DeliverySignal.ACCEPTED,
    }
    events = {number: a_message(number) for number in range(1, 6)}
    for number, event in events.items():
        await store.append([event], deliveries=deliveries_of(event, "bob"))
        if number in signals:
            await store.append([], changes=[a_change(event, signals[number])])
    before = visible(store, events=list(events.values()))
    assert await store.prune_settled(before_ms=ENDED_AT_MS) == 0
    assert visible(store, events=list(events.values())) == before
    assert await store.prune_settled(before_ms=ENDED_AT_MS + 1) == 2
    assert {number: bool(store.deliveries_of(event.event_id)) for number, event in events.items()} == {
        1: False,
        2: False,
        3: True,
        4: True,
        5: True,
    }
    assert store.count_deliveries() == {
        DeliveryState.DEAD_LETTER: 1,
        DeliveryState.ACCEPTED: 1,
        DeliveryState.EMITTED: 1,
    }
