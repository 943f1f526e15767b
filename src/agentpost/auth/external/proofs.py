"""Proofs of possession in the manner of RFC 9449: a JWT for one request, signed with the key that it brings. Pure.

The RFC does not cover the body; ours adds its hash as `bh`. Whether a `jti` was seen before is the replay guard's
business, and whose key it has to be is the caller's.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentpost.auth.external.keys import ClientKey, client_key
from agentpost.auth.jose import header_of, signed_claims
from agentpost.auth.signing import to_text

__all__ = ["Expected", "Flaw", "Proof", "ProofClaims", "WINDOW_MS", "body_hash", "check_proof", "read_proof", "url_key"]

# How far the clock of a client may be off. The server's nonce says more about when a proof was made.
WINDOW_MS: Final = 120_000
INVALID_PROOF: Final = "invalid_dpop_proof"
USE_NONCE: Final = "use_dpop_nonce"
_TYPE: Final = "dpop+jwt"
_HEADER: Final = {"typ", "alg", "jwk"}
_LONGEST_ID: Final = 200
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Flaw(Exception):  # noqa: N818 - it says what is wrong with what somebody else sent
    """What is wrong with a proof, and the RFC's word for it. The caller makes the refusal of its own call of it."""

    def __init__(self, message: str, error: str = INVALID_PROOF) -> None:
        super().__init__(message)
        self.message = message
        self.error = error


class ProofClaims(msgspec.Struct, frozen=True, kw_only=True):
    jti: str
    htm: str
    htu: str
    iat: int
    ath: str | None = None
    nonce: str | None = None
    bh: str | None = None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """A proof whose signature holds: somebody had the private half of `key` and said this."""

    key: ClientKey
    claims: ProofClaims


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a proof has to be made for. `urls` are the ways in which this request can be reached, as `url_key` has them.

    `token` and `body` are None where a proof need not cover them, `is_nonce` where it needs no nonce of the server.
    """

    method: str
    urls: frozenset[str]
    token: str | None = None
    body: bytes | None = None
    is_nonce: Callable[[str], bool] | None = None


def read_proof(text: str) -> Proof:
    """The proof, if it is one and its signature holds. What it is for is still to be checked."""
    header = header_of(text)
    # Unknown members are refused: `kid`, `jku`, `x5u` and `crit` would bring keys or rules of their own.
    if header.keys() != _HEADER or header["typ"] != _TYPE:
        raise Flaw("the proof must be a JWT whose header has typ dpop+jwt, alg and jwk, and nothing else")
    key = client_key(header["jwk"])
    if key is None or header["alg"] != key.algorithm:
        raise Flaw("the proof must have a public Ed25519 key with EdDSA, or a P-256 key with ES256")
    said = signed_claims(text, key.public, algorithm=key.algorithm)
    if said is None:
        raise Flaw("the signature of the proof does not hold")
    try:
        claims = msgspec.convert(said, ProofClaims)
    except msgspec.ValidationError as error:
        raise Flaw(f"a claim of the proof is missing or wrong: {error}") from None
    if not 1 <= len(claims.jti) <= _LONGEST_ID or not claims.jti.isascii() or not claims.jti.isprintable():
        raise Flaw(f"jti must be 1 to {_LONGEST_ID} printable ASCII characters")
    return Proof(key=key, claims=claims)


def check_proof(proof: Proof, expected: Expected, *, now_ms: int) -> None:
    """Refuse a proof that was made for another request, token or body, or at another time."""
    claims = proof.claims
    if claims.htm != expected.method:
        raise Flaw("the proof is for another method")
    if url_key(claims.htu) not in expected.urls:
        raise Flaw("the proof is for another URL: htu must be the one that this gateway is reached by")
    if abs(now_ms - claims.iat * 1000) > WINDOW_MS:
        raise Flaw(f"the proof was not made now: iat is {claims.iat}, and here it is {now_ms // 1000}")
    if expected.token is not None and claims.ath != _hash(expected.token.encode()):
        raise Flaw("the proof is for another token: ath must be the base64url SHA-256 of the one that is sent")
    if expected.body is not None and claims.bh != _hash(expected.body):
        raise Flaw("the proof is for another body: bh must be the base64url SHA-256 of the one that is sent")
    if expected.is_nonce is not None and not (claims.nonce is not None and expected.is_nonce(claims.nonce)):
        raise Flaw("the proof must name the nonce of the last answer (DPoP-Nonce)", USE_NONCE)


def body_hash(body: bytes) -> str:
    """What `bh` has to be."""
    return _hash(body)


def url_key(url: str) -> str | None:
    """A URL as it is compared: no query, no fragment, the host in lower case, no port that goes without saying."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username is not None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    at = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{at}{parts.path or '/'}"


def _hash(content: bytes) -> str:
    return to_text(sha256(content).digest())
