"""Agents outside the mesh, as the edges call it: every step rate-limited and written to the audit log.

A step that cannot be written down does not happen: the caller gets the store's refusal instead.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from agentpost.auth.external import audit
from agentpost.auth.external.admission import Admission, Admitted, ForeignKey
from agentpost.auth.external.audit import Attempt
from agentpost.auth.external.exchange import Reused, SessionDesk
from agentpost.auth.external.lifetimes import CONTEXT_SECONDS, INVITE_SECONDS, Lifetimes, checked_seconds
from agentpost.auth.external.nonces import ServerNonces
from agentpost.auth.external.open_calls import OpenCalls
from agentpost.auth.external.proofs import USE_NONCE
from agentpost.auth.external.refusals import Unproven
from agentpost.auth.external.ring import KeyRing, SigningKey, derived_secret
from agentpost.auth.external.scopes import check_scopes
from agentpost.auth.external.tokens import Tokens
from agentpost.auth.external.wire import (
    AgentInviteRequest,
    Call,
    ContextGrant,
    ContextRequest,
    ExchangeRequest,
    NewAgentInvite,
    RefreshRequest,
    RevokeRequest,
    SessionGrant,
    SessionView,
    session_view,
)
from agentpost.auth.guard import ReplayGuard
from agentpost.auth.invites import hash_token
from agentpost.auth.limits import Limits, Rate, RateLimited, address_key, token_key
from agentpost.auth.signing import TOKEN_PREFIX, to_text
from agentpost.protocol.errors import MEANINGS, Code, Refusal
from agentpost.protocol.ids import CorrId, FamilyId, InviteId, SessionId, parse_id
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.timestamps import format_ms
from agentpost.store.external_values import AgentInvite, AgentSession
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry, Incident
from agentpost.world import Chance, Clock, IdMaker

__all__ = ["ExternalAgents"]

INVITE_PREFIX: Final = f"{TOKEN_PREFIX}invite_"
_OPERATOR: Final = "operator"
_TOKEN_BYTES: Final = 32
_MOST_SESSIONS: Final = 10_000


class ExternalAgents:
    """One per gateway. `limits` are for those who prove nothing, or not yet."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        clock: Clock,
        chance: Chance,
        *,
        limits: Limits | None = None,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._ids = IdMaker(clock, chance)
        self._limits = Limits(clock) if limits is None else limits
        self._session_limits = Limits(clock, per_token=_PER_SESSION)
        self._nonces = ServerNonces(derived_secret(identity, f"agentpost server nonces 1 {store.epoch}"))
        self._ring = KeyRing(store, identity, clock=clock)
        self._tokens = Tokens(store.node_id, self._ring, clock=clock, chance=chance)
        guard = ReplayGuard(store)
        self._desk = SessionDesk(
            store,
            clock=clock,
            chance=chance,
            ids=self._ids,
            tokens=self._tokens,
            guard=guard,
            nonces=self._nonces,
            lifetimes=lifetimes or Lifetimes(),
        )
        self._admission = Admission(store, clock=clock, tokens=self._tokens, guard=guard, nonces=self._nonces)
        self.calls = OpenCalls()

    def nonce(self) -> str:
        """What proofs have to name now. It goes with every answer."""
        return self._nonces.current(self._clock.now_ms())

    def check_invite(self, request: AgentInviteRequest) -> tuple[str, ...]:
        """The scopes of an invite that makes sense; nothing else is made yet."""
        checked_seconds(request.ttl_seconds, INVITE_SECONDS, field="ttlSeconds")
        for origin in request.constraints.origins:
            _check_origin(origin)
        return check_scopes(request.scopes)

    async def invite(self, request: AgentInviteRequest, *, created_by: str = _OPERATOR) -> NewAgentInvite:
        """Make an invite. The token is in the answer, and nowhere else."""
        scopes = self.check_invite(request)
        token, now_ms = INVITE_PREFIX + to_text(self._chance.entropy(_TOKEN_BYTES)), self._clock.now_ms()
        invite = AgentInvite(
            invite_id=self._ids.make(InviteId),
            token_hash=hash_token(token),
            agent_id=request.agent_id,
            scopes=scopes,
            origins=request.constraints.origins,
            max_sessions=request.constraints.max_sessions,
            created_by=created_by,
            created_at_ms=now_ms,
            expires_at_ms=now_ms + request.ttl_seconds * 1000,
        )
        await self._store.create_agent_invite(invite, audit=audit.invited(invite, at_ms=now_ms))
        return NewAgentInvite(
            invite_token=token,
            invite_id=invite.invite_id,
            agent_id=invite.agent_id,
            scopes=scopes,
            expires_at=format_ms(invite.expires_at_ms),
        )

    async def exchange(self, request: ExchangeRequest, call: Call) -> SessionGrant:
        """A session for an invite."""
        keys = [address_key(call.address, "agent-exchange"), token_key(hash_token(request.invite_token))]
        attempt = Attempt(operation="exchange", address=call.address, agent_id=request.agent_id)
        try:
            self._limits.attempt(keys)
            return await self._desk.exchange(request, call, attempt)
        except Refusal as refusal:
            await self._refused(refusal, attempt, self._limits, keys)
            raise

    async def refresh(self, request: RefreshRequest, call: Call) -> SessionGrant:
        """The next tokens of a session."""
        keys = [address_key(call.address, "agent-refresh"), token_key(hash_token(request.refresh_token))]
        attempt = Attempt(operation="refresh", address=call.address)
        try:
            self._limits.attempt(keys)
            return await self._desk.refresh(request, call, attempt)
        except Refusal as refusal:
            if isinstance(refusal, Reused):
                self.calls.end((refusal.session.session_id,))
                await self._raise_incident(refusal.session, "a refresh token was used twice")
            await self._refused(refusal, attempt, self._limits, keys)
            raise

    async def admit(self, call: Call, *, operation: str, context_id: str | None = None) -> Admitted:
        """Who calls, if he may do this now. The use is in the audit log once this returns."""
        known = await self.recognise(call, operation=operation)
        return await self.allow(known, operation=operation, context_id=context_id)

    async def recognise(self, call: Call, *, operation: str) -> Admitted:
        """Who calls, whatever it is that he wants. What he may do is still to be asked: `allow`."""
        attempt = Attempt(operation=operation, address=call.address)
        try:
            return await self._authenticate(call, attempt)
        except Refusal as refusal:
            await self._call_refused(refusal, attempt, call)
            raise

    async def allow(self, known: Admitted, *, operation: str, context_id: str | None = None) -> Admitted:
        """The same, if this operation is one of his. The use is in the audit log once this returns."""
        attempt = replace(known.attempt, operation=operation)
        try:
            admitted = self._admission.permit(replace(known, attempt=attempt), context_id=context_id)
        except Refusal as refusal:
            await self._refused(refusal, attempt, self._limits, [])
            raise
        await self._record(audit.invoked(attempt, at_ms=self._clock.now_ms()))
        return admitted

    @contextmanager
    def within(self, session: AgentSession) -> Generator[asyncio.Event]:
        """An event that is set when the session ends, for a call that was admitted. Refused if it has ended since."""
        with self.calls.within(session.session_id) as ended:
            # While the call was written down, a revocation found nothing here to cut.
            self._admission.expect_live(session)
            yield ended

    async def answered(self, admitted: Admitted, *, refusal: Refusal | None = None, corr_id: str | None = None) -> None:
        """What became of a call that was admitted goes into the audit log, too."""
        at_ms = self._clock.now_ms()
        await self._record(audit.answered(admitted.attempt, refusal=refusal, corr_id=corr_id, at_ms=at_ms))

    async def context_token(self, request: ContextRequest, call: Call) -> ContextGrant:
        """A token for one conversation, with some of the scopes, for a few minutes (EXT-6)."""
        attempt = Attempt(operation="context-token", address=call.address)
        try:
            admitted = _with_own_token(await self._authenticate(call, attempt))
            attempt.scope = " ".join(scope for scope in request.scopes if scope in admitted.claims.scopes)
            scopes = check_scopes(request.scopes, within=admitted.scopes)
            attempt.corr_id = context = parse_id(CorrId, request.context_id, field="contextId")
            life_seconds = checked_seconds(request.ttl_seconds, CONTEXT_SECONDS, field="ttlSeconds")
        except Refusal as refusal:
            await self._call_refused(refusal, attempt, call)
            raise
        await self._record(audit.invoked(attempt, at_ms=self._clock.now_ms()))
        token, claims = await self._tokens.mint(
            admitted.session, scopes=scopes, life_seconds=life_seconds, context_id=context
        )
        return ContextGrant(
            context_token=token,
            expires_at=format_ms(claims.expires_at_ms),
            context_id=context,
            granted_scopes=scopes,
        )

    async def revoke_own(self, request: RevokeRequest, call: Call) -> tuple[SessionId, ...]:
        """End the session that calls, or others of the same agent."""
        attempt = Attempt(operation="revoke", address=call.address)
        try:
            own = _with_own_token(await self._authenticate(call, attempt)).session
            is_silent = (request.session_id, request.agent_id, request.family_id) == (None, None, None)
            chosen = RevokeRequest(session_id=own.session_id) if is_silent else request
            found = self._chosen(chosen)
            if any(session.agent_id != own.agent_id for session in found) or chosen.agent_id not in (
                None,
                own.agent_id,
            ):
                raise Refusal(Code.SCOPE_DENIED, "an agent ends its own sessions only")
        except Refusal as refusal:
            await self._call_refused(refusal, attempt, call)
            raise
        return await self._end(found, by=own.agent_id, agent_id=chosen.agent_id)

    async def revoke(self, request: RevokeRequest, *, by: str = _OPERATOR) -> tuple[SessionId, ...]:
        """End a session, a family, or all that an agent has, its open invites included. Gives what ended."""
        found = self._chosen(request)
        if not found and request.agent_id is None:
            raise Refusal(Code.NOT_FOUND, "there is no such session", hint="`agentpost agent sessions` lists them.")
        return await self._end(found, by=by, agent_id=request.agent_id)

    async def rotate_key(self, *, drop_others: bool, by: str = _OPERATOR) -> SigningKey:
        """Sign with a new key; with `drop_others` every access token that is out there is void."""
        return await self._ring.rotate(by=by, drop_others=drop_others)

    def sessions(self, *, agent_id: str | None = None, limit: int = 256) -> list[SessionView]:
        now_ms = self._clock.now_ms()
        return [
            session_view(each, now_ms=now_ms) for each in self._store.agent_sessions(agent_id=agent_id, limit=limit)
        ]

    async def _authenticate(self, call: Call, attempt: Attempt) -> Admitted:
        admitted = self._admission.authenticate(call, attempt)
        self._session_limits.attempt([_session_key(admitted.session)])
        await self._admission.use_up(admitted)
        return admitted

    def _chosen(self, request: RevokeRequest) -> tuple[AgentSession, ...]:
        named = [each for each in (request.session_id, request.agent_id, request.family_id) if each is not None]
        if len(named) != 1:
            raise Refusal(Code.INVALID_FIELD, "name one of sessionId, agentId and familyId")
        if request.agent_id is not None:
            return tuple(self._store.agent_sessions(agent_id=request.agent_id, limit=_MOST_SESSIONS))
        if request.session_id is not None:
            found = self._store.agent_session(SessionId(request.session_id))
        else:
            found = self._store.agent_session_by_family(FamilyId(request.family_id or ""))
        return () if found is None else (found,)

    async def _end(self, found: tuple[AgentSession, ...], *, by: str, agent_id: str | None) -> tuple[SessionId, ...]:
        at_ms = self._clock.now_ms()
        live = tuple(session for session in found if session.ended_at_ms is None)
        ended = tuple(session.session_id for session in live)
        await self._store.end_agent_sessions(
            ended,
            at_ms=at_ms,
            by=by,
            audit=tuple(audit.revoked(each, by=by, reason="revoked", at_ms=at_ms) for each in live),
            withdraw_invites_of=agent_id,
        )
        self.calls.end(ended)
        return ended

    async def _call_refused(self, refusal: Refusal, attempt: Attempt, call: Call) -> None:
        """Write a refused call down. Who proved who he is does not suffer for others at his address."""
        if isinstance(refusal, ForeignKey):
            await self._raise_incident(refusal.session, "its access token came with a proof by another key")
        keys: list[str] = []
        # To be told the nonce of the moment is a part of calling, and no failure.
        if isinstance(refusal, Unproven) and refusal.error != USE_NONCE:
            keys = [address_key(call.address, "agent-call")]
        try:
            self._limits.attempt(keys)
        except RateLimited as limited:
            await self._refused(limited, attempt, self._limits, [])
            raise limited from None
        await self._refused(refusal, attempt, self._limits, keys)

    async def _refused(self, refusal: Refusal, attempt: Attempt, limits: Limits, keys: list[str]) -> None:
        entry = audit.refused(attempt, refusal, at_ms=self._clock.now_ms())
        if isinstance(refusal, RateLimited):
            # One line for a row of them: the log is kept for ever, and this is what an attacker makes most of.
            if refusal.newly:
                await self._record(entry)
        elif MEANINGS[refusal.code].status < 500:
            limits.failed(keys)
            await self._record(entry)

    async def _raise_incident(self, session: AgentSession, what: str) -> None:
        detail: dict[str, str | int | bool | None] = {"agentId": session.agent_id, "what": what}
        incident = Incident(
            kind=IncidentKind.AGENT_TOKEN_STOLEN, subject=session.session_id, at_ms=self._clock.now_ms(), detail=detail
        )
        await self._store.raise_incident(incident)

    async def _record(self, entry: AuditEntry) -> None:
        await self._store.record_audit([entry])


# One agent at work.
_PER_SESSION: Final = Rate(burst=240, per_second=20)


def _with_own_token(admitted: Admitted) -> Admitted:
    """The call, if it came with the session's own token: one for a context makes no others, and ends nothing."""
    if admitted.claims.context_id is not None:
        raise Refusal(Code.SCOPE_DENIED, "this needs the access token of the session, not one for a context")
    return admitted


def _session_key(session: AgentSession) -> str:
    return token_key(session.session_id.encode())


def _check_origin(origin: str) -> None:
    scheme, _, host = origin.partition("://")
    if scheme not in ("http", "https") or not host or not origin.isascii() or not origin.isprintable() or " " in origin:
        raise Refusal(Code.INVALID_FIELD, f"{origin!r:.60} is not an origin", field="constraints.origins")
