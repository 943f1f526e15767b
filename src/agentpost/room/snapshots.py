"""The records of the room as the router reads them (`protocol/snapshot`), made anew only where something changed."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from agentpost.protocol.snapshot import (
    AgentRecord,
    CapabilityIndex,
    CapabilityRecord,
    NodeRecord,
    RoomSnapshot,
    RoutingRule,
)
from agentpost.room.presence import Presence
from agentpost.room.records import is_removed
from agentpost.room.table import RecordTable

__all__ = ["SnapshotMaker"]

T = TypeVar("T")


class SnapshotMaker:
    """Made of the believed records, so nothing of a revoked node is in it; neither are removed records.

    Heartbeats come from presence, not from the document.
    """

    def __init__(self, table: RecordTable, presence: Presence) -> None:
        self._table = table
        self._presence = presence
        self._made: dict[str, tuple[tuple[int, ...], Any]] = {}
        self._latest: tuple[tuple[int, int], RoomSnapshot] | None = None

    def make(self) -> RoomSnapshot:
        # Asked for with every message, and mostly nothing at all has changed since.
        seen = (self._table.changes, self._presence.version)
        if self._latest is None or self._latest[0] != seen:
            versions = (*(self._table.version(name) for name in _READ), seen[1])
            self._latest = (seen, self._kept("snapshot", versions, self._snapshot))
        return self._latest[1]

    def _snapshot(self) -> RoomSnapshot:
        nodes = self._nodes()
        return RoomSnapshot(
            routing_policy_version=self._policy("rpv_", "agents", "routing"),
            capability_policy_version=self._policy("cpv_", "capabilities.catalog", "capabilities.index"),
            nodes=nodes,
            agents=self._section("agents", AgentRecord),
            routing=self._section("routing", RoutingRule),
            catalog=self._section("capabilities.catalog", CapabilityRecord),
            index=self._section("capabilities.index", CapabilityIndex),
            unheard=frozenset(node_id for node_id in nodes if self._presence.last_seen_ms(node_id) is None),
            listening_since_ms=self._presence.started_ms(),
        )

    def _nodes(self) -> dict[str, NodeRecord]:
        nodes = self._section("nodes", NodeRecord)
        heard = self._presence.last_heard_ms()
        return {
            node_id: replace(node, last_heartbeat_at=heard[node_id]) if node_id in heard else node
            for node_id, node in nodes.items()
        }

    def _section(self, map_name: str, kind: type[T]) -> dict[str, T]:
        def make() -> dict[str, T]:
            records = self._table.all(map_name)
            return {key: msgspec.convert(each, kind) for key, each in records.items() if not is_removed(each)}

        return self._kept(map_name, self._versions(map_name), make)

    def _policy(self, prefix: str, *map_names: str) -> str:
        """ROUTE-9: the same records give the same version, on every node."""

        def make() -> str:
            digest = hashlib.sha256()
            for name in map_names:
                for key, record in sorted(self._table.all(name).items()):
                    digest.update(f"{name}/{key}/{record['rev']}/{record['sig']}\n".encode())
            return prefix + digest.hexdigest()[:16]

        return self._kept(prefix, self._versions(*map_names), make)

    def _versions(self, *map_names: str) -> tuple[int, ...]:
        return tuple(self._table.version(name) for name in map_names)

    def _kept(self, name: str, versions: tuple[int, ...], make: Callable[[], T]) -> T:
        kept = self._made.get(name)
        if kept is None or kept[0] != versions:
            kept = self._made[name] = (versions, make())
        return kept[1]


_READ = ("nodes", "agents", "routing", "capabilities.catalog", "capabilities.index")
