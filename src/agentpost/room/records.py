"""Signed records: the form that is signed, and the two functions that sign and verify it.

A record says who signed it (`signedBy`), which write of its key it is (`rev`, which only grows), and carries an Ed25519
signature (`sig`) over the canonical JSON of `[map, key, record without sig]`. So a relay can pass a record on, but not
alter it, move it to another key, or bring an older one back. Knows nothing of Yjs or of who may write what.
"""

import base64
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "MAX_TEXT",
    "REMOVED",
    "Record",
    "canonical",
    "from_base64",
    "is_removed",
    "plain_record",
    "sign_bytes",
    "sign_record",
    "to_base64",
    "verify_bytes",
    "verify_record",
]

Record: TypeAlias = dict[str, Any]

REMOVED: Final = "removed"
MAX_TEXT: Final = 512
_MAX_DEPTH: Final = 4
_MAX_LIST: Final = 256
_SAFE: Final = 2**53

_encoder = msgspec.json.Encoder(order="sorted")


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces. The same bytes for the same value, in every language."""
    return _encoder.encode(value)


def plain_record(value: object) -> Record:
    """The value as records are compared and signed: integral floats are ints, for JavaScript writes all as floats.

    Refused: what is no object, numbers that are not whole (their text differs between languages), long texts, control
    characters, deep or long structures.
    """
    if type(value) is not dict:
        raise Refusal(Code.INVALID_FIELD, "a record is an object")
    return cast("Record", _plain(cast("object", value), "", 1))


def _plain(value: object, field: str, depth: int) -> object:
    kind = type(value)
    if kind is str:
        text = cast("str", value)
        if len(text) > MAX_TEXT:
            raise Refusal(
                Code.TOO_LARGE, f"{field} is longer than {MAX_TEXT} characters", field=field, hint=_METADATA_ONLY
            )
        if not text.isprintable() and any(ord(letter) < 32 for letter in text):
            raise Refusal(Code.INVALID_FIELD, f"{field} has control characters", field=field)
        return text
    if value is None or kind is bool:
        return value
    if kind is int or kind is float:
        number = cast("float", value)
        if not math.isfinite(number) or abs(number) >= _SAFE or number != int(number):
            raise Refusal(Code.INVALID_FIELD, f"{field} is not a whole number below 2^53", field=field)
        return int(number)
    if depth > _MAX_DEPTH:
        raise Refusal(Code.TOO_DEEP, f"{field} is nested too deep", field=field, hint="Keep records flat.")
    if kind is dict:
        inner = cast("dict[str, object]", value)
        return {name: _plain(each, f"{field}.{name}" if field else name, depth + 1) for name, each in inner.items()}
    if kind is list or kind is tuple:
        several = cast("list[object]", value)
        if len(several) > _MAX_LIST:
            raise Refusal(Code.TOO_LARGE, f"{field} has more than {_MAX_LIST} entries", field=field)
        return [_plain(each, field, depth + 1) for each in several]
    raise Refusal(Code.INVALID_FIELD, f"{field} is not a value that JSON can say", field=field)


_METADATA_ONLY: Final = "The room holds metadata; what is said travels through the outboxes."


def is_removed(record: Mapping[str, Any] | None) -> bool:
    """Whether nothing stands there any more. Keys are not deleted: a record that says so takes their place."""
    return record is None or record.get("status") == REMOVED


def sign_record(map_name: str, key: str, record: Mapping[str, Any], signing: Ed25519PrivateKey) -> Record:
    """The record with its signature; it has to name `signedBy` and `rev` already."""
    unsigned = plain_record({name: value for name, value in record.items() if name != "sig"})
    return unsigned | {"sig": sign_bytes(signing, canonical([map_name, key, unsigned]))}


def verify_record(map_name: str, key: str, record: Mapping[str, Any], public_key: bytes) -> bool:
    """Whether the owner of `public_key` signed exactly this record for exactly this key."""
    try:
        unsigned = plain_record({name: value for name, value in record.items() if name != "sig"})
    except Refusal:
        return False
    return verify_bytes(public_key, record.get("sig"), canonical([map_name, key, unsigned]))


def sign_bytes(signing: Ed25519PrivateKey, message: bytes) -> str:
    return to_base64(signing.sign(message))


def verify_bytes(public_key: bytes, signature: object, message: bytes) -> bool:
    if not isinstance(signature, str):
        return False
    try:
        _loaded(public_key).verify(from_base64(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=4096)
def _loaded(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)


def to_base64(raw: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def from_base64(text: str) -> bytes:
    """The bytes of base64url without padding; ValueError for anything else, also for a second spelling of the same."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise ValueError("not base64url") from None
    if to_base64(raw) != text:
        raise ValueError("not the canonical spelling")
    return raw
