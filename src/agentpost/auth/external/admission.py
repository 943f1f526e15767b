"""A token and a proof for one call. The checks, in their order:

the token is ours and in time; its session lives and has the token's key; the proof holds, for this request, by that
key; the origin is allowed; the jti is new; the operation is one, and its scope was granted; the context is the token's
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.auth.external.audit import Attempt
from agentpost.auth.external.exchange import check_origin, use_once
from agentpost.auth.external.nonces import ServerNonces
from agentpost.auth.external.proofs import Expected, Flaw, check_proof, read_proof
from agentpost.auth.external.refusals import Unproven, unproven
from agentpost.auth.external.scopes import require_scope
from agentpost.auth.external.tokens import Claims, Tokens
from agentpost.auth.external.wire import Call
from agentpost.auth.guard import ReplayGuard
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, parse_id
from agentpost.store.external_values import AgentSession
from agentpost.store.interface import Store
from agentpost.world import Clock

__all__ = ["Admission", "Admitted", "ForeignKey"]

_SCHEME: Final = "dpop"


class Admitted(Struct, frozen=True, kw_only=True):
    """Who may do this one thing now. `context` is the conversation that it must not leave, if there is one."""

    session: AgentSession
    claims: Claims
    jti: str
    attempt: Attempt
    context: CorrId | None = None

    @property
    def scopes(self) -> frozenset[str]:
        """What both the token and the session have."""
        return frozenset(self.claims.scopes) & frozenset(self.session.scopes)


class ForeignKey(Unproven):
    """A good token came with a good proof by another key: somebody has a token that is not his."""

    def __init__(self, session: AgentSession) -> None:
        flaw = Flaw("the proof is not by the key that this token is bound to")
        refusal = unproven(Code.INVALID_ACCESS_TOKEN, flaw)
        super().__init__(refusal.code, refusal.message, error=refusal.error, hint=refusal.hint)
        self.session = session


class Admission:
    def __init__(self, store: Store, *, clock: Clock, tokens: Tokens, guard: ReplayGuard, nonces: ServerNonces) -> None:
        self._store = store
        self._clock = clock
        self._tokens = tokens
        self._guard = guard
        self._nonces = nonces

    def authenticate(self, call: Call, attempt: Attempt) -> Admitted:
        """Who calls, whatever it is that he wants."""
        token = _token(call.authorization)
        claims = self._tokens.read(token)
        attempt.agent_id, attempt.session_id = claims.sub, claims.session_id
        session = self._live_session(claims)
        jti = self._prove(call, token, session)
        attempt.is_proven = True
        check_origin(call.origin, session.origins)
        return Admitted(session=session, claims=claims, jti=jti, attempt=attempt)

    async def use_up(self, admitted: Admitted) -> None:
        """Let the proof of this call be good for no other."""
        await use_once(self._guard, admitted.session.key_thumbprint, admitted.jti, now_ms=self._clock.now_ms())

    def permit(self, admitted: Admitted, *, context_id: str | None) -> Admitted:
        """The call, if its operation is allowed, within the context that it or its token names."""
        claims, attempt = admitted.claims, admitted.attempt
        attempt.scope = require_scope(attempt.operation, admitted.scopes)
        if claims.context_id is not None and context_id not in (None, claims.context_id):
            raise Refusal(Code.SCOPE_DENIED, "this token is for another context", field="contextId")
        within = claims.context_id or context_id
        attempt.corr_id = context = None if within is None else parse_id(CorrId, within, field="contextId")
        return replace(admitted, context=context)

    def expect_live(self, session: AgentSession) -> None:
        """Refuse a session that has ended since it was looked up."""
        present = self._store.agent_session(session.session_id)
        if present is None or not present.is_live(self._clock.now_ms()):
            raise _ended()

    def _live_session(self, claims: Claims) -> AgentSession:
        session = self._store.agent_session(claims.session_id)
        if session is None or not session.is_live(self._clock.now_ms()) or session.agent_id != claims.sub:
            raise _ended()
        if session.key_thumbprint != claims.cnf.jkt:
            raise Unproven(Code.INVALID_ACCESS_TOKEN, "the session has another key", error="invalid_token")
        return session

    def _prove(self, call: Call, token: str, session: AgentSession) -> str:
        """The `jti` of the proof, if it holds."""
        now_ms = self._clock.now_ms()
        expected = Expected(
            method=call.method,
            urls=call.urls,
            token=token,
            body=call.body,
            is_nonce=lambda nonce: self._nonces.is_good(nonce, now_ms=now_ms),
        )
        try:
            if call.proof is None:
                raise Flaw("the request must have one DPoP header, with a proof of the key that the token is bound to")
            proof = read_proof(call.proof)
            if proof.key.thumbprint != session.key_thumbprint:
                raise ForeignKey(session)
            check_proof(proof, expected, now_ms=now_ms)
            return proof.claims.jti
        except Flaw as flaw:
            raise unproven(Code.INVALID_ACCESS_TOKEN, flaw) from None


def _ended() -> Unproven:
    return Unproven(
        Code.INVALID_ACCESS_TOKEN,
        "the session of this token has ended",
        error="invalid_token",
        hint="Ask the operator for a new agent invite.",
    )


def _token(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != _SCHEME or not token.strip():
        raise Unproven(
            Code.INVALID_ACCESS_TOKEN,
            "no access token came with the request",
            error="invalid_token",
            hint="Send it as `Authorization: DPoP …`, with a proof in the header DPoP; never in the URL.",
        )
    return token.strip()
