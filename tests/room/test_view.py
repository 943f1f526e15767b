"""The room as the delivery engine reads it."""

import pytest

from agentpost.room.document import Room
from agentpost.room.records import to_base64
from agentpost.room.view import RoomView
from tests.room.building import EDGE, OTHER_EDGE, SEED, a_node, a_room, admit_all, public_key

_SEALING_KEY = bytes(range(32))


def _with_edge(**fields: object) -> Room:
    """The seed's room, to which an edge node has brought its own records."""
    seed, edge = a_room(SEED), a_room(EDGE)
    admit_all(seed, EDGE)
    edge.write("nodes", EDGE, a_node(EDGE, sealingKey=to_base64(_SEALING_KEY)))
    if fields:
        edge.write("delivery", EDGE, fields)
    seed.receive(edge.update_since(), peer=EDGE, is_sync=True)
    return seed


def test_keys_and_tiers_of_a_member_are_those_it_was_admitted_with() -> None:
    """A node that nobody admitted has no keys."""
    view = RoomView(_with_edge())
    assert view.signing_key(EDGE) == public_key(EDGE)
    assert view.sealing_key(EDGE) == _SEALING_KEY
    assert not view.is_backbone(EDGE)
    assert view.is_backbone(SEED)
    assert view.signing_key(OTHER_EDGE) is None
    assert view.sealing_key(OTHER_EDGE) is None
    assert EDGE in view.snapshot().nodes


@pytest.mark.req("ROOM-6")
def test_a_revoked_node_has_no_keys_any_more() -> None:
    """Nothing is sealed for it, and nothing that it signs is believed."""
    room = _with_edge()
    room.revoke(EDGE)
    view = RoomView(room)
    assert view.signing_key(EDGE) is None
    assert view.sealing_key(EDGE) is None
    assert EDGE not in view.snapshot().nodes


def test_how_much_waits_at_a_gateway_is_what_it_says() -> None:
    """What it has taken in, less what its agents are done with; nothing is known of one that has not said."""
    assert RoomView(_with_edge()).waiting_at(EDGE) is None
    assert RoomView(_with_edge(latestSeq=12, inboxCursorAcked=9)).waiting_at(EDGE) == 3
    assert RoomView(_with_edge(inboxCursorAcked=9)).waiting_at(EDGE) is None


def test_how_much_waits_for_an_agent_is_what_its_gateway_says_of_that_agent() -> None:
    """One that is not named has nothing waiting if all are named who have something; otherwise nobody here knows."""
    told = {"latestSeq": 12, "waitingByAgent": {"builder": 3, "tester": 1}, "agentsWaiting": 2}
    view = RoomView(_with_edge(**told))
    assert [view.waiting_for(agent, node_id=EDGE) for agent in ("builder", "tester", "idler")] == [3, 1, 0]
    assert view.waiting_for("builder", node_id=OTHER_EDGE) is None
    capped = RoomView(_with_edge(**told | {"agentsWaiting": 40}))
    assert [capped.waiting_for(agent, node_id=EDGE) for agent in ("builder", "idler")] == [3, None]


def test_a_gateway_of_before_says_nothing_of_single_agents() -> None:
    """What it says of all of them is not taken for the number of one."""
    view = RoomView(_with_edge(latestSeq=12, inboxCursorAcked=9))
    assert (view.waiting_at(EDGE), view.waiting_for("builder", node_id=EDGE)) == (3, None)
