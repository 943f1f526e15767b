"""From numpy to Arrow: texts of one width as buffers, words from small dictionaries, nulls by a mask.

Everything is made of buffers. `pyarrow.array` would load pandas first, which takes as long as 100,000 events.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow
import pyarrow.parquet

from agentpost.simulate.arrays import Bytes, Flags, Ints

__all__ = [
    "ArrowArray",
    "chain_array",
    "fixed",
    "ids",
    "lists",
    "names",
    "numbers",
    "offsets_and_data",
    "pa",
    "pq",
    "texts",
    "trues",
    "words",
]

# The stubs of pyarrow do not know that it takes numpy arrays and buffers nearly everywhere.
pa: Final[Any] = pyarrow
pq: Final[Any] = pyarrow.parquet
ArrowArray: TypeAlias = Any


def fixed(letters: Bytes, kind: Any) -> ArrowArray:
    count, width = letters.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))]
    )


def ids(prefix: bytes, letters: Bytes, which: Flags | None = None) -> ArrowArray:
    """Ids with their prefix; null where `which` is false, and then `letters` has only the others."""
    width = len(prefix) + letters.shape[1]
    out = np.empty((len(letters), width), dtype=np.uint8)
    out[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    out[:, len(prefix) :] = letters
    if which is None:
        return fixed(out, pa.string())
    return pa.Array.from_buffers(
        pa.string(), len(which), [_bits(which), pa.py_buffer(_offsets(which) * np.int32(width)), pa.py_buffer(out)]
    )


def texts(values: Sequence[str | None]) -> ArrowArray:
    raws = [(value or "").encode() for value in values]
    valid = None if None not in values else _bits(np.array([value is not None for value in values]))
    offsets = _offsets(np.fromiter(map(len, raws), dtype=np.int64, count=len(raws)))
    return pa.Array.from_buffers(pa.string(), len(raws), [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(raws))])


def words(words: Sequence[str | None], codes: Any) -> ArrowArray:
    """The words of these codes; a negative code is null, and so is a 0 where the first word is None.

    Words are handed on as a dictionary and its indices, which is what Parquet keeps of them anyway.
    """
    if words[0] is None:
        words, codes = words[1:], codes - 1
    indices = numbers(codes.astype(np.int32), codes >= 0)
    return pa.DictionaryArray.from_arrays(indices, texts(words), safe=False)


def names(names: Sequence[str], indices: Ints, which: Flags | None = None) -> ArrowArray:
    """The names of these indices, null where `which` is false. Of many names a few may be used: only they are kept."""
    used = np.zeros(len(names), dtype=np.bool_)
    used[indices if which is None else indices[which]] = True
    codes = (np.cumsum(used, dtype=np.int32) - 1).take(indices)
    kept = [names[place] for place in np.flatnonzero(used).tolist()]
    return pa.DictionaryArray.from_arrays(numbers(codes, which), texts(kept), safe=False)


def numbers(values: Any, which: Flags | None = None) -> ArrowArray:
    """Numbers of 32 or 64 bits, null where `which` is false."""
    kind = pa.int32() if values.dtype == np.int32 else pa.int64()
    valid = None if which is None else _bits(which)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def trues(which: Flags) -> ArrowArray:
    """True where `which` is, and null elsewhere."""
    bits = _bits(which)
    return pa.Array.from_buffers(pa.bool_(), len(which), [bits, bits])


def lists(counts: Any, values: Sequence[str], indices: Any) -> ArrowArray:
    """Lists of so many of the values of these indices."""
    kind = pa.list_(pa.field("element", pa.string(), nullable=False))
    return pa.ListArray.from_arrays(numbers(_offsets(counts)), texts(values).take(numbers(indices)), type=kind)


def _offsets(counts: Any) -> Any:
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _bits(flags: Flags) -> Any:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def offsets_and_data(values: ArrowArray) -> tuple[list[int], bytes]:
    """Where each of these values ends, from the start of the first on, and the bytes of all of them."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    return ends.tolist(), data.to_pybytes()


def chain_array(chains: Sequence[bytes]) -> ArrowArray:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(chains), [None, pa.py_buffer(b"".join(chains))])
