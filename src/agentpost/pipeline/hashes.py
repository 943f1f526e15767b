"""The hashes of `codes`, for values that the driver has: xxHash64 as Spark's `xxhash64` computes it. Pure."""

from collections.abc import Iterable
from typing import Final

from agentpost.pipeline.places import OUTBOX_MASK

__all__ = ["hash_of_name", "hash_of_outbox", "hash_of_texts"]

_MASK: Final = (1 << 64) - 1
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5
_SEED: Final = 42  # Spark's


def hash_of_name(name: str | None) -> int | None:
    """What `codes.name_hash` gives: None for None and for the empty name."""
    return _signed(_xxhash64(name.encode(), _SEED)) if name else None


def hash_of_outbox(node: str, epoch: str) -> int:
    """What `codes.outbox_code` gives."""
    return _xxhash64(epoch.encode(), _xxhash64(node.encode(), _SEED)) & OUTBOX_MASK


def hash_of_texts(texts: Iterable[str | None], seed: int = _SEED) -> int:
    """What Spark's `xxhash64` gives for several columns: each takes the hash of those before it as its seed."""
    for text in texts:
        seed = seed if text is None else _xxhash64(text.encode(), seed)
    return _signed(seed)


def _xxhash64(content: bytes, seed: int) -> int:
    length, at = len(content), 0
    if length >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while at <= length - 32:
            lanes = [_round(lane, _word(content, at + 8 * n, 8)) for n, lane in enumerate(lanes)]
            at += 32
        value = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        value = (seed + _P5) & _MASK
    value = (value + length) & _MASK
    while at <= length - 8:
        value = (_rotated(value ^ _round(0, _word(content, at, 8)), 27) * _P1 + _P4) & _MASK
        at += 8
    if at <= length - 4:
        value = (_rotated(value ^ (_word(content, at, 4) * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in content[at:]:
        value = (_rotated(value ^ (byte * _P5 & _MASK), 11) * _P1) & _MASK
    value = ((value ^ (value >> 33)) * _P2) & _MASK
    value = ((value ^ (value >> 29)) * _P3) & _MASK
    return value ^ (value >> 32)


def _round(lane: int, word: int) -> int:
    return (_rotated((lane + word * _P2) & _MASK, 31) * _P1) & _MASK


def _rotated(value: int, by: int) -> int:
    value &= _MASK
    return ((value << by) | (value >> (64 - by))) & _MASK


def _word(content: bytes, at: int, size: int) -> int:
    return int.from_bytes(content[at : at + size], "little")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
