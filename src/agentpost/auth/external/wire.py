"""Requests and answers of agents outside the mesh, as they travel. None shows its secrets when it is printed."""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from agentpost.auth.external.lifetimes import DEFAULT_CONTEXT_SECONDS, DEFAULT_INVITE_SECONDS
from agentpost.auth.signing import TOKEN_PREFIX
from agentpost.auth.wire import Discreet
from agentpost.protocol.ids import FamilyId, InviteId, SessionId
from agentpost.protocol.timestamps import format_ms
from agentpost.store.external_values import AgentSession

__all__ = [
    "REFRESH_PREFIX",
    "AgentInviteRequest",
    "Call",
    "Constraints",
    "ContextGrant",
    "ContextRequest",
    "ExchangeRequest",
    "InvokeRequest",
    "NewAgentInvite",
    "RefreshRequest",
    "RevokeRequest",
    "SessionGrant",
    "SessionView",
    "session_view",
]

REFRESH_PREFIX: Final = f"{TOKEN_PREFIX}refresh_"

# Generous limits, checked while decoding: what is longer is no mistake.
Text = Annotated[str, Meta(max_length=256)]
Token = Annotated[str, Meta(max_length=4096)]
Words = Annotated[tuple[Text, ...], Meta(max_length=32)]


class Call(Discreet, frozen=True, kw_only=True):
    """A request as the edge got it. `urls` are the ways in which it can be reached, as `proofs.url_key` has them."""

    secret = frozenset({"authorization", "proof", "body"})

    method: str
    urls: frozenset[str]
    address: str
    origin: str | None = None
    # None where the request had none, or more than one.
    authorization: str | None = None
    proof: str | None = None
    body: bytes = b""


class Constraints(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Origins (as https://app.example) from which pages may call; how many sessions the agent may have at once."""

    origins: Words = ()
    max_sessions: Annotated[int, Meta(ge=1, le=1000)] | None = None


class AgentInviteRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    agent_id: Text
    scopes: Words
    ttl_seconds: int = DEFAULT_INVITE_SECONDS
    constraints: Constraints = Constraints()


class NewAgentInvite(Discreet, frozen=True, kw_only=True):
    """An invite at the one moment when its token is known."""

    secret = frozenset({"invite_token"})

    invite_token: str
    invite_id: InviteId
    agent_id: str
    scopes: tuple[str, ...]
    expires_at: str


ChosenToken = Annotated[str, Meta(pattern=f"^{REFRESH_PREFIX}[A-Za-z0-9_-]{{43}}$")]


class ExchangeRequest(Discreet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`client_pub_key` is a public JWK, `client_proof` a proof with it whose `jti` is the `nonce`.

    A client that may die before it has written the answer down chooses its refresh token itself, and writes that down
    first: 32 random bytes. The `bh` of its proof is of that token.
    """

    secret = frozenset({"invite_token", "nonce", "client_proof", "refresh_token"})

    invite_token: Text
    agent_id: Text
    nonce: Text
    client_pub_key: dict[str, Any]
    client_proof: Token
    refresh_token: ChosenToken | None = None


class RefreshRequest(Discreet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`proof` is made with the key of the session; its `jti` is the `nonce`.

    A client that may die before it has written the answer down chooses the next token itself, and writes that down
    first: 32 random bytes. The `bh` of its proof is of that token.
    """

    secret = frozenset({"refresh_token", "nonce", "proof", "next_refresh_token"})

    refresh_token: Text
    nonce: Text
    proof: Token
    next_refresh_token: ChosenToken | None = None


class SessionGrant(Discreet, frozen=True, kw_only=True):
    """What a client needs for its calls. Each refresh token is good for one refresh."""

    secret = frozenset({"access_token", "refresh_token"})

    access_token: str
    access_expires_at: str
    refresh_token: str
    refresh_expires_at: str
    session_id: SessionId
    family_id: FamilyId
    granted_scopes: tuple[str, ...]
    token_type: str = "DPoP"  # noqa: S105 - the kind of a token is none


class InvokeRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One operation. With `context_id`, a conversation, it touches nothing outside of that."""

    operation: Text
    args: dict[str, Any] = {}
    context_id: Text | None = None


class ContextRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    context_id: Text
    scopes: Words
    ttl_seconds: int = DEFAULT_CONTEXT_SECONDS


class ContextGrant(Discreet, frozen=True, kw_only=True):
    secret = frozenset({"context_token"})

    context_token: str
    expires_at: str
    context_id: str
    granted_scopes: tuple[str, ...]


class RevokeRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One of the three says what ends. An agent that names nothing ends the session it calls with."""

    session_id: Text | None = None
    agent_id: Text | None = None
    family_id: Text | None = None


class SessionView(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A session as an operator sees it: no token, and no hash of one."""

    session_id: SessionId
    family_id: FamilyId
    agent_id: str
    scopes: tuple[str, ...]
    origins: tuple[str, ...] = ()
    key_thumbprint: str
    created_at: str
    refreshed_at: str
    expires_at: str
    state: str
    ended_at: str | None = None
    ended_by: str | None = None


def session_view(session: AgentSession, *, now_ms: int) -> SessionView:
    state = "live" if session.is_live(now_ms) else "revoked" if session.ended_at_ms is not None else "expired"
    return SessionView(
        session_id=session.session_id,
        family_id=session.family_id,
        agent_id=session.agent_id,
        scopes=session.scopes,
        origins=session.origins,
        key_thumbprint=session.key_thumbprint,
        created_at=format_ms(session.created_at_ms),
        refreshed_at=format_ms(session.refreshed_at_ms),
        expires_at=format_ms(session.expires_at_ms),
        state=state,
        ended_at=None if session.ended_at_ms is None else format_ms(session.ended_at_ms),
        ended_by=session.ended_by,
    )
