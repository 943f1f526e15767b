"""The agents of this node in the room's `agents` map. Knows nothing of how they are engaged."""

from collections.abc import Sequence

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import AgentStatus, AgentType, Failover
from agentpost.room.document import Room
from agentpost.room.records import is_removed

__all__ = ["RoomDirectory"]


class RoomDirectory:
    """Publishes agents under this node's key (ROOM-3). The guard of the room has the last word on who may."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def owner_of(self, agent_id: str) -> str | None:
        record = self._room.record("agents", agent_id)
        return None if record is None or is_removed(record) else record["ownerNodeId"]

    def publish(self, agent_id: str, status: AgentStatus) -> None:
        """Write the agent's record, if it says something new. A role that it was given stays."""
        owner = self.owner_of(agent_id)
        if owner is not None and owner != self._room.node_id:
            raise Refusal(Code.CONFLICT, f"{agent_id} belongs to {owner}", field="agentId")
        present = (self._room.record("agents", agent_id) if owner is not None else None) or {}
        self._room.write(
            "agents",
            agent_id,
            {
                "ownerNodeId": self._room.node_id,
                "type": present.get("type", AgentType.INTERNAL.value),
                "role": present.get("role"),
                "status": status.value,
            },
        )

    def stands_in(self, agent_id: str) -> bool:
        rule = self._room.record("routing", agent_id)
        if rule is None or is_removed(rule) or self.owner_of(agent_id) in (None, self._room.node_id):
            return False
        return self._room.node_id in rule.get("fallbackNodeIds", ())

    def name_stand_ins(self, agent_id: str, node_ids: Sequence[str], failover: Failover) -> None:
        present = self._room.record("routing", agent_id)
        if node_ids:
            rule = {"fallbackNodeIds": list(node_ids), "failover": failover.value}
            if present is not None and not is_removed(present) and "requiresCapabilities" in present:
                rule["requiresCapabilities"] = present["requiresCapabilities"]
            self._room.write("routing", agent_id, rule)
        elif present is not None and not is_removed(present):
            self._room.remove("routing", agent_id)

    def withdraw(self, agent_id: str) -> None:
        if self.owner_of(agent_id) == self._room.node_id:
            self._room.remove("agents", agent_id)
