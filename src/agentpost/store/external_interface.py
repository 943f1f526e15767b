"""What may be asked of a store about agents outside the mesh (EXT). A part of `Store`; the same promises hold."""

from collections.abc import Awaitable
from typing import Protocol

from agentpost.protocol.ids import FamilyId, InviteId, SessionId
from agentpost.store.external_values import AgentInvite, AgentSession, RefreshToken, TokenKey
from agentpost.store.values import AuditEntry

__all__ = ["ExternalStore"]


class ExternalStore(Protocol):
    """A write that is given an `audit` entry records it in the same transaction: neither happens without the other."""

    def create_agent_invite(self, invite: AgentInvite, *, audit: AuditEntry) -> Awaitable[None]: ...

    def agent_invite_by_hash(self, token_hash: bytes) -> AgentInvite | None: ...

    def agent_invite(self, invite_id: InviteId) -> AgentInvite | None: ...

    def open_agent_session(self, session: AgentSession, refresh: RefreshToken, *, audit: AuditEntry) -> Awaitable[None]:
        """Use up the session's invite and open the session. Refused for all but the first who ask."""
        ...

    def agent_session(self, session_id: SessionId) -> AgentSession | None: ...

    def agent_session_by_family(self, family_id: FamilyId) -> AgentSession | None: ...

    def agent_sessions(self, *, agent_id: str | None = None, limit: int = 256) -> list[AgentSession]:
        """The latest sessions of one agent, or of all; the newest first."""
        ...

    def refresh_token(self, token_hash: bytes) -> RefreshToken | None: ...

    def rotate_refresh_token(
        self,
        token_hash: bytes,
        successor: RefreshToken,
        *,
        at_ms: int,
        grace_ms: int,
        audit: AuditEntry,
        reuse_audit: AuditEntry,
    ) -> Awaitable[bool]:
        """Spend a refresh token for its successor. False if it was spent before: its session has ended by that.

        Within `grace_ms` after it was spent it can be spent again, as long as nobody used what it was spent for, which
        is void then: the answer may have been lost. Refused with `conflict`, and nothing changes, if it was spent for
        this very successor and that was not used yet.
        """
        ...

    def end_agent_sessions(
        self,
        session_ids: tuple[SessionId, ...],
        *,
        at_ms: int,
        by: str,
        audit: tuple[AuditEntry, ...],
        withdraw_invites_of: str | None = None,
    ) -> Awaitable[None]:
        """End sessions, and take back the open invites of an agent. What has ended before stays as it is."""
        ...

    def token_keys(self) -> list[TokenKey]:
        """By number. The last one signs."""
        ...

    def add_token_key(self, *, at_ms: int, drop_others: bool, audit: AuditEntry) -> Awaitable[TokenKey]:
        """Begin a new key and retire the one before; with `drop_others` nothing that it signed is good any more."""
        ...

    def audit_of(
        self,
        *,
        session_id: str | None = None,
        corr_id: str | None = None,
        after_id: int = 0,
        limit: int = 256,
    ) -> list[AuditEntry]:
        """All that was recorded within a session or a conversation, in its order (OBS-10)."""
        ...
