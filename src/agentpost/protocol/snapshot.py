"""The room as the router sees it: one consistent, immutable reading of the control plane's maps.

Knows nothing of Yjs, of how the room is synced, or of who may write what. Records are read leniently: a field
that this version does not know is passed over, and a field that an older writer left out has a default,
because one odd record must not stop the mail of everyone else. What a *writer* must declare is checked where
it is written.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

__all__ = [
    "MOST_NOT_TAKEN",
    "MOST_WAITING",
    "ROOM_VERSION",
    "RoomSnapshot",
    "NodeRecord",
    "NodeStatus",
    "NodeTier",
    "AgentRecord",
    "AgentStatus",
    "AgentType",
    "RoutingRule",
    "Failover",
    "CapabilityRecord",
    "CapabilityStatus",
    "CapabilityIndex",
    "SkillRef",
]

# Epoch milliseconds and seconds that came through the room: Yjs clients in JavaScript write every number as a
# float.
Number = int | float

# The first number changes when gateways of both kinds cannot be in one room.
ROOM_VERSION: Final = "2.0"

# How far a gateway counts what it has waiting for one agent: so many means so many or more.
MOST_WAITING: Final = 1_000
# What a gateway has not taken yet is counted so far: it would take too long, and says no more.
MOST_NOT_TAKEN: Final = 100_000


class NodeTier(StrEnum):
    BACKBONE = "backbone"
    EDGE = "edge"


class NodeStatus(StrEnum):
    ONLINE = "online"
    DEGRADED = "degraded"
    OFFLINE = "offline"


class AgentType(StrEnum):
    INTERNAL = "internal"
    EXTERNAL = "external"


class AgentStatus(StrEnum):
    ACTIVE = "active"
    INACTIVE = "inactive"


class CapabilityStatus(StrEnum):
    ACTIVE = "active"
    DEPRECATED = "deprecated"
    DISABLED = "disabled"


class Failover(StrEnum):
    """What the mesh does while nobody can know whether a silent owner took an event (ROUTE-2)."""

    WAIT = "wait"
    AT_LEAST_ONCE = "at_least_once"


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`nodes.<nodeId>`: a gateway. `last_heartbeat_at` is epoch ms, None before its first heartbeat."""

    tier: NodeTier = NodeTier.EDGE
    endpoint_ws: str | None = None
    capabilities: tuple[str, ...] = ()
    status: NodeStatus = NodeStatus.ONLINE
    last_heartbeat_at: Number | None = None
    protocol_version: str | None = None
    added_by: str | None = None
    added_at: Number | str | None = None


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`agents.<agentId>`: who exists, and which gateway hosts it. `last_seen_at` is epoch ms."""

    owner_node_id: str | None = None
    type: AgentType = AgentType.INTERNAL
    role: str | None = None
    status: AgentStatus = AgentStatus.ACTIVE
    last_seen_at: Number | None = None
    # The state model's older name for ownerNodeId: read, never written. Empty once the record is built.
    gateway: str | None = None

    def __post_init__(self) -> None:
        if self.gateway is not None:
            if self.owner_node_id is None:
                msgspec.structs.force_setattr(self, "owner_node_id", self.gateway)
            msgspec.structs.force_setattr(self, "gateway", None)

    @property
    def is_active(self) -> bool:
        """Whether mail may be addressed to this agent; says nothing of whether its gateway is awake."""
        return self.status is AgentStatus.ACTIVE


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`routing.<agentId>`: who may stand in for the owner, in this order, and at what risk."""

    owner_node_id: str | None = None
    fallback_node_ids: tuple[str, ...] = ()
    requires_capabilities: tuple[str, ...] = ()
    priority_default: str | None = None
    failover: Failover = Failover.WAIT


class SkillRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One half of a skill pair: its name, its version, and where its owner keeps it.

    Not `payloads.SkillRef`, which is part of an event: strict, and with its unknown fields kept.
    """

    name: str
    version: str
    path: str | None = None


class CapabilityRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`capabilities.catalog.<capabilityId>`: what was published, by whom, and who carries it out."""

    capability_id: str
    owner_agent_id: str
    owner_node_id: str | None = None
    name: str = ""
    version: str = ""
    status: CapabilityStatus = CapabilityStatus.ACTIVE
    delegation_skill_ref: SkillRef | None = None
    executor_skill_ref: SkillRef | None = None
    contract_schema_ref: str | None = None
    default_eta_seconds: Number | None = None
    published_at: str | None = None
    published_by_agent_id: str | None = None


class CapabilityIndex(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`capabilities.index.<capabilityId>`: the agents that may be given this work right now."""

    eligible_agent_ids: tuple[str, ...] = ()
    capability_id: str | None = None
    policy_version: str | None = None
    updated_at: str | None = None


class RoomSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything a routing decision may depend on, keyed as in the room. Nothing in here changes.

    The two versions name the policy that this snapshot is; events carry them (ROUTE-9). `unheard` are the nodes whose
    heartbeat has not come since this gateway began to listen, at `listening_since_ms`.
    """

    routing_policy_version: str
    capability_policy_version: str
    nodes: Mapping[str, NodeRecord] = msgspec.field(default_factory=dict[str, NodeRecord])
    agents: Mapping[str, AgentRecord] = msgspec.field(default_factory=dict[str, AgentRecord])
    routing: Mapping[str, RoutingRule] = msgspec.field(default_factory=dict[str, RoutingRule])
    catalog: Mapping[str, CapabilityRecord] = msgspec.field(default_factory=dict[str, CapabilityRecord])
    index: Mapping[str, CapabilityIndex] = msgspec.field(default_factory=dict[str, CapabilityIndex])
    unheard: frozenset[str] = frozenset()
    listening_since_ms: int = 0
