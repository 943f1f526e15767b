"""Who gets an event and which gateways have to hear of it: the route, held against what this gateway can do.

Adds to `protocol/routing` what only the engine knows: that this gateway itself is awake, and which gateways content
can be sealed for. Writes nothing.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from agentpost.delivery.ports import RoomView
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event, Trace
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.routing import Decision, Recipient, Rejected, RouteRequest, decide_route, is_live
from agentpost.protocol.snapshot import MOST_NOT_TAKEN, MOST_WAITING, NodeStatus, RoomSnapshot
from agentpost.store.interface import Store
from agentpost.world import Clock

__all__ = ["MAX_RECIPIENTS", "NotTaken", "Placement", "Placer", "RecipientReceipt", "engaged_by", "place"]

MAX_RECIPIENTS: Final = 1000
_KEEP_MS: Final = 100
_COUNT_EVERY_MS: Final = 1_000
_MOST_KEPT: Final = 256


class RecipientReceipt(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a sender is told of one recipient: where its mail goes, and whether anybody is there to take it.

    `waiting` and `gatewayWaiting` are the last word of that gateway, which is at most some seconds old while it is
    online. What was sent since it went away is not in it.
    """

    agent_id: str
    node_id: str | None
    decision: Decision
    is_online: bool
    last_seen_ms: int | None
    waiting: Annotated[
        int | None,
        Meta(
            description=f"How much the agent has waiting; {MOST_WAITING} means so many or more. None if its gateway "
            "has not said: one of the mesh is of an older version, or too many of its agents have mail waiting."
        ),
    ]
    gateway_waiting: Annotated[
        int | None,
        Meta(
            description="How much has come to the gateway, for all of its agents, since the oldest that is not done; "
            "None if it has not said."
        ),
    ]
    not_taken: Annotated[
        int,
        Meta(
            description="How many messages this gateway has sent to that one which it has not taken yet, some of the "
            f"last second left out; {MOST_NOT_TAKEN:,} or more where there are more than are counted."
        ),
    ]


class Placement(Struct, frozen=True, kw_only=True):
    """The recipients of one event, each with its gateway, and the room in which that was decided."""

    recipients: tuple[Recipient, ...]
    rejected: tuple[Rejected, ...]
    room: RoomSnapshot
    to_agents: tuple[str, ...]
    to_nodes: tuple[str, ...]
    unroutable: tuple[Recipient, ...]
    # ROUTE-9: the decisions, and the versions of the policy that they follow from.
    trace: Trace

    @classmethod
    def of(
        cls, recipients: tuple[Recipient, ...], *, rejected: tuple[Rejected, ...], room: RoomSnapshot
    ) -> "Placement":
        return cls(
            recipients=recipients,
            rejected=rejected,
            room=room,
            to_agents=tuple(recipient.agent_id for recipient in recipients),
            to_nodes=tuple(dict.fromkeys(each.node_id for each in recipients if each.node_id is not None)),
            unroutable=tuple(recipient for recipient in recipients if recipient.node_id is None),
            trace=Trace(
                route_decision=",".join(sorted({recipient.decision.value for recipient in recipients})),
                routing_policy_version=room.routing_policy_version,
                capability_policy_version=room.capability_policy_version,
                engaged_by=engaged_by({recipient.agent_id: recipient.node_id for recipient in recipients}),
            ),
        )

    def deliveries(self, event: Event, *, due_at_ms: int, now_ms: int) -> list[Delivery]:
        """ACK-5: one for each recipient. ROUTE-10: they record how it was routed, and when."""
        return [
            Delivery(
                event_id=event.event_id,
                to_agent_id=recipient.agent_id,
                to_node_id=recipient.node_id,
                route_decision=recipient.decision.value,
                corr_id=event.corr_id,
                from_agent_id=event.source_agent_id,
                due_at_ms=due_at_ms,
                emitted_at_ms=now_ms,
            )
            for recipient in self.recipients
        ]

    def endings(self, event: Event, *, reason: str, now_ms: int) -> list[Change]:
        """ROUTE-3: the deliveries that end where they begin."""
        return [
            Change(
                event_id=event.event_id,
                to_agent_id=recipient.agent_id,
                signal=DeliverySignal.UNROUTABLE,
                at_ms=now_ms,
                reason=reason,
            )
            for recipient in self.unroutable
        ]

    def receipts(self, view: RoomView, not_taken: Mapping[str, int], *, now_ms: int) -> tuple[RecipientReceipt, ...]:
        return tuple(self._receipt(recipient, view, not_taken, now_ms) for recipient in self.recipients)

    def _receipt(
        self, recipient: Recipient, view: RoomView, not_taken: Mapping[str, int], now_ms: int
    ) -> RecipientReceipt:
        node_id = recipient.node_id
        node = None if node_id is None else self.room.nodes.get(node_id)
        seen_ms = None if node_id is None else view.last_seen_ms(node_id)
        return RecipientReceipt(
            agent_id=recipient.agent_id,
            node_id=node_id,
            decision=recipient.decision,
            is_online=is_live(node, now_ms),
            last_seen_ms=seen_ms,
            waiting=None if node_id is None else view.waiting_for(recipient.agent_id, node_id=node_id),
            gateway_waiting=None if node_id is None else view.waiting_at(node_id),
            not_taken=0 if node_id is None else not_taken.get(node_id, 0),
        )


