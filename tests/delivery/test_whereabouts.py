"""Where the recipient of unaccepted mail is, and whether the mail may follow it."""

import pytest

from agentpost.delivery.whereabouts import Place, Whereabouts, locate
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.snapshot import Failover
from agentpost.testing import START_MS, FakeClock, FixedRoom, an_event_id

HERE, OWNER, STAND_IN = "node-a", "node-b", "node-c"


@pytest.fixture
def room() -> FixedRoom:
    room = FixedRoom(FakeClock())
    for node_id in (HERE, OWNER, STAND_IN):
        room.add_node(node_id)
    room.add_agent("bob", OWNER)
    return room


def _find(room: FixedRoom, *, node: str | None = OWNER, has_passed: bool | None = False) -> Whereabouts:
    delivery = Delivery(event_id=an_event_id("m"), to_agent_id="bob", from_agent_id="ada", to_node_id=node)
    return locate(
        delivery,
        room=room.snapshot(),
        own_node_id=HERE,
        has_passed=has_passed,
        is_revoked=room.is_revoked,
        now_ms=START_MS,
    )


@pytest.mark.req("RTY-1")
def test_an_owner_is_there_or_away(room: FixedRoom) -> None:
    """A gateway with a heartbeat is there; one that said goodbye is away, and its mail stays its own."""
    assert _find(room, has_passed=True) == Whereabouts(place=Place.THERE, node_id=OWNER)
    room.set_offline(OWNER)
    assert _find(room) == Whereabouts(place=Place.AWAY, node_id=OWNER)


def test_this_gateway_is_always_there(room: FixedRoom) -> None:
    """Local mail does not wait for the gateway's own heartbeat."""
    room.add_agent("bob", HERE)
    room.set_offline(HERE)
    room.add_fallback("bob", STAND_IN)
    assert _find(room, node=HERE, has_passed=True).place is Place.THERE


@pytest.mark.req("RTY-1")
def test_an_owner_that_is_there_may_not_have_come_to_the_mail_yet(room: FixedRoom) -> None:
    """What it has not read so far waits its turn; how far it is has to be asked if nobody knows."""
    assert _find(room, has_passed=False) == Whereabouts(place=Place.BEHIND, node_id=OWNER)
    assert _find(room, has_passed=None) == Whereabouts(place=Place.UNHEARD, node_id=OWNER)
    room.set_offline(OWNER)
    assert _find(room, has_passed=None) == Whereabouts(place=Place.AWAY, node_id=OWNER)


@pytest.mark.req("ROUTE-2")
def test_mail_for_a_silent_owner_does_not_go_to_a_stand_in(room: FixedRoom) -> None:
    """If nobody can tell whether the silent owner took it, the mail waits, and somebody is told."""
    room.set_offline(OWNER)
    room.add_fallback("bob", STAND_IN)
    assert _find(room).place is Place.IN_DOUBT
    room.add_fallback("bob", STAND_IN, failover=Failover.AT_LEAST_ONCE)
    moved = _find(room)
    assert (moved.place, moved.node_id, moved.decision) == (Place.MOVED, STAND_IN, "fallback")


@pytest.mark.req("ROUTE-1", "ROUTE-2")
def test_mail_follows_an_agent_that_moved_once_the_old_gateway_has_let_it_pass(room: FixedRoom) -> None:
    """A gateway that read beyond a message and accepted nothing did not take it; one that has not read it might."""
    room.add_agent("bob", STAND_IN)
    assert _find(room).place is Place.BEHIND
    moved = _find(room, has_passed=True)
    assert (moved.place, moved.node_id, moved.decision) == (Place.MOVED, STAND_IN, "owner")
    room.set_offline(OWNER)
    assert _find(room, has_passed=True).place is Place.IN_DOUBT


@pytest.mark.req("ROUTE-2", "ROUTE-3")
def test_a_revoked_gateway_gets_nothing_any_more(room: FixedRoom) -> None:
    """Mail that a revoked node may have taken goes nowhere by itself: its sender is told, unless twice is no harm."""
    room.revoke(OWNER)
    assert _find(room).place is Place.NOWHERE
    room.add_agent("bob", STAND_IN)
    assert _find(room).place is Place.NOWHERE
    room.add_fallback("bob", STAND_IN, failover=Failover.AT_LEAST_ONCE)
    assert _find(room).node_id == STAND_IN


@pytest.mark.req("ROUTE-3")
def test_mail_does_not_follow_an_agent_to_a_revoked_gateway(room: FixedRoom) -> None:
    """Nothing can be sealed for that one: the mail stays where it was sent, and is nowhere if that is nobody."""
    room.add_agent("bob", STAND_IN)
    room.revoke(STAND_IN)
    assert _find(room, has_passed=True) == Whereabouts(place=Place.THERE, node_id=OWNER)
    assert _find(room, node=None).place is Place.NOWHERE


@pytest.mark.req("ROUTE-3")
def test_an_agent_without_an_owner_is_nowhere_unless_it_was_somewhere(room: FixedRoom) -> None:
    """Mail that was routed stays where it went, even if the record of the agent is gone for a while."""
    room.add_agent("bob", None)
    assert _find(room, node=None).place is Place.NOWHERE
    assert _find(room, has_passed=True).place is Place.THERE
    room.remove_agent("bob")
    assert _find(room, has_passed=True).place is Place.THERE
    assert _find(room, node=None).place is Place.NOWHERE


def test_mail_that_had_no_gateway_goes_to_the_first_one_that_has_the_agent(room: FixedRoom) -> None:
    """What nobody was asked to take can be taken by nobody else."""
    assert _find(room, node=None) == Whereabouts(place=Place.MOVED, node_id=OWNER, decision="owner")
