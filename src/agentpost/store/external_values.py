"""What the store keeps of agents outside the mesh: invites, sessions, refresh tokens, the numbers of signing keys."""

from msgspec import Struct

from agentpost.protocol.ids import FamilyId, InviteId, SessionId

__all__ = ["AgentInvite", "AgentSession", "RefreshToken", "TokenKey"]


class AgentInvite(Struct, frozen=True, kw_only=True):
    """Leave for one agent to open one session. The token itself is nowhere: `token_hash` is its sha256."""

    invite_id: InviteId
    token_hash: bytes
    agent_id: str
    scopes: tuple[str, ...]
    origins: tuple[str, ...] = ()
    max_sessions: int | None = None
    created_by: str
    created_at_ms: int
    expires_at_ms: int
    consumed_at_ms: int | None = None
    session_id: SessionId | None = None
    withdrawn_at_ms: int | None = None


class AgentSession(Struct, frozen=True, kw_only=True):
    """What one agent may do here, and the key that it has to prove each time (EXT-3).

    It ends when its last refresh token does, or when somebody ends it: `ended_by` says who or what did.
    """

    session_id: SessionId
    family_id: FamilyId
    agent_id: str
    invite_id: InviteId
    scopes: tuple[str, ...]
    origins: tuple[str, ...] = ()
    key_thumbprint: str
    created_at_ms: int
    refreshed_at_ms: int
    expires_at_ms: int
    ended_at_ms: int | None = None
    ended_by: str | None = None

    def is_live(self, now_ms: int) -> bool:
        return self.ended_at_ms is None and now_ms < self.expires_at_ms


class RefreshToken(Struct, frozen=True, kw_only=True):
    """One token of a family. It is spent for its successor; spent without one, it was replaced unused."""

    token_hash: bytes
    session_id: SessionId
    issued_at_ms: int
    expires_at_ms: int
    spent_at_ms: int | None = None
    successor_hash: bytes | None = None


class TokenKey(Struct, frozen=True, kw_only=True):
    """A key that signs access tokens, by its number. A retired one signs no more."""

    number: int
    made_at_ms: int
    retired_at_ms: int | None = None
