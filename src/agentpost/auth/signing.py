"""Signatures that are good for one purpose only, keys as text, and the forms of what gets signed.

Knows nothing of invites, tickets or rooms. A purpose is the first line of what is signed, so that a signature made
for one of them never passes for another. No JWT starts like that, so tickets cannot be confused with them either.
"""

import base64
import binascii
import re
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "TOKEN_PREFIX",
    "check_key",
    "check_node_id",
    "check_nonce",
    "from_text",
    "in_time",
    "is_key",
    "sign",
    "signed_by",
    "to_text",
]

TOKEN_PREFIX: Final = "agp_"  # noqa: S105 - what tokens start with, so that people and scanners recognise them
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
# How far the clock may have been set back before what was made earlier counts as not yet made.
_SKEW_MS: Final = 60_000
_NODE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NONCE: Final = re.compile(r"[!-~]{1,200}")


def to_text(raw: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def from_text(text: str) -> bytes | None:
    """The bytes of base64url without padding; None for anything that `to_text` would not have written."""
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (UnicodeEncodeError, binascii.Error):
        return None
    return raw if to_text(raw) == text else None


def sign(key: Ed25519PrivateKey, purpose: str, message: bytes) -> str:
    return to_text(key.sign(_framed(purpose, message)))


def signed_by(public: str, purpose: str, message: bytes, signature: str) -> bool:
    """Whether the holder of `public` signed this message for this purpose."""
    key, proof = from_text(public), from_text(signature)
    if key is None or len(key) != _KEY_BYTES or proof is None or len(proof) != _SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(proof, _framed(purpose, message))
    except (InvalidSignature, ValueError):
        return False
    return True


def in_time(now_ms: int, *, from_ms: int, until_ms: int) -> bool:
    """Whether something that was made at `from_ms` is good now.

    If the clock was set back by more than a moment it is not, or it would be good for longer than it was made for.
    """
    return from_ms - _SKEW_MS <= now_ms < until_ms


def is_key(text: str) -> bool:
    """Whether this is how a public key is written."""
    return len(from_text(text) or b"") == _KEY_BYTES


def check_key(text: str, *, field: str) -> str:
    if not is_key(text):
        raise Refusal(Code.INVALID_FIELD, f"{field} must be a public key: 43 characters of base64url", field=field)
    return text


def check_node_id(text: str, *, field: str = "nodeId") -> str:
    # Node ids are shown in logs: a token that somebody put into the wrong field must not get there.
    if not _NODE_ID.fullmatch(text) or text.startswith(TOKEN_PREFIX):
        raise Refusal(
            Code.INVALID_FIELD,
            f"{field} must be a node id: up to 64 letters, digits, dots, dashes and underscores",
            field=field,
        )
    return text


def check_nonce(text: str) -> str:
    if not _NONCE.fullmatch(text):
        raise Refusal(Code.INVALID_FIELD, "nonce must be 1 to 200 printable ASCII characters", field="nonce")
    return text


def _framed(purpose: str, message: bytes) -> bytes:
    return purpose.encode("ascii") + b"\n" + message
