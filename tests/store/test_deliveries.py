"""What became of what was sent: one record for each recipient, moved by the lifecycle."""

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Code
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.interface import Store
from agentpost.store.values import ResentLetter
from agentpost.testing import START_MS, a_message, an_event_id
from tests.store.building import a_change, append_messages, deliveries_of, refused, visible


def states(store: Store, event_id: str) -> dict[str, DeliveryState]:
    return {delivery.to_agent_id: delivery.state for delivery in store.deliveries_of(event_id)}


@pytest.mark.req("ACK-5")
async def test_each_recipient_has_its_own_delivery(store: Store) -> None:
    """A message to three agents has three records, each at the place of the message."""
    await append_messages(store, 4)
    event = a_message(5, to_agents=("cleo", "bob", "dora"))
    await store.append([event], deliveries=deliveries_of(event, "cleo", "bob", "dora"))
    found = store.deliveries_of(event.event_id)
    assert [delivery.to_agent_id for delivery in found] == ["bob", "cleo", "dora"]
    assert {(delivery.seq, delivery.state, delivery.attempts) for delivery in found} == {(5, DeliveryState.EMITTED, 1)}


@pytest.mark.req("ACK-5", "ACK-3")
async def test_a_change_moves_one_recipient_only(store: Store) -> None:
    """One agent answered, one accepted, one is silent: the sender sees all three."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob", "cleo", "dora", due_at_ms=START_MS + 20))
    await store.append(
        [],
        changes=[
            a_change(event, DeliverySignal.ACCEPTED, due_at_ms=START_MS + 900),
            a_change(event, DeliverySignal.REPLY, agent="cleo"),
        ],
    )
    assert states(store, event.event_id) == {
        "bob": DeliveryState.ACCEPTED,
        "cleo": DeliveryState.REPLIED,
        "dora": DeliveryState.EMITTED,
    }
    bob, cleo, dora = store.deliveries_of(event.event_id)
    assert (bob.due_at_ms, bob.accepted_at_ms, bob.closed_at_ms) == (START_MS + 900, START_MS + 500, None)
    assert (cleo.due_at_ms, cleo.accepted_at_ms, cleo.closed_at_ms) == (None, START_MS + 500, START_MS + 500)
    assert (dora.due_at_ms, dora.accepted_at_ms) == (START_MS + 20, None)


@pytest.mark.req("ACK-3", "RTY-6")
async def test_the_same_acks_find_each_delivery_where_it_is(store: Store) -> None:
    """Five were processed, says one batch: one is new, one waits for a resend, one was accepted, two had ended."""
    events = [a_message(number) for number in range(1, 6)]
    for event in events:
        await store.append([event], deliveries=deliveries_of(event, "bob", due_at_ms=START_MS + 20))
    _, waiting, accepted, processed, dead = events
    await store.append(
        [],
        changes=[
            a_change(waiting, DeliverySignal.ACK_TIMEOUT),
            a_change(accepted, DeliverySignal.ACCEPTED),
            a_change(processed, DeliverySignal.PROCESSED),
            a_change(dead, DeliverySignal.EXPIRED),
        ],
    )
    said = [
        replace(a_change(event, signal, due_at_ms=due), at_ms=START_MS + 700)
        for event in events
        for signal, due in ((DeliverySignal.ACCEPTED, START_MS + 900), (DeliverySignal.PROCESSED, None))
    ]
    await store.append([], changes=said)
    found = [store.deliveries_of(event.event_id)[0] for event in events]
    assert [(each.state, each.accepted_at_ms, each.closed_at_ms) for each in found] == [
        (DeliveryState.PROCESSED, START_MS + 700, START_MS + 700),
        (DeliveryState.PROCESSED, START_MS + 700, START_MS + 700),
        (DeliveryState.PROCESSED, START_MS + 500, START_MS + 700),
        (DeliveryState.PROCESSED, START_MS + 500, START_MS + 500),
        (DeliveryState.DEAD_LETTER, None, START_MS + 500),
    ]
    assert store.next_due_at_ms() is None


@pytest.mark.req("RTY-6")
async def test_several_changes_of_one_delivery_are_applied_in_order(store: Store) -> None:
    """Two signals for the same delivery in one append walk the lifecycle one after the other."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    changes = [a_change(event, DeliverySignal.ACK_TIMEOUT), a_change(event, DeliverySignal.EXHAUSTED)]
    await store.append([], changes=changes)
    assert states(store, event.event_id) == {"bob": DeliveryState.DEAD_LETTER}


