"""What the pipeline has to know beside the events, as it changes: who owns whom, who has read how far, which policy.

A gateway writes down what it sees itself, in change logs of its own; only what has changed is appended. Every so many
logs one holds everything, so that a start need not read them all.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake.manifest import facts_path
from agentpost.lake.place import Lake, NameTaken
from agentpost.lake.reading import read_facts
from agentpost.lake.schema import FACTS
from agentpost.protocol.snapshot import NodeStatus, NodeTier
from agentpost.room.document import Room
from agentpost.store.identity import Identity
from agentpost.store.interface import Store

__all__ = ["FactLog", "Facts", "gather_facts"]

# (topic, key) → value
Facts = dict[tuple[str, str], dict[str, Any]]

# These logs hold everything that is true, not only what changed: the first, and one in so many after it.
_LOGS_BETWEEN: Final = 1_000
_AUDIT_PAGE: Final = 1_000
_SESSION: Final = "session"
# What changes by itself all the time and means nothing without the rest.
_NO_NEWS: Final = {"leaseExpiresUs"}

_encoder = msgspec.json.Encoder(order="deterministic")


def gather_facts(
    *, room: Room | None, store: Store, identity: Identity, tier: NodeTier, policy: DeliveryPolicy, now_ms: int
) -> Facts:
    """All that is true now, as far as this gateway knows. To be called where the room may be read.

    Without the room it is less, and says nothing of what is gone.
    """
    facts: Facts = {
        ("node", store.node_id): {
            "tier": tier.value,
            "signingPublic": identity.signing_public,
            "status": "active",
        }
    }
    for node in store.known_nodes():
        facts["node", node.node_id] = {
            "tier": node.tier.value,
            "signingPublic": node.signing_public,
            "status": "active" if node.revoked_at_ms is None else "revoked",
        }
    facts.update(_cursors(store, policy, now_ms))
    facts["settings", store.node_id] = {
        "acceptedAckTimeoutSeconds": policy.accepted_ack_timeout_seconds,
        "maxAttempts": policy.resend.max_attempts,
        "processedSlaSeconds": policy.processed_sla_seconds,
        "processedSlaGraceSeconds": policy.processed_sla_grace_seconds,
    }
    if room is not None:
        facts.update(_of_room(room))
    return facts


def _cursors(store: Store, policy: DeliveryPolicy, now_ms: int) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """How far this gateway has read others, and others have read this one, by their own word."""
    own = store.node_id
    places = [
        (own, at.source_node_id, at.epoch, at.last_seq, at.updated_at_ms + policy.cursor_lease_seconds * 1000, True)
        for at in store.cursors()
    ]
    places += [
        (by.consumer_node_id, own, by.epoch, by.last_seq, by.lease_expires_at_ms, by.lease_expires_at_ms > now_ms)
        for by in store.subscribers()
    ]
    for consumer, source, epoch, last_seq, lease_expires_at_ms, is_active in places:
        yield (
            ("cursor", f"{consumer}/{source}"),
            {
                "consumer": consumer,
                "source": source,
                "epoch": epoch,
                "lastSeq": last_seq,
                "leaseExpiresUs": lease_expires_at_ms * 1000,
                "status": "active" if is_active else "expired",
            },
        )


def _of_room(room: Room) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    snapshot = room.snapshot()
    for member in room.keys.all():
        node_id = member.node_id
        yield (
            ("node", node_id),
            {
                "tier": member.tier.value,
                "signingPublic": member.public_key or None,
                "status": "revoked" if member.is_revoked else "active",
            },
        )
        is_away = room.presence.status_of(node_id) is NodeStatus.OFFLINE
        yield ("presence", node_id), {"status": "offline" if is_away else "online"}
    for agent_id, agent in snapshot.agents.items():
        rule = snapshot.routing.get(agent_id)
        yield (
            ("agent", agent_id),
            {
                "ownerNodeId": agent.owner_node_id,
                "status": agent.status.value,
                "fallbackNodeIds": [] if rule is None else list(rule.fallback_node_ids),
            },
        )
    for capability_id, capability in snapshot.catalog.items():
        index = snapshot.index.get(capability_id)
        executor = capability.executor_skill_ref
        yield (
            ("capability", capability_id),
            {
                "version": capability.version,
                "ownerAgentId": capability.owner_agent_id,
                "ownerNodeId": capability.owner_node_id,
                "status": capability.status.value,
                "executorSkillVersion": None if executor is None else executor.version,
                "policyVersion": None if index is None else index.policy_version,
            },
        )
    yield ("policy", "routing"), {"version": snapshot.routing_policy_version}
    yield ("policy", "capability"), {"version": snapshot.capability_policy_version}


class FactLog:
    """The change logs of one gateway in the lake. Used by one thread at a time."""

    def __init__(self, lake: Lake, observer: str) -> None:
        self._lake = lake
        self._observer = observer
        self._number: int | None = None
        self._known: Facts = {}
        self._audit_id = 0

    def append(self, facts: Facts, store: Store, *, at_us: int, is_complete: bool = True) -> int:
        """Write down what is new, if anything is. Gives how many rows that are.

        What is not among complete facts any more is gone.
        """
        while True:
            self._load()
            sessions = list(_sessions(store, self._audit_id))
            changes = self._changes(facts if is_complete else {**self._known, **facts})
            if not changes and not sessions:
                return 0
            number = (self._number or 0) + 1
            rows = [(at_us, topic, key, value) for (topic, key), value in sorted(changes.items())] + sessions
            if number % _LOGS_BETWEEN == 1 and not sessions and self._audit_id:
                # Whoever starts with this log has to learn how far the audit was read.
                rows.append((at_us, _SESSION, "", {"auditId": self._audit_id}))
            try:
                self._lake.create(facts_path(self._observer, number), _encoded(self._observer, rows))
            except NameTaken:
                # Another process of this gateway was faster: read what it wrote, and look again.
                self._number = None
                continue
            self._number = number
            self._learn((topic, key, value) for _, topic, key, value in rows)
            return len(rows)

    def _changes(self, facts: Facts) -> dict[tuple[str, str], dict[str, Any] | None]:
        if (self._number or 0) % _LOGS_BETWEEN == 0:
            return {**facts, **{gone: None for gone in self._known if gone not in facts}}
        news = {key: value for key, value in facts.items() if _told(value) != _told(self._known.get(key))}
        return {**news, **{gone: None for gone in self._known if gone not in facts}}

    def _load(self) -> None:
        """Read what was written before, from the last log that holds everything on."""
        if self._number is not None:
            return
        directory = facts_path(self._observer, 0).rpartition("/")[0]
        numbers = [int(name.split(".")[0]) for name in self._lake.names(directory) if name.endswith(".parquet")]
        last = max(numbers, default=0)
        self._known, self._audit_id = {}, 0
        first = max(last - 1, 0) // _LOGS_BETWEEN * _LOGS_BETWEEN + 1
        for number in range(first, last + 1):
            rows = read_facts(self._lake, facts_path(self._observer, number), ("topic", "key", "value"))
            self._learn((row["topic"], row["key"], row["value"] and msgspec.json.decode(row["value"])) for row in rows)
        self._number = last

    def _learn(self, rows: Iterator[tuple[str, str, dict[str, Any] | None]]) -> None:
        for topic, key, value in rows:
            if topic == _SESSION:
                self._audit_id = max(self._audit_id, (value or {}).get("auditId", 0))
            elif value is None:
                self._known.pop((topic, key), None)
            else:
                self._known[topic, key] = value


def _told(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else {name: said for name, said in value.items() if name not in _NO_NEWS}


def _sessions(store: Store, after_id: int) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """What was done within sessions or conversations, as the audit log has it; each entry once."""
    while page := store.audit_log(after_id=after_id, limit=_AUDIT_PAGE):
        after_id = page[-1].id
        for entry in page:
            if entry.session_id is not None or entry.corr_id is not None:
                value = {
                    "sessionId": entry.session_id,
                    "actor": entry.actor,
                    "action": entry.action,
                    "auditId": entry.id,
                }
                yield entry.at_ms * 1000, _SESSION, entry.corr_id or "", value


def _encoded(observer: str, rows: list[tuple[int, str, str, dict[str, Any] | None]]) -> bytes:
    columns = {
        "at_us": [at_us for at_us, _, _, _ in rows],
        "observer": [observer] * len(rows),
        "topic": [topic for _, topic, _, _ in rows],
        "key": [key for _, _, key, _ in rows],
        "value": [None if value is None else _encoder.encode(value).decode() for _, _, _, value in rows],
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=FACTS), sink, compression="zstd")
    return sink.getvalue().to_pybytes()
