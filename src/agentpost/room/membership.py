"""The members as the other parts ask for them: whose key is whose, who is backbone, who was revoked."""

from agentpost.protocol.snapshot import NodeTier
from agentpost.room.members import Member
from agentpost.room.records import from_base64
from agentpost.room.table import RecordTable

__all__ = ["RoomMembers"]


class RoomMembers:
    """Looks up in the table's members; they are found out anew only when a statement comes."""

    def __init__(self, table: RecordTable, *, own: str = "") -> None:
        self._table = table
        self._own = own

    def member(self, node_id: str) -> Member | None:
        return self._table.members.nodes.get(node_id)

    def public_key(self, node_id: str) -> bytes | None:
        """The Ed25519 key that signs for this node, or did until it was revoked; None if it never was a member."""
        member = self.member(node_id)
        try:
            return None if member is None or not member.public_key else from_base64(member.public_key)
        except ValueError:
            return None

    def former_keys(self, node_id: str) -> tuple[str, ...]:
        """The keys that signed for this node before its key was replaced."""
        member = self.member(node_id)
        return () if member is None else member.former_keys

    def all(self) -> list[Member]:
        """The members by name, with those that were revoked."""
        return [member for _, member in sorted(self._table.members.nodes.items())]

    def others(self) -> list[str]:
        """The members beside this node, by name."""
        return sorted(
            node_id
            for node_id, member in self._table.members.nodes.items()
            if not member.is_revoked and node_id != self._own
        )

    def is_member(self, node_id: str) -> bool:
        member = self.member(node_id)
        return member is not None and not member.is_revoked

    def is_backbone(self, node_id: str) -> bool:
        member = self.member(node_id)
        return member is not None and not member.is_revoked and member.tier is NodeTier.BACKBONE

    def is_revoked(self, node_id: str) -> bool:
        member = self.member(node_id)
        return member is not None and member.is_revoked

    def is_shut_out(self, node_id: str) -> bool:
        """Whether nothing is taken from this node. Its own writes a revoked node takes: it may be let in again."""
        return node_id != self._own and self.is_revoked(node_id)