async def test_a_delivery_can_be_started_and_moved_in_one_append(store: Store) -> None:
    """An event without a route is a dead letter from the start, in the transaction that appends it."""
    event = a_message(1)
    await store.append(
        [event], deliveries=deliveries_of(event, "bob"), changes=[a_change(event, DeliverySignal.UNROUTABLE)]
    )
    assert states(store, event.event_id) == {"bob": DeliveryState.DEAD_LETTER}


async def test_due_deliveries_come_longest_overdue_first(store: Store) -> None:
    """Timers that ran out come in the order in which they did; those still running and those without one don't."""
    for number, due in ((1, 300), (2, 100), (3, None), (4, 200), (5, 100)):
        event = a_message(number)
        await store.append([event], deliveries=deliveries_of(event, "bob", due_at_ms=due))
    numbers = {a_message(number).event_id: number for number in range(1, 6)}
    assert [numbers[delivery.event_id] for delivery in store.due_deliveries(200)] == [2, 5, 4]
    assert [numbers[delivery.event_id] for delivery in store.due_deliveries(300, limit=2)] == [2, 5]
    assert store.due_deliveries(99) == []


async def test_recipients_due_at_the_same_time_come_by_name(store: Store) -> None:
    """Among deliveries of one event that are due together the order is always the same."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "dora", "bob", "cleo", due_at_ms=7))
    assert [delivery.to_agent_id for delivery in store.due_deliveries(7)] == ["bob", "cleo", "dora"]


async def test_the_next_timer_is_the_earliest_that_still_runs(store: Store) -> None:
    """A delivery that ended has no timer, so the next one to run out is another's."""
    assert store.next_due_at_ms() is None
    first, second = a_message(1), a_message(2)
    await store.append([first], deliveries=deliveries_of(first, "bob", due_at_ms=100))
    await store.append([second], deliveries=deliveries_of(second, "bob", due_at_ms=200))
    assert store.next_due_at_ms() == 100
    await store.append([], changes=[a_change(first, DeliverySignal.PROCESSED)])
    assert store.next_due_at_ms() == 200
    await store.append([], changes=[a_change(second, DeliverySignal.REPLY)])
    assert store.next_due_at_ms() is None


@pytest.mark.req("ENV-5", "RTY-6")
async def test_a_resend_keeps_the_event_id_and_takes_a_new_seq(store: Store) -> None:
    """An event that is sent again keeps its id, counts one attempt more, and stands at a new place."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob", "cleo"))
    await append_messages(store, 2, first=2)
    await store.append([], changes=[a_change(event, DeliverySignal.ACK_TIMEOUT, due_at_ms=50)])
    await store.append([a_message(1, attempt=2)], changes=[a_change(event, DeliverySignal.RESENT, due_at_ms=90)])
    bob, cleo = store.deliveries_of(event.event_id)
    assert (bob.state, bob.seq, bob.attempts, bob.due_at_ms) == (DeliveryState.EMITTED, 4, 2, 90)
    assert (cleo.seq, cleo.attempts) == (1, 1)
    first, again = (decode_event(store.read_outbox(after).events[0].raw) for after in (0, 3))
    assert first.event_id == again.event_id
    assert (first.trace.attempt, again.trace.attempt) == (1, 2)


async def test_a_resend_without_its_event_is_refused(store: Store) -> None:
    """A delivery cannot count an attempt that was not made: the event has to be in the same append."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    await store.append([], changes=[a_change(event, DeliverySignal.ACK_TIMEOUT)])
    before = visible(store, events=[event])
    for events in ([], [a_message(2)]):
        with refused(Code.NOT_FOUND):
            await store.append(events, changes=[a_change(event, DeliverySignal.RESENT)])
    assert visible(store, events=[event]) == before


