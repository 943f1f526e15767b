"""Ids and times as text, a million at a time: matrices of letters, one row for each value.

Pure. What `protocol.ids` and `protocol.timestamps` write for one value, this writes for a column.
"""

from datetime import date, timedelta
from typing import Final

import numpy as np

from agentpost.simulate.arrays import Bytes, Ints, Words

__all__ = ["TIME_LETTERS", "ULID_LETTERS", "mixed", "seq_bytes", "times", "ulids"]

ULID_LETTERS: Final = 26
TIME_LETTERS: Final = 24

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Ten bits are two letters: thirteen look-ups for each id.
_PAIRS: Final = np.frombuffer("".join(a + b for a in _CROCKFORD for b in _CROCKFORD).encode(), dtype=np.uint16)

_FIRST_DAY: Final = date(2015, 1, 1)
_DAYS: Final = 366 * 40
_EPOCH_DAY: Final = (_FIRST_DAY - date(1970, 1, 1)).days
_DAY_MS: Final = 86_400_000


def _letters(texts: list[str]) -> Bytes:
    return np.frombuffer("".join(texts).encode(), dtype=np.uint8).reshape(len(texts), -1)


_DAY_TEXT: Final = _letters([(_FIRST_DAY + timedelta(days=n)).isoformat() for n in range(_DAYS)])
_MINUTE_TEXT: Final = _letters([f"T{n // 60:02d}:{n % 60:02d}:" for n in range(24 * 60)])
_MS_TEXT: Final = _letters([f"{n // 1000:02d}.{n % 1000:03d}Z" for n in range(60_000)])


def mixed(words: Words, step: int | Ints) -> Words:
    """Other random-looking words, one for each word and step: how the ids of a conversation follow from its first."""
    with np.errstate(over="ignore"):
        found = words + np.uint64(0x9E3779B97F4A7C15) * (np.asarray(step).astype(np.uint64) + np.uint64(1))
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def ulids(made_ms: Ints, words: Words) -> Bytes:
    """ULIDs made at `made_ms`. The upper 16 of their 80 random bits follow from the lower 64."""
    out = np.empty((len(made_ms), 13), dtype=np.uint16)
    for place, shift in enumerate((40, 30, 20, 10, 0)):
        out[:, place] = _PAIRS[(made_ms >> shift) & 1023]
    with np.errstate(over="ignore"):
        upper = (words * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(48)
    out[:, 5] = _PAIRS[upper >> np.uint64(6)]
    out[:, 6] = _PAIRS[((upper & np.uint64(63)) << np.uint64(4)) | (words >> np.uint64(60))]
    for place, shift in enumerate((50, 40, 30, 20, 10, 0)):
        out[:, 7 + place] = _PAIRS[(words >> np.uint64(shift)) & np.uint64(1023)]
    return out.view(np.uint8)


def times(at_ms: Ints) -> Bytes:
    """`2026-02-25T16:22:10.123Z`."""
    out = np.empty((len(at_ms), TIME_LETTERS), dtype=np.uint8)
    day, in_day = np.divmod(at_ms, _DAY_MS)
    minute, in_minute = np.divmod(in_day, 60_000)
    out[:, 0:10] = _DAY_TEXT[day - _EPOCH_DAY]
    out[:, 10:17] = _MINUTE_TEXT[minute]
    out[:, 17:24] = _MS_TEXT[in_minute]
    return out


def seq_bytes(seqs: Ints) -> Bytes:
    """The four bytes of a msgpack uint32."""
    return seqs.astype(">u4").view(np.uint8).reshape(len(seqs), 4)