def place(request: RouteRequest, view: RoomView, *, own_node_id: str, now_ms: int) -> Placement:
    """Route an event; raises `Refusal` as `decide_route` does, and for more recipients than an event can name."""
    room = _with_self_awake(view.snapshot(), own_node_id, now_ms)
    route = decide_route(request, room, now_ms=now_ms)
    if len(route.recipients) > MAX_RECIPIENTS:
        raise Refusal(
            Code.INVALID_TARGETS,
            f"{len(route.recipients)} agents would get this; {MAX_RECIPIENTS} is the most for one event",
            field="toAgents",
            hint="Send it in several messages, each to some of the agents.",
        )
    return Placement.of(
        tuple(_reachable(each, view, own_node_id) for each in route.recipients), rejected=route.rejected, room=room
    )


class NotTaken:
    """How much each gateway has not taken yet of what was sent to it from here. Counted at most once a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._counted_at_ms: int | None = None

    def counts(self) -> Mapping[str, int]:
        now_ms = self._clock.monotonic_ms()
        if self._counted_at_ms is None or now_ms - self._counted_at_ms >= _COUNT_EVERY_MS:
            found = self._store.unaccepted_counts(most=MOST_NOT_TAKEN)
            self._counts, self._counted_at_ms = {each.node_id: each.count for each in found}, now_ms
        return self._counts


class _Kept(Struct, frozen=True, kw_only=True):
    placement: Placement
    snapshot: RoomSnapshot
    at_ms: int


class Placer:
    """Places the events of one gateway. What was asked a moment ago, in the same room, is not decided again."""

    def __init__(self, view: RoomView, *, own_node_id: str) -> None:
        self._view = view
        self._own_node_id = own_node_id
        self._kept: dict[RouteRequest, _Kept] = {}

    def place(self, request: RouteRequest, *, now_ms: int) -> Placement:
        snapshot = self._view.snapshot()
        kept = self._kept.get(request)
        # Time alone changes a decision only when somebody falls silent, and that takes much longer.
        if kept is not None and kept.snapshot is snapshot and 0 <= now_ms - kept.at_ms < _KEEP_MS:
            return kept.placement
        placement = place(request, self._view, own_node_id=self._own_node_id, now_ms=now_ms)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[request] = _Kept(placement=placement, snapshot=snapshot, at_ms=now_ms)
        return placement


def engaged_by(nodes: dict[str, str | None]) -> dict[str, str]:
    """What the trace has to say of who engages whom: nothing, if one gateway has all of the recipients.

    Otherwise a gateway that gets the event for one agent, and could stand in for another, would engage both (ROUTE-2).
    """
    if len(set(nodes.values())) == 1:
        return {}
    return {agent_id: node_id for agent_id, node_id in nodes.items() if node_id is not None}


def _with_self_awake(room: RoomSnapshot, own_node_id: str, now_ms: int) -> RoomSnapshot:
    """The room in which this gateway is live, which it is: nobody has to stand in for it before its first heartbeat."""
    own = room.nodes.get(own_node_id)
    if own is None or is_live(own, now_ms):
        return room
    awake = replace(own, status=NodeStatus.ONLINE, last_heartbeat_at=now_ms)
    return replace(room, nodes={**room.nodes, own_node_id: awake})


def _reachable(recipient: Recipient, view: RoomView, own_node_id: str) -> Recipient:
    """ROUTE-3: an agent whose gateway is not in the mesh, or not any more, has no owner that could get the event."""
    candidates = ((recipient.node_id, recipient.decision), (recipient.owner_node_id, Decision.WAIT))
    for node_id, decision in candidates:
        if node_id is not None and (node_id == own_node_id or view.sealing_key(node_id) is not None):
            return replace(recipient, node_id=node_id, decision=decision)
    return replace(recipient, node_id=None, decision=Decision.UNROUTABLE)
