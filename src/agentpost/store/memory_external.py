"""What the store in memory knows of agents outside the mesh."""

from msgspec.structs import replace

from agentpost.protocol.ids import FamilyId, InviteId, SessionId
from agentpost.store.external_rules import (
    Turn,
    check_new_agent_invite,
    check_new_refresh_token,
    check_usable,
    turn_of,
)
from agentpost.store.external_values import AgentInvite, AgentSession, RefreshToken, TokenKey
from agentpost.store.memory_notes import MemoryNotes
from agentpost.store.values import AuditEntry

__all__ = ["MemoryExternal"]


class MemoryExternal(MemoryNotes):
    """A part of `MemoryStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._agent_invites: dict[InviteId, AgentInvite] = {}
        self._agent_sessions: dict[SessionId, AgentSession] = {}
        self._refresh_tokens: dict[bytes, RefreshToken] = {}
        self._token_keys: list[TokenKey] = []

    async def create_agent_invite(self, invite: AgentInvite, *, audit: AuditEntry) -> None:
        check_new_agent_invite(self.agent_invite(invite.invite_id) or self.agent_invite_by_hash(invite.token_hash))
        self._agent_invites[invite.invite_id] = invite
        await self.record_audit([audit])

    def agent_invite_by_hash(self, token_hash: bytes) -> AgentInvite | None:
        self._check_open()
        return next((each for each in self._agent_invites.values() if each.token_hash == token_hash), None)

    def agent_invite(self, invite_id: InviteId) -> AgentInvite | None:
        self._check_open()
        return self._agent_invites.get(invite_id)

    async def open_agent_session(self, session: AgentSession, refresh: RefreshToken, *, audit: AuditEntry) -> None:
        at_ms = session.created_at_ms
        live = [each for each in self.agent_sessions(agent_id=session.agent_id, limit=1 << 30) if each.is_live(at_ms)]
        invite = check_usable(self.agent_invite(session.invite_id), session, live_sessions=len(live))
        check_new_refresh_token(self.refresh_token(refresh.token_hash), field="refreshToken")
        used = replace(invite, consumed_at_ms=at_ms, session_id=session.session_id)
        self._agent_invites[invite.invite_id] = used
        self._agent_sessions[session.session_id] = session
        self._forget_refresh_tokens(at_ms)
        self._refresh_tokens[refresh.token_hash] = refresh
        await self.record_audit([audit])

    def agent_session(self, session_id: SessionId) -> AgentSession | None:
        self._check_open()
        return self._agent_sessions.get(session_id)

    def agent_session_by_family(self, family_id: FamilyId) -> AgentSession | None:
        self._check_open()
        return next((each for each in self._agent_sessions.values() if each.family_id == family_id), None)

    def agent_sessions(self, *, agent_id: str | None = None, limit: int = 256) -> list[AgentSession]:
        self._check_open()
        newest_first = sorted(self._agent_sessions.values(), key=lambda each: each.session_id, reverse=True)
        return [each for each in newest_first if agent_id in (None, each.agent_id)][:limit]

    def refresh_token(self, token_hash: bytes) -> RefreshToken | None:
        self._check_open()
        return self._refresh_tokens.get(token_hash)

    async def rotate_refresh_token(
        self,
        token_hash: bytes,
        successor: RefreshToken,
        *,
        at_ms: int,
        grace_ms: int,
        audit: AuditEntry,
        reuse_audit: AuditEntry,
    ) -> bool:
        token = self.refresh_token(token_hash)
        last = None if token is None or token.successor_hash is None else self.refresh_token(token.successor_hash)
        session = None if token is None else self.agent_session(token.session_id)
        turn = turn_of(token, last, session, wanted_hash=successor.token_hash, at_ms=at_ms, grace_ms=grace_ms)
        if turn is Turn.REUSE:
            await self.end_agent_sessions(
                (successor.session_id,), at_ms=at_ms, by=Turn.REUSE.value, audit=(reuse_audit,)
            )
            return False
        check_new_refresh_token(self.refresh_token(successor.token_hash))
        if token is not None and session is not None:
            if turn is Turn.REPLACE and last is not None:
                self._refresh_tokens[last.token_hash] = replace(last, spent_at_ms=at_ms, successor_hash=None)
            spent_at_ms = at_ms if token.spent_at_ms is None else token.spent_at_ms
            spent = replace(token, spent_at_ms=spent_at_ms, successor_hash=successor.token_hash)
            self._refresh_tokens[token_hash] = spent
            self._refresh_tokens[successor.token_hash] = successor
            self._agent_sessions[session.session_id] = replace(
                session, refreshed_at_ms=at_ms, expires_at_ms=successor.expires_at_ms
            )
        self._forget_refresh_tokens(at_ms)
        await self.record_audit([audit])
        return True

    async def end_agent_sessions(
        self,
        session_ids: tuple[SessionId, ...],
        *,
        at_ms: int,
        by: str,
        audit: tuple[AuditEntry, ...],
        withdraw_invites_of: str | None = None,
    ) -> None:
        for session_id in session_ids:
            session = self.agent_session(session_id)
            if session is not None and session.ended_at_ms is None:
                self._agent_sessions[session_id] = replace(session, ended_at_ms=at_ms, ended_by=by)
        for invite in tuple(self._agent_invites.values()):
            is_open = invite.consumed_at_ms is None and invite.withdrawn_at_ms is None
            if is_open and invite.agent_id == withdraw_invites_of:
                self._agent_invites[invite.invite_id] = replace(invite, withdrawn_at_ms=at_ms)
        await self.record_audit(audit)

    def token_keys(self) -> list[TokenKey]:
        self._check_open()
        return list(self._token_keys)

    async def add_token_key(self, *, at_ms: int, drop_others: bool, audit: AuditEntry) -> TokenKey:
        known = self.token_keys()
        added = TokenKey(number=known[-1].number + 1 if known else 1, made_at_ms=at_ms)
        retired = [replace(key, retired_at_ms=at_ms) if key.retired_at_ms is None else key for key in known]
        self._token_keys = [*([] if drop_others else retired), added]
        await self.record_audit([audit])
        return added

    def audit_of(
        self, *, session_id: str | None = None, corr_id: str | None = None, after_id: int = 0, limit: int = 256
    ) -> list[AuditEntry]:
        found = self.audit_log(after_id=after_id, limit=1 << 30)
        if session_id is None:
            return [entry for entry in found if entry.corr_id == corr_id][:limit]
        of_session = [entry for entry in found if entry.session_id == session_id]
        return [entry for entry in of_session if corr_id in (None, entry.corr_id)][:limit]

    def _forget_refresh_tokens(self, now_ms: int) -> None:
        kept = {key: token for key, token in self._refresh_tokens.items() if token.expires_at_ms > now_ms}
        self._refresh_tokens = kept

    def _prune_external(self, before_ms: int, limit: int) -> int:
        invites = [
            each.invite_id
            for each in self._agent_invites.values()
            if (each.consumed_at_ms or each.withdrawn_at_ms or each.expires_at_ms) < before_ms
        ][:limit]
        sessions = [
            each.session_id
            for each in self._agent_sessions.values()
            if (each.ended_at_ms or each.expires_at_ms) < before_ms
        ][:limit]
        tokens = [each.token_hash for each in self._refresh_tokens.values() if each.session_id in sessions]
        for invite_id in invites:
            del self._agent_invites[invite_id]
        for session_id in sessions:
            del self._agent_sessions[session_id]
        for token_hash in tokens:
            del self._refresh_tokens[token_hash]
        return len(invites) + len(sessions) + len(tokens)
