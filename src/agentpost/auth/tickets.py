"""Tickets: a JWT that opens one connection, soon, for one node (AUTH-4). Made and read by the same gateway.

One algorithm, one key, one type: nothing that a ticket says about itself decides how it is checked. Whether it was
used before, and whether its node is still welcome, is `redemption`'s business.
"""

from functools import lru_cache
from hashlib import sha256
from typing import Final

import jwt
import msgspec

from agentpost.auth.jose import header_of, signed_claims
from agentpost.auth.signing import in_time, to_text
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import InviteId, SessionId
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.identity import Identity
from agentpost.world import Chance, Clock

__all__ = ["AUDIENCE", "DEFAULT_LIFE_SECONDS", "Claims", "Tickets"]

AUDIENCE: Final = "ansible-yjs"
DEFAULT_LIFE_SECONDS: Final = 45
_LIFE_SECONDS: Final = range(30, 61)
_TYPE: Final = "ansible-ticket+jwt"
_ALGORITHM: Final = "EdDSA"
_ID_BYTES: Final = 16
_REMEMBERED_TICKETS: Final = 64


class Claims(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a ticket says. The keys are those to pin when it is used; `invite_id` is None for a known node."""

    iss: str
    sub: str
    aud: str
    rooms: tuple[str, ...]
    invite_id: InviteId | None
    jti: str
    iat: int
    exp: int
    session_id: SessionId
    tier: NodeTier
    signing_public: str | None
    sealing_public: str | None

    @property
    def expires_at_ms(self) -> int:
        return self.exp * 1000

    def __repr__(self) -> str:
        return f"Claims(sub={self.sub!r}, session_id={self.session_id!r})"


class Tickets:
    """Mints tickets, and reads those it minted."""

    def __init__(
        self,
        node_id: str,
        identity: Identity,
        *,
        clock: Clock,
        chance: Chance,
        life_seconds: int = DEFAULT_LIFE_SECONDS,
    ) -> None:
        if life_seconds not in _LIFE_SECONDS:
            raise Refusal(Code.INVALID_FIELD, "a ticket is good for 30 to 60 seconds", field="ticketSeconds")
        self._node_id = node_id
        self._identity = identity
        self._clock = clock
        self._chance = chance
        self._life_seconds = life_seconds
        self._header = {"alg": _ALGORITHM, "typ": _TYPE, "kid": _key_id(identity)}
        # Whoever tries one ticket again and again does not cost a signature each time. Refusals are not remembered.
        self._signed = lru_cache(maxsize=_REMEMBERED_TICKETS)(self._check_signed)

    def mint(
        self,
        *,
        node_id: str,
        tier: NodeTier,
        rooms: tuple[str, ...],
        invite_id: InviteId | None,
        session_id: SessionId,
        signing_public: str | None,
        sealing_public: str | None,
    ) -> tuple[str, Claims]:
        """A new ticket, and what it says."""
        now_seconds = self._clock.now_ms() // 1000
        claims = Claims(
            iss=self._node_id,
            sub=node_id,
            aud=AUDIENCE,
            rooms=rooms,
            invite_id=invite_id,
            jti=to_text(self._chance.entropy(_ID_BYTES)),
            iat=now_seconds,
            exp=now_seconds + self._life_seconds,
            session_id=session_id,
            tier=tier,
            signing_public=signing_public,
            sealing_public=sealing_public,
        )
        ticket = jwt.encode(
            msgspec.to_builtins(claims), self._identity.signing, algorithm=_ALGORITHM, headers=self._header
        )
        return ticket, claims

    def read(self, ticket: str) -> Claims:
        """What the ticket says, once it is clear that this gateway said it and that it is still good."""
        claims = self._signed(ticket)
        now_ms = self._clock.now_ms()
        if not in_time(now_ms, from_ms=claims.iat * 1000, until_ms=claims.expires_at_ms):
            raise Refusal(Code.EXPIRED_TICKET, "this ticket has expired")
        if claims.aud != AUDIENCE:
            raise _invalid("this ticket is for another audience")
        if claims.iss != self._node_id:
            raise _invalid("this ticket was issued by another gateway")
        return claims

    def _check_signed(self, ticket: str) -> Claims:
        # Unknown header fields are refused too: `jwk`, `jku`, `x5u` and `crit` would bring keys or rules of their own.
        if header_of(ticket) != self._header:
            raise _invalid("this is not a ticket of this gateway")
        said = signed_claims(ticket, self._identity.signing.public_key(), algorithm=_ALGORITHM)
        try:
            return msgspec.convert(said, Claims)
        except msgspec.ValidationError:
            raise _invalid("this ticket was not made by this gateway, or was altered") from None


def _key_id(identity: Identity) -> str:
    return to_text(sha256(identity.signing_public.encode("ascii")).digest()[:12])


def _invalid(message: str) -> Refusal:
    return Refusal(Code.INVALID_TICKET, message)
