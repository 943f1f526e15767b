"""A ticket for an open door. Here, and not earlier, the invite is used up and the node's key is pinned (AUTH-5)."""

from typing import Final

from msgspec.structs import replace

from agentpost.auth.guard import ReplayGuard
from agentpost.auth.tickets import Claims
from agentpost.auth.wire import Entry, Find
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import InviteId
from agentpost.store.interface import Store
from agentpost.store.values import KnownNode
from agentpost.world import Clock

__all__ = ["Redemption"]

_TICKET: Final = "ticket"


class Redemption:
    def __init__(self, store: Store, guard: ReplayGuard, *, clock: Clock, find: Find) -> None:
        self._store = store
        self._find = find
        self._guard = guard
        self._clock = clock

    async def redeem(self, claims: Claims, *, room: str) -> Entry:
        """Let the node of a ticket that was read in, once. Refused: a revoked node, another room, a used ticket."""
        self.check_welcome(claims)
        if room not in claims.rooms:
            raise Refusal(Code.ROOM_DENIED, "this ticket is not for that room")
        now_ms = self._clock.now_ms()
        if not await self._guard.first_use(_TICKET, claims.jti, now_ms=now_ms, good_until_ms=claims.expires_at_ms):
            raise Refusal(Code.TICKET_ALREADY_USED, "this ticket was used already")
        if claims.invite_id is None:
            node = await self._come_back(claims)
        else:
            node = await self._join(claims, claims.invite_id, now_ms)
        return Entry(
            node_id=node.node_id,
            tier=node.tier,
            rooms=claims.rooms,
            session_id=claims.session_id,
            signing_public=node.signing_public,
            sealing_public=node.sealing_public,
            invite_id=claims.invite_id,
            first_join=claims.invite_id is not None,
        )

    def check_welcome(self, claims: Claims) -> None:
        """Refuse a ticket whose node was revoked since it was made, or whose key is no longer the node's (ROOM-6)."""
        invite = None if claims.invite_id is None else self._store.invite(claims.invite_id)
        # An invite was made here, so what was decided here counts; the room hears of it when the node is in.
        node = (self._find if invite is None else self._store.known_node)(claims.sub)
        if invite is not None and invite.revoked_at_ms is not None:
            raise Refusal(Code.NODE_REVOKED, f"the invite of {claims.sub} was withdrawn")
        # An invite that is open was made after the revocation, to let the node in again.
        invited_again = invite is not None and invite.consumed_at_ms is None
        if node is not None and node.revoked_at_ms is not None and not invited_again:
            raise _revoked(claims.sub)
        if invite is None and (node is None or node.signing_public != claims.signing_public):
            raise Refusal(Code.INVALID_TICKET, "this ticket was made for a key that is no longer the node's")

    async def _join(self, claims: Claims, invite_id: InviteId, now_ms: int) -> KnownNode:
        return await self._store.consume_invite_and_pin(
            invite_id,
            KnownNode(
                node_id=claims.sub,
                signing_public=claims.signing_public,
                sealing_public=claims.sealing_public,
                tier=claims.tier,
                admitted_by=self._store.node_id,
                invite_id=invite_id,
                pinned_at_ms=now_ms,
            ),
        )

    async def _come_back(self, claims: Claims) -> KnownNode:
        # It may have been revoked while the replay guard was asked.
        self.check_welcome(claims)
        node = self._find(claims.sub)
        if node is None:
            raise _revoked(claims.sub)
        if self._store.known_node(claims.sub) != node:
            # It joined elsewhere: others vouch for it, and its keys are in its record of the room.
            return node
        if claims.sealing_public is not None and claims.sealing_public != node.sealing_public:
            # It has a new key to seal for, and has signed that with the key it is pinned to.
            return await self._store.pin_node(replace(node, sealing_public=claims.sealing_public))
        return node


def _revoked(node_id: str) -> Refusal:
    return Refusal(Code.NODE_REVOKED, f"the node {node_id} was revoked")
