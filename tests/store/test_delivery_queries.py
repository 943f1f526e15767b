"""Asking for deliveries, moving their timers, and purging what has ended."""

from collections.abc import Sequence

import pytest

from agentpost.protocol.envelope import Event
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.interface import Store
from agentpost.testing import START_MS, a_message, an_event_id
from tests.store.building import a_change, deliveries_of, visible

EVENTS: list[Event] = [a_message(number) for number in range(1, 6)]
ONE, TWO, THREE, FOUR, FIVE = EVENTS


@pytest.fixture
async def filled(store: Store) -> Store:
    """Five messages to bob and cleo; for bob one accepted, one answered, one dead, one waiting for its resend."""
    for event in EVENTS:
        await store.append([event], deliveries=deliveries_of(event, "bob", "cleo", due_at_ms=START_MS + 20))
    await move(store, ONE, DeliverySignal.ACCEPTED)
    await move(store, TWO, DeliverySignal.REPLY)
    await move(store, THREE, DeliverySignal.EXPIRED)
    await move(store, FOUR, DeliverySignal.ACK_TIMEOUT)
    return store


async def move(store: Store, event: Event, signal: DeliverySignal, *, agent: str = "bob") -> None:
    await store.append([], changes=[a_change(event, signal, agent=agent, due_at_ms=START_MS + 900)])


def found_in(store: Store, *states: DeliveryState, limit: int = 256) -> list[tuple[str, str]]:
    return [(each.event_id, each.to_agent_id) for each in store.deliveries_in(states, limit=limit)]


@pytest.mark.req("RTY-7", "ACK-5")
async def test_deliveries_are_found_by_their_state(filled: Store) -> None:
    """Ordered by event and recipient, over as many states as are asked for."""
    assert found_in(filled, DeliveryState.DEAD_LETTER) == [(THREE.event_id, "bob")]
    assert found_in(filled, DeliveryState.RETRY_PENDING, DeliveryState.ACCEPTED, DeliveryState.REPLIED) == [
        (ONE.event_id, "bob"),
        (TWO.event_id, "bob"),
        (FOUR.event_id, "bob"),
    ]
    assert found_in(filled, DeliveryState.INCIDENT) == []
    assert filled.deliveries_in([]) == []
    assert filled.deliveries_in([DeliveryState.REPLIED]) == filled.deliveries_of(TWO.event_id)[:1]


async def test_deliveries_are_read_in_pages(filled: Store) -> None:
    """Each page goes on after the last pair of the one before."""
    states = (DeliveryState.EMITTED, DeliveryState.ACCEPTED)
    pages: list[Sequence[tuple[str, str]]] = []
    after = ("", "")
    while page := filled.deliveries_in(states, after=after, limit=3):
        pages.append([(each.event_id, each.to_agent_id) for each in page])
        after = (page[-1].event_id, page[-1].to_agent_id)
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [pair for page in pages for pair in page] == sorted(found_in(filled, *states))
    assert found_in(filled, *states, limit=0) == []


@pytest.mark.req("OBS-1")
async def test_deliveries_are_counted_by_state(store: Store, filled: Store) -> None:
    """The counts are of all recipients; a state that nobody is in is left out."""
    assert filled.count_deliveries() == {
        DeliveryState.EMITTED: 6,
        DeliveryState.ACCEPTED: 1,
        DeliveryState.REPLIED: 1,
        DeliveryState.DEAD_LETTER: 1,
        DeliveryState.RETRY_PENDING: 1,
    }
    for state, count in filled.count_deliveries().items():
        assert filled.count_deliveries(only=state) == {state: count}
    assert filled.count_deliveries(only=DeliveryState.INCIDENT) == {}


