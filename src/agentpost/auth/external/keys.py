"""The key of a client, as it stands in its proofs: a public JWK for EdDSA or ES256, and nothing else. Pure.

The form of the key decides the algorithm. What a token says of its own algorithm has to agree, and decides nothing.
"""

from hashlib import sha256
from typing import Any, Final, cast

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey, EllipticCurvePublicNumbers
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct
from msgspec.json import encode

from agentpost.auth.signing import from_text, to_text

__all__ = ["ALGORITHMS", "ClientKey", "client_key"]

ALGORITHMS: Final = ("EdDSA", "ES256")
_BYTES: Final = 32


class ClientKey(Struct, frozen=True, kw_only=True):
    """`thumbprint` is that of RFC 7638; it stands for the key everywhere else."""

    public: Ed25519PublicKey | EllipticCurvePublicKey
    algorithm: str
    thumbprint: str


def client_key(jwk: object) -> ClientKey | None:
    """The key, or None for what is no public key of either kind. More members than it needs are refused.

    A private part (`d`) that somebody sent along would be one of those.
    """
    if not isinstance(jwk, dict):
        return None
    members = cast(dict[str, Any], jwk)
    kind = (members.get("kty"), members.get("crv"))
    if kind == ("OKP", "Ed25519") and members.keys() == {"kty", "crv", "x"}:
        public, algorithm = _ed25519(members["x"]), "EdDSA"
    elif kind == ("EC", "P-256") and members.keys() == {"kty", "crv", "x", "y"}:
        public, algorithm = _p256(members["x"], members["y"]), "ES256"
    else:
        return None
    if public is None:
        return None
    thumbprint = to_text(sha256(encode(members, order="sorted")).digest())
    return ClientKey(public=public, algorithm=algorithm, thumbprint=thumbprint)


def _ed25519(x: object) -> Ed25519PublicKey | None:
    raw = _coordinate(x)
    return None if raw is None else Ed25519PublicKey.from_public_bytes(raw)


def _p256(x: object, y: object) -> EllipticCurvePublicKey | None:
    raw_x, raw_y = _coordinate(x), _coordinate(y)
    if raw_x is None or raw_y is None:
        return None
    numbers = EllipticCurvePublicNumbers(int.from_bytes(raw_x), int.from_bytes(raw_y), SECP256R1())
    try:
        return numbers.public_key()
    except ValueError:
        # The point is not on the curve.
        return None


def _coordinate(text: object) -> bytes | None:
    raw = from_text(text) if isinstance(text, str) else None
    return raw if raw is not None and len(raw) == _BYTES else None
