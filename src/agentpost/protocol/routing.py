"""Who gets an event, and which gateway may engage them: one decision, a function of the request and the room.

Knows nothing of clocks, links or cursors. It proposes: `Recipient.node_id` is the gateway that the policy
points to. Whether a stand-in may really take an event that the silent owner could already have taken is known
only to the engine, which is why every recipient also carries its owner and its failover policy (ROUTE-2).

    toAgents given   → those agents; capabilities are then not looked at (ROUTE-4, ROUTE-8)
    toAgents empty   → the active agents that the index lists for all requiredCapabilities (ROUTE-5, ROUTE-7)
    neither          → refused (ROUTE-6)

The result depends on the content of the snapshot, never on the order in which its maps were filled (ROUTE-9).
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import CapabilityStatus, Failover, NodeRecord, NodeStatus, RoomSnapshot

__all__ = [
    "decide_route",
    "is_live",
    "RouteRequest",
    "Route",
    "Recipient",
    "Decision",
    "Rejected",
    "RejectReason",
    "ALL_AGENTS",
    "STALE_AFTER_MS",
]

ALL_AGENTS: Final = "all"

# The time after which the awareness protocol itself forgets a peer that has fallen silent.
STALE_AFTER_MS: Final = 30_000

# A refusal names the culprits, not a fleet of them.
_NAMES_IN_MESSAGE: Final = 10


class Decision(StrEnum):
    """How a recipient's gateway was found."""

    OWNER = "owner"  # the owner is live
    FALLBACK = "fallback"  # the owner is silent; a live stand-in is proposed
    WAIT = "wait"  # the owner is silent and nobody may stand in: the mail waits for it
    UNROUTABLE = "unroutable"  # nobody owns this agent: dead letter, reason no_route


class RejectReason(StrEnum):
    UNKNOWN = "unknown"
    INACTIVE = "inactive"


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a sender asks for: agents by name, or whoever has these capabilities."""

    source_agent_id: str
    to_agents: tuple[str, ...] = ()
    required_capabilities: tuple[str, ...] = ()


class Recipient(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One agent that gets the event. `node_id` is who shall engage it, None only where nobody can."""

    agent_id: str
    node_id: str | None
    decision: Decision
    owner_node_id: str | None
    failover: Failover


