"""The part of `SqliteStore` that knows agents outside the mesh. Joins only: what each call does is in `external`."""

import asyncio

from agentpost.protocol.ids import FamilyId, InviteId, SessionId
from agentpost.store import auditing, external
from agentpost.store.external_values import AgentInvite, AgentSession, RefreshToken, TokenKey
from agentpost.store.sqlite_part import SqlitePart
from agentpost.store.values import AuditEntry

__all__ = ["SqliteExternal"]


class SqliteExternal(SqlitePart):
    def create_agent_invite(self, invite: AgentInvite, *, audit: AuditEntry) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: external.create_agent_invite(tx, invite, audit))

    def agent_invite_by_hash(self, token_hash: bytes) -> AgentInvite | None:
        return external.agent_invite_by_hash(self._reader(), token_hash)

    def agent_invite(self, invite_id: InviteId) -> AgentInvite | None:
        return external.agent_invite(self._reader(), invite_id)

    def open_agent_session(
        self, session: AgentSession, refresh: RefreshToken, *, audit: AuditEntry
    ) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: external.open_agent_session(tx, session, refresh, audit))

    def agent_session(self, session_id: SessionId) -> AgentSession | None:
        return external.agent_session(self._reader(), session_id)

    def agent_session_by_family(self, family_id: FamilyId) -> AgentSession | None:
        return external.agent_session_by_family(self._reader(), family_id)

    def agent_sessions(self, *, agent_id: str | None = None, limit: int = 256) -> list[AgentSession]:
        return external.agent_sessions(self._reader(), agent_id, limit)

    def refresh_token(self, token_hash: bytes) -> RefreshToken | None:
        return external.refresh_token(self._reader(), token_hash)

    def rotate_refresh_token(
        self,
        token_hash: bytes,
        successor: RefreshToken,
        *,
        at_ms: int,
        grace_ms: int,
        audit: AuditEntry,
        reuse_audit: AuditEntry,
    ) -> "asyncio.Future[bool]":
        return self._writer.submit(
            lambda tx: external.rotate_refresh_token(
                tx, token_hash, successor, at_ms=at_ms, grace_ms=grace_ms, audit=audit, reuse_audit=reuse_audit
            )
        )

    def end_agent_sessions(
        self,
        session_ids: tuple[SessionId, ...],
        *,
        at_ms: int,
        by: str,
        audit: tuple[AuditEntry, ...],
        withdraw_invites_of: str | None = None,
    ) -> "asyncio.Future[None]":
        return self._writer.submit(
            lambda tx: external.end_agent_sessions(
                tx, session_ids, at_ms=at_ms, by=by, audit=audit, withdraw_invites_of=withdraw_invites_of
            )
        )

    def token_keys(self) -> list[TokenKey]:
        return external.token_keys(self._reader())

    def add_token_key(self, *, at_ms: int, drop_others: bool, audit: AuditEntry) -> "asyncio.Future[TokenKey]":
        return self._writer.submit(
            lambda tx: external.add_token_key(tx, at_ms=at_ms, drop_others=drop_others, audit=audit)
        )

    def audit_of(
        self, *, session_id: str | None = None, corr_id: str | None = None, after_id: int = 0, limit: int = 256
    ) -> list[AuditEntry]:
        return auditing.audit_of(self._reader(), session_id=session_id, corr_id=corr_id, after_id=after_id, limit=limit)
