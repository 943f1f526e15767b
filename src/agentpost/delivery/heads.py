"""Signing the end of an outbox, and checking who signed it (PIPE-9). One signature covers a batch of any size.

Knows nothing of whose key is whose: the room says that.
"""

from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import HEAD_PURPOSE, OutboxHead, decode_head, encode_head

__all__ = ["sign_head", "verify_head"]

_PREFIX: Final = HEAD_PURPOSE.encode() + b"\n"


def sign_head(head: OutboxHead, signing: Ed25519PrivateKey) -> tuple[bytes, bytes]:
    """The head as it travels, and its owner's signature."""
    raw = encode_head(head)
    return raw, signing.sign(_PREFIX + raw)


def verify_head(raw: bytes, signature: bytes, public_key: bytes) -> OutboxHead:
    """The head, if the owner of `public_key` signed exactly these bytes as one."""
    try:
        _loaded(public_key).verify(signature, _PREFIX + raw)
    except (InvalidSignature, ValueError):
        raise Refusal(
            Code.NODE_PROOF_INVALID, "the head is not signed by the owner of the outbox", field="signature"
        ) from None
    return decode_head(raw)


@lru_cache(maxsize=4096)
def _loaded(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)