async def test_a_delivery_without_its_event_is_refused(store: Store) -> None:
    """A delivery starts with the append of its event; one of an event that is not there would have no place."""
    before = visible(store)
    with refused(Code.NOT_FOUND):
        await store.append([a_message(1)], deliveries=deliveries_of(a_message(2), "bob"))
    assert visible(store) == before


@pytest.mark.req("ENV-2")
async def test_a_change_of_an_unknown_delivery_refuses_the_whole_append(store: Store) -> None:
    """An append that speaks of a delivery nobody started is refused, with its events and its other changes."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    before = visible(store, events=[event])
    changes = [a_change(event, DeliverySignal.ACCEPTED), a_change(event, DeliverySignal.ACCEPTED, agent="nobody")]
    with refused(Code.NOT_FOUND):
        await store.append([a_message(2)], changes=changes)
    assert visible(store, events=[event]) == before


@pytest.mark.req("RTY-6")
async def test_a_forbidden_move_refuses_the_whole_append(store: Store) -> None:
    """A signal that the lifecycle does not know in that state changes nothing and appends nothing."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    before = visible(store, events=[event])
    with refused(Code.INVALID_TRANSITION):
        await store.append([a_message(2)], changes=[a_change(event, DeliverySignal.SLA_TIMEOUT)])
    assert visible(store, events=[event]) == before


@pytest.mark.parametrize("with_change", [False, True])
async def test_the_same_delivery_twice_is_refused(store: Store, with_change: bool) -> None:
    """An event is delivered to an agent once; a second record of the same pair is a conflict."""
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    before = visible(store, events=[event])
    changes = [a_change(event, DeliverySignal.ACCEPTED)] if with_change else []
    with refused(Code.CONFLICT):
        await store.append([a_message(1, attempt=2)], deliveries=deliveries_of(event, "bob"), changes=changes)
    assert visible(store, events=[event]) == before


async def test_an_unknown_event_has_no_deliveries(store: Store) -> None:
    """Asking after an event that was never sent gives nothing."""
    assert store.deliveries_of(an_event_id("never sent")) == []


@pytest.mark.req("RTY-6")
async def test_a_dead_letter_is_sent_again_once(store: Store) -> None:
    """The new event and the note on the letter are one transaction; a second try is refused, and so is a living one."""
    dead, living = a_message(1), a_message(2)
    await store.append([dead, living], deliveries=[*deliveries_of(dead, "bob"), *deliveries_of(living, "bob")])
    await store.append(
        [], changes=[a_change(dead, DeliverySignal.ACK_TIMEOUT), a_change(dead, DeliverySignal.EXHAUSTED)]
    )
    again = a_message(3)
    letter = ResentLetter(event_id=dead.event_id, to_agent_id="bob", resent_as=again.event_id)
    await store.append([again], deliveries=deliveries_of(again, "bob"), resends=[letter])
    (noted,) = store.deliveries_of(dead.event_id)
    assert (noted.state, noted.resent_as) == (DeliveryState.DEAD_LETTER, again.event_id)
    for event, number in ((dead, 4), (living, 5)):
        once_more = a_message(number)
        wanted = ResentLetter(event_id=event.event_id, to_agent_id="bob", resent_as=once_more.event_id)
        with refused(Code.CONFLICT):
            await store.append([once_more], deliveries=deliveries_of(once_more, "bob"), resends=[wanted])
        assert store.find_event(once_more.event_id) is None
    assert store.head().seq == 3
