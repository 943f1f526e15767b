"""The coordination map as a coordinator writes it: what the board offers, and what the room lets pass."""

import pytest

from agentpost.protocol.coordination import Preference
from agentpost.protocol.errors import Code, Refusal
from agentpost.room.coordination import CoordinationBoard
from agentpost.testing import FakeClock
from tests.room.building import EDGE, OTHER_SEED, SEED, a_node, a_populated_room, a_room, admit_all, bring


def boards() -> tuple[CoordinationBoard, CoordinationBoard, CoordinationBoard]:
    """The boards of two seeds and an edge node, each in a room of its own that the others keep up with."""
    clock = FakeClock()
    rooms = [a_room(node_id, clock=clock) for node_id in (SEED, OTHER_SEED, EDGE)]
    admit_all(rooms[0])
    for room in rooms:
        room.write("nodes", room.node_id, a_node(room.node_id))
    for _ in range(2):
        for room in rooms:
            for other in rooms:
                if other is not room:
                    other.receive(room.update_since(other.state()), peer=room.node_id, is_sync=True)
    for room in rooms:
        room.subscribe(
            lambda update, origin, room=room: [
                other.receive(update, peer=room.node_id) for other in rooms if other is not room and origin == ""
            ]
        )
    first, second, third = (CoordinationBoard(room, clock) for room in rooms)
    return first, second, third


@pytest.mark.req("OPS-4", "ROOM-3")
def test_switching_the_coordinator_takes_a_last_resort() -> None:
    """The first appointment is free; another one is refused unless it is said to be the last resort."""
    seed, _, edge = boards()
    seed.appoint(SEED, confirm_last_resort=False)
    seed.set_cadence(45)
    assert (seed.state().coordinator, seed.state().sweep_every_seconds) == (SEED, 45)
    with pytest.raises(Refusal) as caught:
        seed.appoint(OTHER_SEED, confirm_last_resort=False)
    assert caught.value.code is Code.CONFLICT
    assert seed.state().coordinator == SEED
    seed.appoint(OTHER_SEED, confirm_last_resort=True)
    assert seed.state().coordinator == OTHER_SEED
    with pytest.raises(Refusal) as caught:
        seed.set_cadence(30)
    assert caught.value.code is Code.WRITE_DENIED, "only the coordinator says how often"
    with pytest.raises(Refusal) as caught:
        edge.appoint(SEED, confirm_last_resort=True)
    assert caught.value.code is Code.WRITE_DENIED, "an edge node appoints nobody"
    with pytest.raises(Refusal) as caught:
        seed.appoint(EDGE, confirm_last_resort=True)
    assert caught.value.code is Code.INVALID_FIELD, "nor is it appointed"


@pytest.mark.req("OPS-4", "ROOM-3")
def test_preferences_and_terms_are_each_nodes_own() -> None:
    """Every node may say what it would like; a term is written by the backbone node that leads."""
    seed, _, edge = boards()
    edge.prefer(Preference(desired_coordinator=OTHER_SEED, desired_sweep_every_seconds=30))
    assert edge.state().preferences[EDGE].desired_coordinator == OTHER_SEED
    seed.begin_term(3)
    assert seed.state().terms == {SEED: 3}
    assert seed.state().highest_term == 3
    with pytest.raises(Refusal) as caught:
        edge.begin_term(4)
    assert caught.value.code is Code.WRITE_DENIED
    for seconds in (0, 5, 100_000):
        with pytest.raises(Refusal) as caught:
            edge.prefer(Preference(desired_sweep_every_seconds=seconds))
        assert caught.value.code is Code.INVALID_FIELD


@pytest.mark.req("OPS-4")
def test_a_term_that_no_sweep_led_to_counts_nowhere() -> None:
    """A backbone node that takes the highest number there is does not lead for ever; the others go on with theirs."""
    clock = FakeClock()
    room = a_populated_room(clock=clock)
    board = CoordinationBoard(room, clock)
    bring(room, OTHER_SEED, "coordination", f"sweepTerm:{OTHER_SEED}", {"value": 2**53 - 1})
    assert board.state().highest_term == 0
    board.begin_term(board.state().highest_term + 1)
    assert board.state().terms[SEED] == 1


@pytest.mark.req("OPS-4", "ROOM-6")
def test_the_terms_of_a_revoked_node_do_not_count() -> None:
    """However high they are."""
    clock = FakeClock()
    room = a_populated_room(clock=clock)
    board = CoordinationBoard(room, clock)
    bring(room, OTHER_SEED, "coordination", f"sweepTerm:{OTHER_SEED}", {"value": 1_000_000})
    assert board.state().highest_term == 1_000_000
    room.revoke(OTHER_SEED)
    assert board.state().highest_term == 0
