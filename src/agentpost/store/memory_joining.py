"""What the store in memory knows of joining: the invites, and the nodes with their keys."""

from msgspec.structs import replace

from agentpost.protocol.ids import InviteId
from agentpost.store import rules
from agentpost.store.memory_external import MemoryExternal
from agentpost.store.values import Invite, KnownNode

__all__ = ["MemoryJoining"]


class MemoryJoining(MemoryExternal):
    """A part of `MemoryStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._invites: dict[InviteId, Invite] = {}
        self._known_nodes: dict[str, KnownNode] = {}

    async def create_invite(self, invite: Invite) -> None:
        rules.check_new_invite(self.invite(invite.invite_id) or self.invite_by_hash(invite.token_hash))
        self._invites[invite.invite_id] = invite

    def invite_by_hash(self, token_hash: bytes) -> Invite | None:
        self._check_open()
        return next((invite for invite in self._invites.values() if invite.token_hash == token_hash), None)

    def invite(self, invite_id: InviteId) -> Invite | None:
        self._check_open()
        return self._invites.get(invite_id)

    def invites(self, *, limit: int = 256) -> list[Invite]:
        self._check_open()
        return [self._invites[invite_id] for invite_id in sorted(self._invites, reverse=True)[:limit]]

    async def consume_invite_and_pin(self, invite_id: InviteId, node: KnownNode) -> KnownNode:
        used = rules.consumed(self.invite(invite_id), node)
        kept = rules.pinned(self.known_node(node.node_id), node, invited=True)
        self._invites[invite_id] = used
        self._known_nodes[node.node_id] = kept
        return kept

    async def withdraw_invite(self, invite_id: InviteId, *, at_ms: int) -> bool:
        invite = self.invite(invite_id)
        if invite is None or invite.consumed_at_ms is not None or invite.revoked_at_ms is not None:
            return False
        self._invites[invite_id] = replace(invite, revoked_at_ms=at_ms)
        return True

    def known_node(self, node_id: str) -> KnownNode | None:
        self._check_open()
        return self._known_nodes.get(node_id)

    def known_nodes(self) -> list[KnownNode]:
        self._check_open()
        return [self._known_nodes[node_id] for node_id in sorted(self._known_nodes)]

    async def pin_node(self, node: KnownNode) -> KnownNode:
        kept = rules.pinned(self.known_node(node.node_id), node, invited=False)
        self._known_nodes[node.node_id] = kept
        return kept

    async def revoke_node(self, node_id: str, *, at_ms: int) -> bool:
        node = self.known_node(node_id)
        withdrawn = [
            invite
            for invite in self._invites.values()
            if invite.expected_node_id == node_id and invite.consumed_at_ms is None and invite.revoked_at_ms is None
        ]
        self._invites |= {invite.invite_id: replace(invite, revoked_at_ms=at_ms) for invite in withdrawn}
        if node is None or node.revoked_at_ms is not None:
            return bool(withdrawn)
        self._known_nodes[node_id] = replace(node, revoked_at_ms=at_ms)
        return True

    def _prune_invites(self, before_ms: int, limit: int) -> int:
        ended = [
            each.invite_id
            for each in self._invites.values()
            if (each.consumed_at_ms or each.revoked_at_ms or each.expires_at_ms) < before_ms
        ][:limit]
        for invite_id in ended:
            del self._invites[invite_id]
        return len(ended) + self._prune_external(before_ms, limit)
