"""The test kit: time and chance on command, and events that are always valid."""

import pytest

from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.envelope import check
from agentpost.protocol.errors import Code
from agentpost.protocol.ids import EventId, corr_id_of, parse_id, ulid_time_ms
from agentpost.protocol.payloads import AckType, Kind
from agentpost.store.interface import Store
from agentpost.store.memory import MemoryStore as StoreInMemory
from agentpost.store.sqlite import SqliteStore
from agentpost.testing import (
    START_MS,
    FakeClock,
    MemoryStore,
    SeededChance,
    a_message,
    a_reply,
    an_ack,
    an_event_id,
)
from agentpost.world import Chance, Clock, IdMaker
from tests.store.building import refused


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_clock_stands_still_until_it_is_moved() -> None:
    """Time passes by command, for both kinds of time alike."""
    clock = FakeClock()
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS, 0)
    clock.advance(250)
    clock.advance(0)
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS + 250, 250)


def test_a_step_back_moves_the_time_of_day_only() -> None:
    """A clock that is set back still measures how long something took."""
    clock = FakeClock(now_ms=1_000)
    clock.advance(10)
    clock.step_back(500)
    clock.advance(5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (515, 15)


def test_a_clock_does_not_take_negative_time() -> None:
    """A sign that was forgotten is an error of the test, not a journey in time."""
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1)
    with pytest.raises(ValueError, match="not negative"):
        FakeClock().step_back(-1)


def test_the_same_seed_draws_the_same() -> None:
    """Two chances with one seed agree for ever; with another seed they don't."""
    one, same, other = SeededChance(7), SeededChance(7), SeededChance(8)
    draws = [(one.entropy(10), one.fraction()) for _ in range(20)]
    assert draws == [(same.entropy(10), same.fraction()) for _ in range(20)]
    assert draws != [(other.entropy(10), other.fraction()) for _ in range(20)]
    assert all(len(entropy) == 10 and 0 <= fraction < 1 for entropy, fraction in draws)


@pytest.mark.req("ENV-1")
def test_the_kit_makes_ids_in_order_even_if_the_clock_steps_back() -> None:
    """With a fake clock and a seeded chance, ids are the same every time and sort as they were made."""

    def ids() -> list[EventId]:
        clock: Clock = FakeClock()
        chance: Chance = SeededChance(1)
        maker = IdMaker(clock, chance)
        made: list[EventId] = []
        for _ in range(3):
            made += [maker.make(EventId), maker.make(EventId)]
            clock.step_back(50)
        return made

    assert ids() == ids() == sorted(ids())
    assert len(set(ids())) == 6


@pytest.mark.req("ENV-1", "ENV-3")
def test_a_message_is_valid_and_the_same_every_time() -> None:
    """The number, the node and the agent of a message say which one it is."""
    message = a_message(3, body="hello", to_agents=["bob", "eve"])
    check(message)
    assert message == a_message(3, body="hello", to_agents=["bob", "eve"])
    assert decode_event(encode_event(message)) == message
    assert parse_id(EventId, message.event_id, field="eventId") == message.event_id
    assert message.corr_id == corr_id_of(message.event_id)
    assert message.payload.to_agents == ("bob", "eve")
    others = {
        a_message(3).event_id,
        a_message(4).event_id,
        a_message(3, source_node_id="node-b").event_id,
        a_message(3, source_agent_id="eve").event_id,
    }
    assert len(others) == 4


def test_later_numbers_are_later_messages() -> None:
    """Messages sort by their numbers, by id and by time."""
    messages = [a_message(number) for number in range(1, 30)]
    assert [message.event_id for message in messages] == sorted(message.event_id for message in messages)
    assert [message.created_at for message in messages] == sorted(message.created_at for message in messages)
    assert ulid_time_ms(a_message(5).event_id) == START_MS + 5
    assert ulid_time_ms(a_message(5, at_ms=77).event_id) == 77


@pytest.mark.req("ENV-5")
def test_a_resend_is_the_same_message_with_another_attempt() -> None:
    """The attempt is not part of what a message is."""
    first, again = a_message(1), a_message(1, attempt=2, seq=9)
    assert first.event_id == again.event_id
    assert (first.trace.attempt, again.trace.attempt) == (1, 2)


def test_a_message_can_expire() -> None:
    """The time is written as the data plane writes it."""
    assert a_message(1, expires_at_ms=START_MS).expires_at == "2026-02-25T16:22:10.000Z"
    assert a_message(1).expires_at is None


@pytest.mark.req("ACK-1", "ENV-3")
def test_an_ack_is_valid_and_points_at_what_it_acknowledges() -> None:
    """It has the conversation, the kind and the id of the event, and says who acknowledges."""
    message = a_message(1)
    ack = an_ack(message, AckType.PROCESSED, by_agent_id="eve", by_node_id="node-c")
    assert decode_event(encode_event(ack)) == ack
    assert (ack.payload.ref_event_id, ack.payload.ref_kind, ack.corr_id) == (
        message.event_id,
        Kind.MESSAGE,
        message.corr_id,
    )
    assert (ack.source_node_id, ack.payload.acked_by_node_id) == ("node-c", "node-c")
    assert (ack.source_agent_id, ack.payload.acked_by_agent_id, ack.to_agent_id) == ("eve", "eve", "ada")
    assert ack.created_at > message.created_at
    assert an_ack(message).event_id == an_ack(message).event_id
    assert an_ack(message).event_id != an_ack(message, AckType.PROCESSED).event_id
    assert an_ack(message).event_id != an_ack(message, by_agent_id="eve").event_id


@pytest.mark.req("ENV-3")
def test_a_reply_is_valid_and_stays_in_its_conversation() -> None:
    """A reply has the corrId of what it answers, and can be answered itself."""
    message = a_message(1)
    reply = a_reply(message, body="yes")
    further = a_reply(reply, body="thanks", by_agent_id="ada", by_node_id="node-a")
    for event in (reply, further):
        assert decode_event(encode_event(event)) == event
        assert event.corr_id == message.corr_id
    assert (further.payload.ref_event_id, further.to_agent_id) == (reply.event_id, "bob")
    assert reply.event_id != a_reply(message, body="no").event_id


def test_a_builder_refuses_what_would_not_be_valid() -> None:
    """A test cannot make an invalid event by accident."""
    with refused(Code.INVALID_FIELD):
        a_message(1, corr_id="corr_nonsense")
    with refused(Code.INVALID_FIELD):
        a_message(1, at_ms=-1)


def test_ids_follow_from_what_they_describe() -> None:
    """The same description gives the same id, another one another."""
    assert an_event_id("a", 1) == an_event_id("a", 1)
    assert len({an_event_id("a", 1), an_event_id("a", 2), an_event_id("a1"), an_event_id("a", 1, at_ms=5)}) == 4


def test_the_store_of_the_kit_is_the_store_in_memory() -> None:
    """Users of the kit need not know where it comes from."""
    assert MemoryStore is StoreInMemory


@pytest.mark.parametrize("kind", [MemoryStore, SqliteStore])
def test_every_store_has_all_that_the_interface_names(kind: type) -> None:
    """What the engine may ask of a store, every store has. Their types are held together in agentpost.testing."""
    assert public(Store) <= public(kind)


def test_the_store_in_memory_offers_nothing_more_than_the_interface() -> None:
    """What a test uses is what the gateway has."""
    assert public(MemoryStore) == public(Store)
