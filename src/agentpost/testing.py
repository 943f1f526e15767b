"""What a test of something built on agentpost needs: time and chance that it commands, a store, and valid events.

Nothing here asks the machine for the time or for a random number: the same test makes the same bytes every time.

    clock = FakeClock()
    store = MemoryStore(node_id="node-a", epoch="first")
    await store.append([a_message(1, body="hello")])
    clock.advance(20_000)
    assert store.head().seq == 1
"""

import random
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec.structs import replace

from agentpost.protocol.envelope import AckEvent, Event, MessageEvent, ReplyEvent, Trace, check
from agentpost.protocol.ids import ENTROPY_BYTES, CorrId, EventId, UlidSource, corr_id_of
from agentpost.protocol.payloads import Ack, AckType, Message, Reply
from agentpost.protocol.snapshot import (
    AgentRecord,
    AgentStatus,
    CapabilityIndex,
    CapabilityRecord,
    Failover,
    NodeRecord,
    NodeStatus,
    NodeTier,
    RoomSnapshot,
    RoutingRule,
    SkillRef,
)
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.identity import Identity
from agentpost.store.memory import MemoryStore

if TYPE_CHECKING:
    from agentpost.delivery.ports import RoomView
    from agentpost.store.interface import Store
    from agentpost.store.sqlite import SqliteStore
    from agentpost.world import Chance, Clock

__all__ = [
    "START_MS",
    "FakeClock",
    "FixedRoom",
    "MemoryStore",
    "SeededChance",
    "a_message",
    "a_reply",
    "an_ack",
    "an_event_id",
    "an_identity",
]

START_MS: Final = 1_772_036_530_000  # 2026-02-25T16:22:10.000Z


