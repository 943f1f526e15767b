"""From numpy to Arrow: texts of one width as buffers, words from small dictionaries, nulls by a mask."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow
import pyarrow.parquet

from agentpost.simulate.arrays import Bytes, Flags

__all__ = [
    "ArrowArray",
    "chain_array",
    "fixed",
    "ids",
    "lists",
    "numbers",
    "offsets_and_data",
    "pa",
    "pq",
    "some",
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


def ids(prefix: bytes, letters: Bytes, which: Flags | None) -> ArrowArray:
    """Ids with their prefix; null where `which` is false."""
    width = len(prefix) + letters.shape[1]
    if which is not None:
        letters = letters[which]
    out = np.empty((len(letters), width), dtype=np.uint8)
    out[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    out[:, len(prefix) :] = letters
    if which is None:
        return fixed(out, pa.string())
    offsets = np.concatenate([[0], np.cumsum(which)]).astype(np.int32) * width
    valid = np.packbits(which, bitorder="little")
    return pa.Array.from_buffers(
        pa.string(), len(which), [pa.py_buffer(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    )


def words(words: Sequence[str | None], codes: Any) -> ArrowArray:
    """The words of these codes; a negative code is null."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.array(words, type=pa.string()).take(indices)


def some(names: ArrowArray, indices: Any, which: Flags) -> ArrowArray:
    return names.take(pa.array(np.where(which, indices, 0).astype(np.int32), mask=~which))


def numbers(values: Any, which: Flags) -> ArrowArray:
    return pa.array(values, mask=~which)


def lists(offsets: ArrowArray, values: ArrowArray) -> ArrowArray:
    element = pa.field("element", pa.string(), nullable=False)
    return pa.ListArray.from_arrays(offsets, values, type=pa.list_(element))


def offsets_and_data(values: ArrowArray) -> tuple[list[int], bytes]:
    """Where each of these values ends, from the start of the first on, and the bytes of all of them."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    return ends.tolist(), data.to_pybytes()


def chain_array(chains: Sequence[bytes]) -> ArrowArray:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(chains), [None, pa.py_buffer(b"".join(chains))])
