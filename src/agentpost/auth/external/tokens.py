"""Access and context tokens: JWTs for one session, bound to one key (`cnf`). Made and read by the same gateway.

One algorithm, a type for each kind, keys of our own: nothing that a token says of itself decides how it is checked.
Whether the session still lives, and whether the caller has the key, is `admission`'s business.
"""

from enum import StrEnum
from typing import Final

import jwt
import msgspec

from agentpost.auth.external.refusals import Unproven
from agentpost.auth.external.ring import KeyRing
from agentpost.auth.jose import header_of, signed_claims
from agentpost.auth.signing import in_time, to_text
from agentpost.protocol.errors import Code
from agentpost.protocol.ids import SessionId
from agentpost.store.external_values import AgentSession
from agentpost.world import Chance, Clock

__all__ = ["AUDIENCE", "Claims", "Confirmation", "TokenKind", "Tokens"]

AUDIENCE: Final = "ansible-agent"
_ALGORITHM: Final = "EdDSA"
_ID_BYTES: Final = 16


class TokenKind(StrEnum):
    """The `typ` of each kind, so that none of them passes for another, nor for a ticket."""

    ACCESS = "at+jwt"
    CONTEXT = "ansible-context+jwt"


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thumbprint of the key that has to be proven with the token (RFC 9449, 6.1)."""

    jkt: str


class Claims(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    iss: str
    sub: str
    aud: str
    scope: str
    session_id: SessionId
    jti: str
    iat: int
    exp: int
    cnf: Confirmation
    context_id: str | None = None

    @property
    def scopes(self) -> tuple[str, ...]:
        return tuple(self.scope.split())

    @property
    def expires_at_ms(self) -> int:
        return self.exp * 1000


class Tokens:
    """Mints tokens, and reads those it minted."""

    def __init__(self, node_id: str, ring: KeyRing, *, clock: Clock, chance: Chance) -> None:
        self._node_id = node_id
        self._ring = ring
        self._clock = clock
        self._chance = chance

    async def mint(
        self, session: AgentSession, *, scopes: tuple[str, ...], life_seconds: int, context_id: str | None = None
    ) -> tuple[str, Claims]:
        """A token for all of the session, or for one context of it."""
        now_seconds = self._clock.now_ms() // 1000
        claims = Claims(
            iss=self._node_id,
            sub=session.agent_id,
            aud=AUDIENCE,
            scope=" ".join(scopes),
            session_id=session.session_id,
            jti=to_text(self._chance.entropy(_ID_BYTES)),
            iat=now_seconds,
            exp=now_seconds + life_seconds,
            cnf=Confirmation(jkt=session.key_thumbprint),
            context_id=context_id,
        )
        key = await self._ring.signing()
        kind = TokenKind.ACCESS if context_id is None else TokenKind.CONTEXT
        header = {"alg": _ALGORITHM, "typ": kind.value, "kid": key.kid}
        return jwt.encode(msgspec.to_builtins(claims), key.private, algorithm=_ALGORITHM, headers=header), claims

    def read(self, token: str) -> Claims:
        """What the token says, once it is clear that this gateway said it and that it is still good."""
        kind, claims = self._signed(token)
        if claims.aud != AUDIENCE or claims.iss != self._node_id:
            raise _invalid("this token is for another gateway or another purpose")
        if (kind is TokenKind.CONTEXT) is (claims.context_id is None):
            raise _invalid("this token is of another kind than it says")
        if not in_time(self._clock.now_ms(), from_ms=claims.iat * 1000, until_ms=claims.expires_at_ms):
            raise Unproven(Code.EXPIRED_ACCESS_TOKEN, "this access token has expired", error="invalid_token")
        return claims

    def _signed(self, token: str) -> tuple[TokenKind, Claims]:
        header = header_of(token)
        # Unknown members are refused, too: `jwk`, `jku`, `x5u` and `crit` would bring keys or rules of their own.
        if header.keys() != {"alg", "typ", "kid"} or header["alg"] != _ALGORITHM:
            raise _invalid("this is not an access token of this gateway")
        key = self._ring.find(header["kid"])
        if key is None:
            raise _invalid("this token was signed with a key that this gateway does not have, or not any more")
        said = signed_claims(token, key.private.public_key(), algorithm=_ALGORITHM)
        try:
            return TokenKind(header["typ"]), msgspec.convert(said, Claims)
        except ValueError:
            # Another type, no signature of ours, or claims that are not ours. (A ValidationError is a ValueError.)
            raise _invalid("this token was not made by this gateway, or was altered") from None


def _invalid(message: str) -> Unproven:
    return Unproven(Code.INVALID_ACCESS_TOKEN, message, error="invalid_token")
