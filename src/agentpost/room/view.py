"""The room as the delivery engine reads it: keys, tiers and backlogs of other gateways. Knows nothing of delivery.

Reads believed records only. A node that was revoked has no keys any more, so that nothing is sealed for it and nothing
that it signs is believed.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from agentpost.protocol.snapshot import RoomSnapshot
from agentpost.room.document import Room
from agentpost.room.records import from_base64, is_removed

__all__ = ["RoomView"]


class RoomView:
    """One for each gateway. Cheap to ask: it looks up, and computes nothing.

    `refused_by` are the seeds that say that they have revoked this gateway.
    """

    def __init__(self, room: Room, *, refused_by: Collection[str] = ()) -> None:
        self._room = room
        self._refused_by = refused_by

    def snapshot(self) -> RoomSnapshot:
        return self._room.snapshot()

    def signing_key(self, node_id: str) -> bytes | None:
        """The Ed25519 key that signs for this node; None for a node that is unknown or revoked."""
        keys = self._room.keys
        return None if keys.is_revoked(node_id) else keys.public_key(node_id)

    def sealing_key(self, node_id: str) -> bytes | None:
        """The X25519 key that content for this node is sealed for; None for one that is unknown or revoked."""
        record = self._record("nodes", node_id)
        if self._room.keys.is_revoked(node_id) or record is None or record.get("signedBy") != node_id:
            return None
        try:
            return _key(record["sealingKey"])
        except (KeyError, TypeError, ValueError):
            return None

    def is_backbone(self, node_id: str) -> bool:
        return self._room.keys.is_backbone(node_id) and not self._room.keys.is_revoked(node_id)

    def is_revoked(self, node_id: str) -> bool:
        return self._room.keys.is_shut_out(node_id)

    def withdrawn_by(self, agent_id: str) -> str | None:
        """The node that took this agent out of the mesh; None while a node hosts it, and if none ever did."""
        record = self._room.record("agents", agent_id)
        return record["signedBy"] if record is not None and is_removed(record) else None

    def revoked_by(self) -> tuple[str, ...]:
        """The seeds that took this gateway itself out of the mesh; none for one that may send."""
        own = self._room.keys.member(self._room.node_id)
        by = {own.said_by} if own is not None and own.is_revoked else set[str]()
        return tuple(sorted(by.union(self._refused_by)))

    def last_seen_ms(self, node_id: str) -> int | None:
        """When a gateway was heard last, also if it has left since; None if it was not since the start."""
        return self._room.presence.last_seen_ms(node_id)

    def clocks_ahead_ms(self) -> Mapping[str, int]:
        """By how much the clocks of other gateways are ahead of this one's, of those whose heartbeats come."""
        return self._room.presence.clocks_ahead_ms()

    def silent_since_ms(self, node_id: str) -> int:
        """Since when a gateway was not heard: its last word, or this gateway's own start if that is later."""
        return self._room.presence.silent_since_ms(node_id)

    def waiting_at(self, node_id: str) -> int | None:
        """How much a gateway says it has waiting for all of its agents; None if it has not said."""
        record = self._record("delivery", node_id)
        if record is None or record.get("latestSeq") is None:
            return None
        return max(int(record["latestSeq"]) - int(record.get("inboxCursorAcked") or 0), 0)

    def waiting_for(self, agent_id: str, *, node_id: str) -> int | None:
        """How much a gateway says it has waiting for one agent, `MOST_WAITING` or less; None if it has not said."""
        record = self._record("delivery", node_id)
        told: dict[str, int] | None = None if record is None else record.get("waitingByAgent")
        if record is None or told is None:
            return None
        is_told_of_all = (record.get("agentsWaiting") or 0) <= len(told)
        return told.get(agent_id, 0 if is_told_of_all else None)

    def _record(self, map_name: str, key: str) -> dict[str, Any] | None:
        record = self._room.record(map_name, key)
        return None if is_removed(record) else record


# Asked for with every message; public keys, so nothing is given away by keeping them.
_key = lru_cache(maxsize=4096)(from_base64)