class Rejected(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One named target that gets nothing, and why."""

    agent_id: str
    reason: RejectReason


class Route(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The decision, with the versions of the policy it was taken under."""

    recipients: tuple[Recipient, ...]
    rejected: tuple[Rejected, ...]
    routing_policy_version: str
    capability_policy_version: str


def decide_route(
    request: RouteRequest, room: RoomSnapshot, *, now_ms: float, stale_after_ms: float = STALE_AFTER_MS
) -> Route:
    """Decide who gets the event; raises `Refusal` where nobody can, and changes nothing either way.

    Named recipients come in the order they were named, each once; resolved ones are sorted by agent id.
    """
    rejected: tuple[Rejected, ...] = ()
    if ALL_AGENTS in request.to_agents:
        agent_ids = _everyone_but(request.source_agent_id, room)
    elif request.to_agents:
        agent_ids, rejected = _named(request.to_agents, room)
    elif request.required_capabilities:
        agent_ids = _capable(request.required_capabilities, room)
    else:
        # ROUTE-6: an empty list says as little as a missing one.
        raise Refusal(
            Code.MISSING_ROUTE_FIELDS,
            "neither toAgents nor requiredCapabilities says who this is for",
            field="toAgents",
        )
    return Route(
        recipients=tuple(
            _place(agent_id, room, now_ms=now_ms, stale_after_ms=stale_after_ms) for agent_id in agent_ids
        ),
        rejected=rejected,
        routing_policy_version=room.routing_policy_version,
        capability_policy_version=room.capability_policy_version,
    )


def is_live(node: NodeRecord | None, now_ms: float, stale_after_ms: float = STALE_AFTER_MS) -> bool:
    """Whether this gateway can be expected to engage its agents now.

    A node that said goodbye is not live, however fresh its heartbeat. A heartbeat from the future (a clock that
    runs ahead) counts as live: the mistake is then to wait for the owner, never to engage an agent twice.
    """
    if node is None or node.status is NodeStatus.OFFLINE or node.last_heartbeat_at is None:
        return False
    return now_ms - node.last_heartbeat_at <= stale_after_ms


def _everyone_but(source_agent_id: str, room: RoomSnapshot) -> list[str]:
    # ROUTE-8: "all" beside other names is still all, and the list is settled here, once, for every reader.
    agent_ids = sorted(
        agent_id for agent_id, agent in room.agents.items() if agent.is_active and agent_id != source_agent_id
    )
    if not agent_ids:
        raise Refusal(Code.INVALID_TARGETS, "no agent but the sender is active", field="toAgents")
    return agent_ids


def _named(to_agents: Iterable[str], room: RoomSnapshot) -> tuple[list[str], tuple[Rejected, ...]]:
    accepted: list[str] = []
    rejected: list[Rejected] = []
    for agent_id in dict.fromkeys(to_agents):
        agent = room.agents.get(agent_id)
        if agent is None:
            rejected.append(Rejected(agent_id=agent_id, reason=RejectReason.UNKNOWN))
        elif not agent.is_active:
            rejected.append(Rejected(agent_id=agent_id, reason=RejectReason.INACTIVE))
        else:
            accepted.append(agent_id)
    if not accepted:
        # ROUTE-4: with one valid target the rest is reported; with none there is nothing to send.
        named = _listed([f"{each.agent_id!r} is {each.reason}" for each in rejected])
        raise Refusal(Code.INVALID_TARGETS, f"no target exists and is active: {named}", field="toAgents")
    return accepted, tuple(rejected)


def _capable(required_capabilities: Iterable[str], room: RoomSnapshot) -> list[str]:
    required = sorted(set(required_capabilities))

    # What was never published, or was withdrawn, comes first: waiting does not help there. The catalog decides
    # and not the index alone, so that an index entry which outlived an unpublish routes nothing (CAP-3).
    unknown = [capability_id for capability_id in required if capability_id not in room.catalog]
    if unknown:
        raise Refusal(
            Code.NO_ROUTE,
            f"not published: {_listed([repr(each) for each in unknown])}",
            field="requiredCapabilities",
        )

    # ROUTE-7: an owner whose gateway sleeps is not unavailable; its mail waits.
    unavailable = [
        f"{capability_id!r}: {reason}"
        for capability_id in required
        if (reason := _why_unavailable(capability_id, room)) is not None
    ]
    if unavailable:
        raise Refusal(
            Code.CAPABILITY_UNAVAILABLE,
            f"published but not available: {_listed(unavailable)}",
            field="requiredCapabilities",
        )

    # ROUTE-5: all of them, not any.
    eligible = {agent_id for agent_id, agent in room.agents.items() if agent.is_active}
    for capability_id in required:
        entry = room.index.get(capability_id)
        eligible.intersection_update(() if entry is None else entry.eligible_agent_ids)
    if not eligible:
        raise Refusal(
            Code.NO_ROUTE,
            f"no active agent has all of: {_listed([repr(each) for each in required])}",
            field="requiredCapabilities",
        )
    return sorted(eligible)


def _why_unavailable(capability_id: str, room: RoomSnapshot) -> str | None:
    capability = room.catalog[capability_id]
    if capability.status is CapabilityStatus.DISABLED:
        return "it is disabled"
    owner = room.agents.get(capability.owner_agent_id)
    if owner is None:
        return f"its owner {capability.owner_agent_id!r} is unknown"
    if not owner.is_active:
        return f"its owner {capability.owner_agent_id!r} is inactive"
    if capability.executor_skill_ref is None:
        return "it has no executor skill"
    return None


def _place(agent_id: str, room: RoomSnapshot, *, now_ms: float, stale_after_ms: float) -> Recipient:
    """Find the gateway for one active agent."""
    rule = room.routing.get(agent_id)
    # ROUTE-1: the agent's own record says who owns it; a rule speaks only where that record is silent.
    owner_node_id = room.agents[agent_id].owner_node_id
    if owner_node_id is None and rule is not None:
        owner_node_id = rule.owner_node_id

    def placed(node_id: str | None, decision: Decision) -> Recipient:
        return Recipient(
            agent_id=agent_id,
            node_id=node_id,
            decision=decision,
            owner_node_id=owner_node_id,
            failover=Failover.WAIT if rule is None else rule.failover,
        )

    if owner_node_id is None:
        # ROUTE-3: a stand-in stands in for somebody, so fallbacks do not help an agent without an owner.
        return placed(None, Decision.UNROUTABLE)
    if is_live(room.nodes.get(owner_node_id), now_ms, stale_after_ms):
        return placed(owner_node_id, Decision.OWNER)
    if rule is not None and not _may_still_be_heard(owner_node_id, room, now_ms, stale_after_ms):
        # ROUTE-2: the first in the rule's order that is live and has what the agent needs.
        needed = frozenset(rule.requires_capabilities)
        for node_id in rule.fallback_node_ids:
            node = room.nodes.get(node_id)
            if node is not None and is_live(node, now_ms, stale_after_ms) and needed.issubset(node.capabilities):
                return placed(node_id, Decision.FALLBACK)
    return placed(owner_node_id, Decision.WAIT)


def _may_still_be_heard(node_id: str, room: RoomSnapshot, now_ms: float, stale_after_ms: float) -> bool:
    """Whether this gateway has not listened for long enough to call the node silent. A node that said goodbye is."""
    node = room.nodes.get(node_id)
    is_new_to_us = node_id in room.unheard and now_ms - room.listening_since_ms <= stale_after_ms
    return is_new_to_us and node is not None and node.status is not NodeStatus.OFFLINE


def _listed(parts: Sequence[str]) -> str:
    more = len(parts) - _NAMES_IN_MESSAGE
    return ", ".join(parts[:_NAMES_IN_MESSAGE]) + (f" and {more} more" if more > 0 else "")
