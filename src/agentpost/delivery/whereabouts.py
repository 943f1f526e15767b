"""Where the recipient of a delivery is now, and whether its mail may go there: one reading of the room, no effects.

Mail that nobody accepted yet stays with the gateway that it was sent to, unless that gateway cannot have taken it:
two gateways must never engage an agent with the same event (ROUTE-2).
"""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from agentpost.protocol.delivery import Delivery
from agentpost.protocol.errors import Refusal
from agentpost.protocol.routing import Decision, Recipient, RouteRequest, decide_route, is_live
from agentpost.protocol.snapshot import Failover, RoomSnapshot

__all__ = ["Place", "Whereabouts", "locate"]


class Place(StrEnum):
    THERE = "there"  # its gateway is there, and has read beyond the mail without taking it: it is sent again
    BEHIND = "behind"  # its gateway is there, and has not read so far: the mail waits its turn
    UNHEARD = "unheard"  # its gateway is there, and how far it has read is not known: it is asked
    AWAY = "away"  # its gateway is known to be away: the mail waits, and no attempt is spent
    IN_DOUBT = "in_doubt"  # away, and somebody could stand in, but nobody knows whether the silent one took it
    MOVED = "moved"  # another gateway may have it, and the one before cannot
    NOWHERE = "nowhere"  # no gateway can get it (ROUTE-3)


class Whereabouts(Struct, frozen=True, kw_only=True):
    """`node_id` is the gateway to send to; None only for an agent that is nowhere."""

    place: Place
    node_id: str | None
    decision: str | None = None


def locate(
    delivery: Delivery,
    *,
    room: RoomSnapshot,
    own_node_id: str,
    has_passed: bool | None,
    is_revoked: Callable[[str], bool],
    now_ms: int,
) -> Whereabouts:
    """Find the recipient of a delivery that nobody has accepted.

    `has_passed`: whether the gateway it was sent to says that it has read beyond it; None if it has not said how far it
    is. `is_revoked`: whether a gateway is out of the mesh for good.
    """
    found = _locate(
        delivery,
        room=room,
        own_node_id=own_node_id,
        has_passed=has_passed is True,
        is_revoked=is_revoked,
        now_ms=now_ms,
    )
    if found.place is not Place.THERE or has_passed:
        return found
    return Whereabouts(place=Place.UNHEARD if has_passed is None else Place.BEHIND, node_id=found.node_id)


def _locate(
    delivery: Delivery,
    *,
    room: RoomSnapshot,
    own_node_id: str,
    has_passed: bool,
    is_revoked: Callable[[str], bool],
    now_ms: int,
) -> Whereabouts:
    node_id = delivery.to_node_id
    is_out = node_id is not None and is_revoked(node_id)
    route = _route(delivery, room, now_ms)
    if route is None or route.node_id is None or (route.node_id != node_id and is_revoked(route.node_id)):
        # ROUTE-3. An agent whose record is missing or inactive stays where it was: records come and go, mail must not.
        # So does one whose new gateway is out: nothing can be sealed for that.
        if node_id is None or is_out:
            return Whereabouts(place=Place.NOWHERE, node_id=None)
        return _at(node_id, room, own_node_id, now_ms)
    if node_id is None:
        return Whereabouts(place=Place.MOVED, node_id=route.node_id, decision=route.decision)
    if route.node_id == node_id or (node_id == own_node_id == route.owner_node_id):
        return Whereabouts(place=Place.NOWHERE, node_id=None) if is_out else _at(node_id, room, own_node_id, now_ms)

    here = _at(node_id, room, own_node_id, now_ms)
    # A gateway that is there, has read beyond the event and accepted nothing did not take it: its ACK would have been
    # written with its cursor (CUR-2).
    let_it_pass = has_passed and here.place is Place.THERE
    if let_it_pass or route.failover is Failover.AT_LEAST_ONCE:
        return Whereabouts(place=Place.MOVED, node_id=route.node_id, decision=route.decision)
    if is_out:
        # It may have taken it, and nobody will ever hear: the sender is told, and can send it again.
        return Whereabouts(place=Place.NOWHERE, node_id=None)
    if here.place is Place.AWAY and route.decision in (Decision.OWNER, Decision.FALLBACK):
        return Whereabouts(place=Place.IN_DOUBT, node_id=node_id)
    return here


def _route(delivery: Delivery, room: RoomSnapshot, now_ms: int) -> Recipient | None:
    request = RouteRequest(source_agent_id=delivery.from_agent_id, to_agents=(delivery.to_agent_id,))
    try:
        return decide_route(request, room, now_ms=now_ms).recipients[0]
    except Refusal:
        return None


def _at(node_id: str | None, room: RoomSnapshot, own_node_id: str, now_ms: int) -> Whereabouts:
    there = node_id is not None and (node_id == own_node_id or is_live(room.nodes.get(node_id), now_ms))
    return Whereabouts(place=Place.THERE if there else Place.AWAY, node_id=node_id)
