"""Invites: leave for one node to join once. The token is shown to whoever asked for it, and kept nowhere (AUTH-2)."""

import re
from hashlib import sha256
from typing import Final

from agentpost.auth.signing import TOKEN_PREFIX, check_key, check_node_id, to_text
from agentpost.auth.wire import Discreet
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import InviteId
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.store.values import Invite
from agentpost.world import Chance, Clock, IdMaker

__all__ = ["DEFAULT_TTL_SECONDS", "MAX_TTL_SECONDS", "Invites", "NewInvite", "hash_token"]

DEFAULT_TTL_SECONDS: Final = 15 * 60
MAX_TTL_SECONDS: Final = 24 * 60 * 60
_TOKEN_BYTES: Final = 32
# The full name: a machine that another tailnet shares with this one may have the same first label.
_is_tailnet_name = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){1,8}").fullmatch


class NewInvite(Discreet, frozen=True, kw_only=True):
    """An invite at the one moment when its token is known."""

    secret = frozenset({"token"})

    token: str
    invite_id: InviteId
    tier: NodeTier
    expected_node_id: str
    expires_at: str


def hash_token(token: str) -> bytes:
    """What stands for a token everywhere but in its holder's hands. It is 256 random bits, so one hash is enough."""
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


class Invites:
    """Makes invites."""

    def __init__(self, store: Store, *, clock: Clock, chance: Chance, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._ids = ids

    def check(
        self, *, expected_node_id: str, ttl_seconds: int, public_key: str | None, tailnet_name: str | None
    ) -> None:
        """Refuse an invite that makes no sense; nothing is made yet."""
        check_node_id(expected_node_id, field="expectedNodeId")
        if expected_node_id == self._store.node_id:
            raise Refusal(Code.INVALID_FIELD, "a node does not invite itself", field="expectedNodeId")
        if not 1 <= ttl_seconds <= MAX_TTL_SECONDS:
            raise Refusal(
                Code.INVALID_FIELD, f"ttlSeconds must lie between 1 and {MAX_TTL_SECONDS}", field="ttlSeconds"
            )
        if public_key is not None:
            check_key(public_key, field="publicKey")
        if tailnet_name is not None and not _is_tailnet_name(tailnet_name):
            raise Refusal(
                Code.INVALID_FIELD,
                f"{tailnet_name!r:.80} is not the full name of a machine of a tailnet",
                field="tailnet",
                hint="Use the name that `tailscale status --json` shows as DNSName, as mbp-jane.tail1234.ts.net.",
            )

    async def make(
        self,
        *,
        tier: NodeTier,
        expected_node_id: str,
        created_by: str,
        ttl_seconds: int,
        public_key: str | None,
        tailnet_name: str | None,
    ) -> NewInvite:
        self.check(
            expected_node_id=expected_node_id, ttl_seconds=ttl_seconds, public_key=public_key, tailnet_name=tailnet_name
        )
        token = TOKEN_PREFIX + to_text(self._chance.entropy(_TOKEN_BYTES))
        now_ms = self._clock.now_ms()
        invite = Invite(
            invite_id=self._ids.make(InviteId),
            token_hash=hash_token(token),
            tier=tier,
            expected_node_id=expected_node_id,
            public_key=public_key,
            created_by=created_by,
            created_at_ms=now_ms,
            expires_at_ms=now_ms + ttl_seconds * 1000,
            tailnet_name=tailnet_name,
        )
        await self._store.create_invite(invite)
        return NewInvite(
            token=token,
            invite_id=invite.invite_id,
            tier=tier,
            expected_node_id=expected_node_id,
            expires_at=format_ms(invite.expires_at_ms),
        )
