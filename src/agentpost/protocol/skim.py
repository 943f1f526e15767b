"""Where msgpack values end, found without decoding them: for bytes that the decoder gives up on.

Pure, and without recursion: an event that is nested a thousand levels deep must not take its neighbours with it.
"""

from collections.abc import Iterator
from typing import Final

__all__ = ["array_items", "map_items"]

_NOTHING_FOLLOWS: Final = frozenset({0xC0, 0xC2, 0xC3})
# tag → how many bytes follow
_FIXED: Final = dict(zip(range(0xCA, 0xD9), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), strict=True))
# tag → how many bytes say the length, and how many stand between them and the content
_BINARY: Final = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0)}
_EXTENSION: Final = {0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_TEXT: Final = {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_SIZED: Final = _BINARY | _EXTENSION | _TEXT
# tag → how many bytes say the number of entries, and how many values make one
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def array_items(data: bytes) -> list[bytes]:
    """The encoded items of one array. Raises ValueError if the data is not exactly that."""
    at, values, per_entry = _head(data, 0)
    if per_entry != 1:
        raise ValueError("not an array")
    items = list(_values(data, at, values))
    if at + sum(map(len, items)) != len(data):
        raise ValueError("something follows the array")
    return items


def map_items(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The encoded keys and values of one map. Raises ValueError where the data stops being that."""
    at, values, per_entry = _head(data, 0)
    if per_entry != 2:
        raise ValueError("not a map")
    each = _values(data, at, values)
    return zip(each, each, strict=True)


def _values(data: bytes, at: int, count: int) -> Iterator[bytes]:
    for _ in range(count):
        end = _end(data, at)
        yield data[at:end]
        at = end


def _end(data: bytes, at: int) -> int:
    """Where the value that starts at `at` ends."""
    pending = 1
    while pending:
        at, values, _ = _head(data, at)
        pending += values - 1
        # Each value has at least its tag: a length that promises more is a lie, and is not counted up to.
        if pending > len(data) - at:
            raise ValueError("truncated")
    return at


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Step over one tag and its own bytes: where that leads, and for a container how many values follow."""
    if at >= len(data):
        raise ValueError("truncated")
    tag = data[at]
    at += 1
    values = per_entry = 0
    if tag < 0x80 or tag >= 0xE0 or tag in _NOTHING_FOLLOWS:
        pass
    elif tag < 0x90:
        values, per_entry = 2 * (tag & 0x0F), 2
    elif tag < 0xA0:
        values, per_entry = tag & 0x0F, 1
    elif tag < 0xC0:
        at += tag & 0x1F
    elif tag in _FIXED:
        at += _FIXED[tag]
    elif tag in _SIZED:
        width, between = _SIZED[tag]
        at += width + between + int.from_bytes(data[at : at + width], "big")
    elif tag in _CONTAINERS:
        width, per_entry = _CONTAINERS[tag]
        values = per_entry * int.from_bytes(data[at : at + width], "big")
        at += width
    else:
        raise ValueError("not msgpack")
    if at > len(data):
        raise ValueError("truncated")
    return at, values, per_entry