class FakeClock:
    """A `Clock` that stands still until it is told to move.

    clock = FakeClock()
    clock.advance(250)
    assert clock.now_ms() == START_MS + 250
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        if ms < 0:
            raise ValueError("time does not run backwards; step_back sets the clock back")
        self._now_ms += ms
        self._monotonic_ms += ms

    def step_back(self, ms: int) -> None:
        """Set the time of day back, as NTP or an operator may. The monotonic time does not follow."""
        if ms < 0:
            raise ValueError("a step back is a number of milliseconds that is not negative")
        self._now_ms -= ms

    def step_ahead(self, ms: int) -> None:
        """Set the time of day ahead. The monotonic time does not follow."""
        if ms < 0:
            raise ValueError("a step ahead is a number of milliseconds that is not negative")
        self._now_ms += ms


class SeededChance:
    """A `Chance` whose draws are those of its seed, in order.

    assert SeededChance(7).fraction() == SeededChance(7).fraction()
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test wants the same draws again, not secrets

    def entropy(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def fraction(self) -> float:
        return self._random.random()


def an_identity(name: str) -> Identity:
    """The keys of the node of this name, the same ones every time.

    assert an_identity("node-a").sealing_public == an_identity("node-a").sealing_public
    """
    return Identity(
        Ed25519PrivateKey.from_private_bytes(sha256(f"signing {name}".encode()).digest()),
        X25519PrivateKey.from_private_bytes(sha256(f"sealing {name}".encode()).digest()),
    )


class FixedRoom:
    """A `RoomView` that is what the test says it is. A node that is online has a fresh heartbeat at every look.

    room = FixedRoom(FakeClock())
    keys = room.add_node("node-b")
    room.add_agent("bob", "node-b")
    room.set_offline("node-b")
    assert room.sealing_key("node-b") == keys.sealing.public_key().public_bytes_raw()
    """

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._identities: dict[str, Identity] = {}
        self._nodes: dict[str, NodeRecord] = {}
        self._agents: dict[str, AgentRecord] = {}
        self._withdrawn: dict[str, str | None] = {}
        self._routing: dict[str, RoutingRule] = {}
        self._catalog: dict[str, CapabilityRecord] = {}
        self._index: dict[str, CapabilityIndex] = {}
        self._revoked: set[str] = set()
        self._silent_since_ms: dict[str, int] = {}
        self._unheard: set[str] = set()
        self._clocks_ahead_ms: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._waiting_for: dict[tuple[str, str], int] = {}
        self._version = 0

    def add_node(
        self,
        node_id: str,
        *,
        tier: NodeTier = NodeTier.EDGE,
        online: bool = True,
        capabilities: Sequence[str] = (),
        identity: Identity | None = None,
    ) -> Identity:
        """A gateway in the room; gives its keys. Added again after `revoke`, it is in the room again."""
        self._identities[node_id] = identity or an_identity(node_id)
        self._nodes[node_id] = NodeRecord(tier=tier, capabilities=tuple(capabilities))
        self._revoked.discard(node_id)
        if online:
            self.set_online(node_id)
        else:
            self.set_offline(node_id)
        return self._identities[node_id]

    def set_offline(self, node_id: str) -> None:
        """The node said goodbye; it was last heard now."""
        self._silent_since_ms[node_id] = self._clock.now_ms()

    def set_unheard(self, node_id: str) -> None:
        """The reader of the room has restarted just now, and has not heard this node since."""
        self.set_offline(node_id)
        self._unheard.add(node_id)

    def set_online(self, node_id: str) -> None:
        self._silent_since_ms.pop(node_id, None)
        self._unheard.discard(node_id)

    def revoke(self, node_id: str) -> None:
        """The node is out: no record and no keys. Its agents still say that they are its own."""
        self._revoked.add(node_id)

    def add_agent(self, agent_id: str, node_id: str | None, *, active: bool = True) -> None:
        """An agent that `node_id` owns; None for one that nobody owns."""
        status = AgentStatus.ACTIVE if active else AgentStatus.INACTIVE
        self._agents[agent_id] = AgentRecord(owner_node_id=node_id, status=status)
        self._withdrawn.pop(agent_id, None)
        self._version += 1

    def remove_agent(self, agent_id: str) -> None:
        """Its gateway takes the agent out of the mesh."""
        self._withdrawn[agent_id] = self._agents.pop(agent_id).owner_node_id
        self._version += 1

    def add_fallback(self, agent_id: str, *node_ids: str, failover: Failover = Failover.WAIT) -> None:
        """Who may stand in for the owner of the agent, in this order (ROUTE-2)."""
        self._routing[agent_id] = RoutingRule(fallback_node_ids=node_ids, failover=failover)
        self._version += 1

    def add_capability(self, capability_id: str, *agent_ids: str) -> None:
        """A capability that is published, and can be had of these agents; the first one owns it."""
        skill = SkillRef(name=capability_id, version="1")
        self._catalog[capability_id] = CapabilityRecord(
            capability_id=capability_id, owner_agent_id=agent_ids[0], executor_skill_ref=skill
        )
        self._index[capability_id] = CapabilityIndex(eligible_agent_ids=agent_ids)
        self._version += 1

    def set_waiting(self, node_id: str, waiting: int, **by_agent: int) -> None:
        """What the node says it has waiting for all of its agents, and for those that it speaks of."""
        self._waiting[node_id] = waiting
        self._waiting_for.update(((node_id, agent_id), size) for agent_id, size in by_agent.items())

    def snapshot(self) -> RoomSnapshot:
        return RoomSnapshot(
            routing_policy_version=f"rpv_{self._version}",
            capability_policy_version=f"cpv_{self._version}",
            nodes={node_id: self._as_heard(node_id) for node_id in self._nodes if node_id not in self._revoked},
            agents=dict(self._agents),
            routing=dict(self._routing),
            catalog=dict(self._catalog),
            index=dict(self._index),
        )

    def _as_heard(self, node_id: str) -> NodeRecord:
        silent_since_ms = self._silent_since_ms.get(node_id)
        if silent_since_ms is None:
            return replace(self._nodes[node_id], last_heartbeat_at=self._clock.now_ms())
        return replace(self._nodes[node_id], status=NodeStatus.OFFLINE, last_heartbeat_at=silent_since_ms)

    def identity(self, node_id: str) -> Identity:
        """The keys of a node, revoked or not."""
        return self._identities[node_id]

    def signing_key(self, node_id: str) -> bytes | None:
        identity = self._known(node_id)
        return None if identity is None else identity.signing.public_key().public_bytes_raw()

    def sealing_key(self, node_id: str) -> bytes | None:
        identity = self._known(node_id)
        return None if identity is None else identity.sealing.public_key().public_bytes_raw()

    def is_backbone(self, node_id: str) -> bool:
        return self._known(node_id) is not None and self._nodes[node_id].tier is NodeTier.BACKBONE

    def revoked_by(self) -> tuple[str, ...]:
        return ()

    def is_revoked(self, node_id: str) -> bool:
        return node_id in self._revoked

    def withdrawn_by(self, agent_id: str) -> str | None:
        return self._withdrawn.get(agent_id)

    def last_seen_ms(self, node_id: str) -> int | None:
        is_known = node_id in self._nodes and node_id not in self._unheard
        return self.silent_since_ms(node_id) if is_known else None

    def set_clock_ahead(self, node_id: str, ms: int | None) -> None:
        """What the heartbeats of the node say about its clock; None if none come."""
        if ms is None:
            self._clocks_ahead_ms.pop(node_id, None)
        else:
            self._clocks_ahead_ms[node_id] = ms

    def clocks_ahead_ms(self) -> dict[str, int]:
        return dict(self._clocks_ahead_ms)

    def silent_since_ms(self, node_id: str) -> int:
        return self._silent_since_ms.get(node_id, self._clock.now_ms())

    def waiting_at(self, node_id: str) -> int | None:
        return self._waiting.get(node_id)

    def waiting_for(self, agent_id: str, *, node_id: str) -> int | None:
        return self._waiting_for.get((node_id, agent_id))

    def _known(self, node_id: str) -> Identity | None:
        return None if node_id in self._revoked else self._identities.get(node_id)


def an_event_id(*what: object, at_ms: int = START_MS) -> EventId:
    """The id of the event that `what` describes: the same description and time, the same id."""
    entropy = sha256(repr(what).encode()).digest()[:ENTROPY_BYTES]
    return UlidSource().make(EventId, now_ms=at_ms, entropy=entropy)


def a_message(
    number: int = 1,
    *,
    body: str = "",
    to_agents: Sequence[str] = ("bob",),
    source_node_id: str = "node-a",
    source_agent_id: str = "ada",
    seq: int = 0,
    attempt: int = 1,
    corr_id: CorrId | None = None,
    expires_at_ms: int | None = None,
    at_ms: int | None = None,
) -> MessageEvent:
    """Message number `number` of an agent. A later number has a later time and an id that sorts after.

    a_message(1) == a_message(1)
    a_message(1).event_id < a_message(2).event_id
    """
    at_ms = START_MS + number if at_ms is None else at_ms
    event_id = an_event_id("message", number, source_node_id, source_agent_id, at_ms=at_ms)
    event = MessageEvent(
        event_id=event_id,
        seq=seq,
        source_node_id=source_node_id,
        source_agent_id=source_agent_id,
        corr_id=corr_id or corr_id_of(event_id),
        created_at=format_ms(at_ms),
        expires_at=None if expires_at_ms is None else format_ms(expires_at_ms),
        trace=Trace(attempt=attempt),
        payload=Message(to_agents=tuple(to_agents), body=body),
    )
    check(event)
    return event


def an_ack(
    of: Event,
    ack_type: AckType = AckType.ACCEPTED,
    *,
    by_agent_id: str = "bob",
    by_node_id: str = "node-b",
    seq: int = 0,
    at_ms: int | None = None,
) -> AckEvent:
    """The acknowledgement that an agent's gateway gives for an event.

    an_ack(a_message(1), AckType.PROCESSED, by_agent_id="bob")
    """
    at_ms = _after(of) if at_ms is None else at_ms
    event = AckEvent(
        event_id=an_event_id("ack", of.event_id, ack_type, by_node_id, by_agent_id, at_ms=at_ms),
        seq=seq,
        source_node_id=by_node_id,
        source_agent_id=by_agent_id,
        to_agent_id=of.source_agent_id,
        corr_id=of.corr_id,
        created_at=format_ms(at_ms),
        payload=Ack(
            ref_event_id=of.event_id,
            ref_kind=of.kind,
            ack_type=ack_type,
            acked_by_node_id=by_node_id,
            acked_by_agent_id=by_agent_id,
            acked_at=format_ms(at_ms),
        ),
    )
    check(event)
    return event


def a_reply(
    to: Event,
    *,
    body: str = "",
    by_agent_id: str = "bob",
    by_node_id: str = "node-b",
    seq: int = 0,
    at_ms: int | None = None,
) -> ReplyEvent:
    """The answer of an agent to an event.

    a_reply(a_message(1, body="are you there?"), body="yes")
    """
    at_ms = _after(to) if at_ms is None else at_ms
    event = ReplyEvent(
        event_id=an_event_id("reply", to.event_id, by_node_id, by_agent_id, body, at_ms=at_ms),
        seq=seq,
        source_node_id=by_node_id,
        source_agent_id=by_agent_id,
        to_agent_id=to.source_agent_id,
        corr_id=to.corr_id,
        created_at=format_ms(at_ms),
        payload=Reply(ref_event_id=to.event_id, body=body),
    )
    check(event)
    return event


def _after(event: Event) -> int:
    return parse_ms(event.created_at, field="createdAt") + 1


if TYPE_CHECKING:
    # The type checker holds these to their interfaces; at run time there is nothing to check.
    _stores: tuple[type[Store], ...] = (MemoryStore, SqliteStore)
    _clock: type[Clock] = FakeClock
    _chance: type[Chance] = SeededChance
    _room: type[RoomView] = FixedRoom