@pytest.mark.req("OBS-10")
async def test_deliveries_of_a_conversation(filled: Store) -> None:
    """All that was sent within it, with who sent it; other conversations are not in it."""
    later = a_message(6, corr_id=TWO.corr_id)
    await filled.append([later], deliveries=deliveries_of(later, "dora"))
    found = filled.deliveries_by_corr(TWO.corr_id)
    assert [(each.event_id, each.to_agent_id) for each in found] == [
        (TWO.event_id, "bob"),
        (TWO.event_id, "cleo"),
        (later.event_id, "dora"),
    ]
    assert {(each.corr_id, each.from_agent_id) for each in found} == {(TWO.corr_id, "ada")}
    assert filled.deliveries_by_corr(a_message(9).corr_id) == []


@pytest.mark.req("RTY-1")
async def test_a_timer_is_moved_without_spending_an_attempt(filled: Store) -> None:
    """Nothing but the time changes, for any delivery that has not ended."""
    before = {(each.event_id, each.to_agent_id): each for each in filled.due_deliveries(1 << 60)}
    await filled.reschedule(
        [(ONE.event_id, "bob", START_MS + 50), (FOUR.event_id, "bob", START_MS + 5), (FIVE.event_id, "cleo", 7)]
    )
    after = {(each.event_id, each.to_agent_id): each for each in filled.due_deliveries(1 << 60)}
    moved = {pair: each.due_at_ms for pair, each in after.items() if each != before[pair]}
    assert moved == {
        (ONE.event_id, "bob"): START_MS + 50,
        (FOUR.event_id, "bob"): START_MS + 5,
        (FIVE.event_id, "cleo"): 7,
    }
    assert {each.attempts for each in after.values()} == {1}
    assert filled.next_due_at_ms() == 7


async def test_what_has_ended_gets_no_timer(filled: Store) -> None:
    """A delivery with an outcome, and one that is not there, stay as they are."""
    before = visible(filled, events=EVENTS)
    await filled.reschedule([(TWO.event_id, "bob", 1), (THREE.event_id, "bob", 1), (an_event_id("none"), "bob", 1)])
    await filled.reschedule([])
    assert visible(filled, events=EVENTS) == before


@pytest.mark.req("RTY-7")
async def test_only_what_has_ended_can_be_purged(filled: Store) -> None:
    """A dead letter goes when it is named; what is under way stays, and its neighbours do."""
    pairs = [(THREE.event_id, "bob"), (THREE.event_id, "cleo"), (FOUR.event_id, "bob"), (an_event_id("none"), "bob")]
    assert await filled.purge_deliveries(pairs) == 1
    assert await filled.purge_deliveries(pairs) == 0
    assert await filled.purge_deliveries([]) == 0
    assert [each.to_agent_id for each in filled.deliveries_of(THREE.event_id)] == ["cleo"]
    assert filled.deliveries_of(FOUR.event_id)[0].state is DeliveryState.RETRY_PENDING


async def test_what_a_gateway_has_not_accepted_is_counted_and_found(filled: Store) -> None:
    """In the order of the outbox, and by gateway; what was answered, or has ended, is not in it."""
    (node_id,) = {each.to_node_id for each in filled.deliveries_of(ONE.event_id)}
    assert node_id is not None

    def found(after_seq: int, through_seq: int, limit: int = 256) -> list[tuple[str, str]]:
        page = filled.unaccepted_by(node_id, after_seq=after_seq, through_seq=through_seq, limit=limit)
        return [(each.event_id, each.to_agent_id) for each in page]

    of_bob, of_cleo = (FOUR, FIVE), EVENTS
    expected = sorted([*((each.event_id, "bob") for each in of_bob), *((each.event_id, "cleo") for each in of_cleo)])
    assert found(0, 5) == expected
    assert found(3, 4) == [(FOUR.event_id, "bob"), (FOUR.event_id, "cleo")]
    assert found(0, 5, limit=2) == expected[:2]
    assert filled.unaccepted_by("nobody", after_seq=0, through_seq=5) == []
    (counted,) = filled.unaccepted_counts(most=100)
    assert (counted.node_id, counted.count) == (node_id, len(expected))
    assert counted.since_ms == filled.deliveries_of(ONE.event_id)[0].emitted_at_ms
    assert [each.count for each in filled.unaccepted_counts(most=3)] == [3]
