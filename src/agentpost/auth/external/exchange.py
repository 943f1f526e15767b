"""An invite for a session, and a refresh token for the next one. The checks have a fixed order:

    exchange   the invite exists, is unused, has not expired, is for this agent; the nonce is new; the proof holds
    refresh    the token is one of a session that lives; the proof holds, with the session's key; the nonce is new

Then, in one transaction, the invite is used up and the session opened, or the token is spent for its successor.
A request that breaks two rules is told of the first.
"""

from hashlib import sha256
from typing import Final

from agentpost.auth.external import audit
from agentpost.auth.external.audit import Attempt
from agentpost.auth.external.keys import client_key
from agentpost.auth.external.lifetimes import Lifetimes
from agentpost.auth.external.nonces import ServerNonces
from agentpost.auth.external.proofs import WINDOW_MS, Expected, Flaw, Proof, check_proof, read_proof
from agentpost.auth.external.refusals import Unproven, unproven
from agentpost.auth.external.tokens import Tokens
from agentpost.auth.external.wire import REFRESH_PREFIX, Call, ExchangeRequest, RefreshRequest, SessionGrant
from agentpost.auth.guard import ReplayGuard
from agentpost.auth.invites import hash_token
from agentpost.auth.signing import check_nonce, in_time, to_text
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import FamilyId, SessionId
from agentpost.protocol.timestamps import format_ms
from agentpost.store.external_values import AgentInvite, AgentSession, RefreshToken
from agentpost.store.interface import Store
from agentpost.world import Chance, Clock, IdMaker

__all__ = ["PROOF_SCOPE", "SessionDesk", "check_origin", "use_once"]

# One scope for all calls: a jti that was used in an exchange is no good in an invocation (EXT-4).
PROOF_SCOPE: Final = "agent.proof"
_TOKEN_BYTES: Final = 32


class SessionDesk:
    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        chance: Chance,
        ids: IdMaker,
        tokens: Tokens,
        guard: ReplayGuard,
        nonces: ServerNonces,
        lifetimes: Lifetimes,
    ) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._ids = ids
        self._tokens = tokens
        self._guard = guard
        self._nonces = nonces
        self._lifetimes = lifetimes

    async def exchange(self, request: ExchangeRequest, call: Call, attempt: Attempt) -> SessionGrant:
        check_nonce(request.nonce)
        invite = self._invite(request)
        now_ms = self._clock.now_ms()
        key = client_key(request.client_pub_key)
        await use_once(self._guard, "-" if key is None else key.thumbprint, request.nonce, now_ms=now_ms)
        chosen = request.refresh_token
        expected = Expected(
            method=call.method,
            urls=call.urls,
            token=request.invite_token,
            body=None if chosen is None else chosen.encode(),
        )
        try:
            proof = read_proof(request.client_proof)
            if key is None or key.thumbprint != proof.key.thumbprint:
                raise Flaw("clientPubKey must be the key of the proof: a public JWK, Ed25519 or P-256")
            _check(proof, expected, nonce=request.nonce, now_ms=now_ms)
        except Flaw as flaw:
            raise unproven(Code.INVALID_INVITE, flaw, field="clientProof") from None
        attempt.is_proven = True
        check_origin(call.origin, invite.origins)
        refresh_token = chosen or self._new_refresh_token()
        refresh_until_ms = now_ms + self._lifetimes.refresh_seconds * 1000
        session = AgentSession(
            session_id=self._ids.make(SessionId),
            family_id=self._ids.make(FamilyId),
            agent_id=invite.agent_id,
            invite_id=invite.invite_id,
            scopes=invite.scopes,
            origins=invite.origins,
            key_thumbprint=proof.key.thumbprint,
            created_at_ms=now_ms,
            refreshed_at_ms=now_ms,
            expires_at_ms=refresh_until_ms,
        )
        kept = _kept(refresh_token, session.session_id, now_ms, refresh_until_ms)
        await self._store.open_agent_session(session, kept, audit=audit.exchanged(session, address=call.address))
        return await self._grant(session, refresh_token)

    async def refresh(self, request: RefreshRequest, call: Call, attempt: Attempt) -> SessionGrant:
        check_nonce(request.nonce)
        token_hash, now_ms = hash_token(request.refresh_token), self._clock.now_ms()
        session = self._session_of(token_hash, now_ms)
        attempt.session_id, attempt.agent_id = session.session_id, session.agent_id
        expected = Expected(
            method=call.method,
            urls=call.urls,
            token=request.refresh_token,
            body=None if request.next_refresh_token is None else request.next_refresh_token.encode(),
            is_nonce=lambda nonce: self._nonces.is_good(nonce, now_ms=now_ms),
        )
        try:
            proof = read_proof(request.proof)
            if proof.key.thumbprint != session.key_thumbprint:
                raise Flaw("the proof is not by the key of this session")
            _check(proof, expected, nonce=request.nonce, now_ms=now_ms)
        except Flaw as flaw:
            raise unproven(Code.INVALID_REFRESH_TOKEN, flaw, field="proof") from None
        attempt.is_proven = True
        check_origin(call.origin, session.origins)
        await use_once(self._guard, session.key_thumbprint, request.nonce, now_ms=now_ms)
        successor = request.next_refresh_token or self._new_refresh_token()
        kept = _kept(successor, session.session_id, now_ms, now_ms + self._lifetimes.refresh_seconds * 1000)
        is_rotated = await self._store.rotate_refresh_token(
            token_hash,
            kept,
            at_ms=now_ms,
            grace_ms=self._lifetimes.refresh_grace_seconds * 1000,
            audit=audit.refreshed(session, address=call.address, at_ms=now_ms),
            reuse_audit=audit.revoked(session, by="gateway", reason="refresh token used twice", at_ms=now_ms),
        )
        if not is_rotated:
            raise Reused(session)
        return await self._grant(self._session_of(kept.token_hash, now_ms), successor)

    def _invite(self, request: ExchangeRequest) -> AgentInvite:
        invite = self._store.agent_invite_by_hash(hash_token(request.invite_token))
        if invite is None or invite.withdrawn_at_ms is not None:
            raise Refusal(Code.INVALID_INVITE, "there is no such invite", field="inviteToken")
        if invite.consumed_at_ms is not None:
            raise Refusal(Code.INVITE_USED, "this invite was used already", field="inviteToken")
        if not in_time(self._clock.now_ms(), from_ms=invite.created_at_ms, until_ms=invite.expires_at_ms):
            raise Refusal(Code.EXPIRED_INVITE, "this invite has expired", field="inviteToken")
        if invite.agent_id != request.agent_id:
            raise Refusal(Code.INVALID_INVITE, "this invite is for another agent", field="agentId")
        return invite

    def _session_of(self, token_hash: bytes, now_ms: int) -> AgentSession:
        token = self._store.refresh_token(token_hash)
        session = None if token is None else self._store.agent_session(token.session_id)
        if token is None or session is None or not session.is_live(now_ms) or now_ms >= token.expires_at_ms:
            raise Unproven(
                Code.INVALID_REFRESH_TOKEN, "this refresh token is not good, or not any more", error="invalid_token"
            )
        return session

    async def _grant(self, session: AgentSession, refresh_token: str) -> SessionGrant:
        access_token, claims = await self._tokens.mint(
            session, scopes=session.scopes, life_seconds=self._lifetimes.access_seconds
        )
        return SessionGrant(
            access_token=access_token,
            access_expires_at=format_ms(claims.expires_at_ms),
            refresh_token=refresh_token,
            refresh_expires_at=format_ms(session.expires_at_ms),
            session_id=session.session_id,
            family_id=session.family_id,
            granted_scopes=session.scopes,
        )

    def _new_refresh_token(self) -> str:
        return REFRESH_PREFIX + to_text(self._chance.entropy(_TOKEN_BYTES))


