"""Signed JSON tokens (JWS, compact form) as strangers send them: a header and claims, or nothing. Never an exception.

The caller says which key and which algorithm; nothing that a token says of itself decides how it is checked.
"""

from typing import Any, Final

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from agentpost.auth.signing import from_text

__all__ = ["header_of", "signed_claims"]

_MOST_CHARACTERS: Final = 4096
# The signature is PyJWT's to check; times, audience and issuer are the caller's, by its clock and in its order.
_SIGNATURE_ONLY: Final[Any] = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


def header_of(token: str) -> dict[str, Any]:
    """The header, as yet believed by nobody; empty if there is none."""
    raw = from_text(token.partition(".")[0]) if len(token) <= _MOST_CHARACTERS else None
    try:
        return {} if raw is None else msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def signed_claims(
    token: str, public: Ed25519PublicKey | EllipticCurvePublicKey, *, algorithm: str
) -> dict[str, Any] | None:
    """What the holder of the key said with this token; None if he did not."""
    try:
        return jwt.decode(token, public, algorithms=[algorithm], options=_SIGNATURE_ONLY)
    except (jwt.PyJWTError, ValueError, RecursionError):
        # The reason may quote the token, so it is dropped.
        return None