class Reused(Refusal):
    """A refresh token was spent a second time. Its session has ended by that; what is open in it is to be cut."""

    def __init__(self, session: AgentSession) -> None:
        super().__init__(
            Code.INVALID_REFRESH_TOKEN,
            "this refresh token was used before, so somebody else may have it: the session has ended",
            hint="Ask the operator for a new agent invite, and find out who had the token.",
        )
        self.session = session


async def use_once(guard: ReplayGuard, thumbprint: str, jti: str, *, now_ms: int) -> None:
    """Refuse what this key has signed, or said, before; after a restart, too (EXT-4)."""
    # The hash, because neither may say anything about where the other begins.
    value = f"{thumbprint} {sha256(jti.encode()).hexdigest()}"
    if not await guard.first_use(PROOF_SCOPE, value, now_ms=now_ms, good_until_ms=now_ms + 2 * WINDOW_MS):
        raise Refusal(Code.REPLAY_DETECTED, "this nonce or jti was used already", field="nonce")


def check_origin(origin: str | None, allowed: tuple[str, ...]) -> None:
    """Refuse a page of a browser whose origin was not named in the invite. What is no page has none."""
    if origin is not None and origin not in allowed:
        raise Refusal(
            Code.SCOPE_DENIED,
            "this session is not for pages of that origin",
            hint="Ask the operator for an invite with this --origin, or call from a program.",
        )


def _check(proof: Proof, expected: Expected, *, nonce: str, now_ms: int) -> None:
    if proof.claims.jti != nonce:
        raise Flaw("the jti of the proof must be the nonce of the request")
    check_proof(proof, expected, now_ms=now_ms)


def _kept(token: str, session_id: SessionId, now_ms: int, until_ms: int) -> RefreshToken:
    return RefreshToken(
        token_hash=hash_token(token), session_id=session_id, issued_at_ms=now_ms, expires_at_ms=until_ms
    )
