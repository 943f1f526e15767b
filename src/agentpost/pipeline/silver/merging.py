"""How partial rows become one: by column, with what a hash aggregate can do in place.

A table says once how each of its columns is merged. Spark does it for many rows, and pyarrow for what the driver has.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

__all__ = ["Columns", "How", "gather", "joined_bits", "merge", "merge_rows", "rows_of"]

How = Literal["sum", "min", "max", "bit_or"]
Columns = Mapping[str, tuple[How, str]]  # how two values of it become one, and its type

# What pyarrow calls them. It cannot join bits, so those of a key come as a list.
_KERNELS: Final[Mapping[How, str]] = {"sum": "sum", "min": "min", "max": "max", "bit_or": "list"}


def merge(rows: DataFrame, key: Sequence[str], columns: Columns) -> DataFrame:
    """One row for each key. All of `How` are associative and commutative, and null is nothing."""
    return rows.groupBy(*key).agg(*[_merged(name, how).alias(name) for name, (how, _) in columns.items()])


def gather(rows: DataFrame, key: Sequence[str], columns: Columns, said: Mapping[str, tuple[str, str]]) -> DataFrame:
    """One row for each key out of narrow rows: `said` has for each column its value and which of the rows have one.

    As a `filter`, for which Spark steps over a column that a row has no value for. A null instead would be merged: each
    row would read and write all columns.
    """
    told = {name: f"{how}(cast({said[name][0]} as {kind}))" for name, (how, kind) in columns.items()}
    return rows.groupBy(*key).agg(
        *[sf.expr(f"{told[name]} filter (where {said[name][1]})").alias(name) for name in told]
    )


def merge_rows(rows: pa.Table, key: Sequence[str], columns: Columns) -> pa.Table:
    """The same for rows that the driver has, with the schema that they have."""
    told: list[Any] = [(name, _KERNELS[how]) for name, (how, _) in columns.items()]
    # With several threads, each has groups of its own that have to be joined: nearly all keys are there once.
    found = rows.group_by(list(key), use_threads=False).aggregate(told)
    merged: dict[str, Any] = {name: found[name] for name in key}
    for name, (how, _) in columns.items():
        values = found[f"{name}_{_KERNELS[how]}"]
        merged[name] = joined_bits(cast("pa.ListArray", values.combine_chunks())) if how == "bit_or" else values
    return pa.table([merged[name] for name in rows.column_names], names=rows.column_names).cast(rows.schema)


def joined_bits(lists: pa.ListArray) -> pa.Array:
    """The bits of each list, none of which is empty; null where all of them are null."""
    values, starts = lists.flatten(), np.asarray(lists.offsets)[:-1]
    joined = np.bitwise_or.reduceat(np.asarray(values.fill_null(0)), starts)
    is_told = np.logical_or.reduceat(np.asarray(values.is_valid()), starts)
    return pa.array(joined, values.type, mask=~is_told)


def rows_of(rows: DataFrame, key: Sequence[str], columns: Columns, **values: Column) -> DataFrame:
    """The key and all columns; what is not given is null."""
    missing = sf.lit(None)
    return rows.select(*key, *[values.get(name, missing).cast(kind).alias(name) for name, (_, kind) in columns.items()])


def _merged(name: str, how: How) -> Column:
    match how:
        case "sum":
            return sf.sum(name)
        case "min":
            return sf.min(name)
        case "max":
            return sf.max(name)
        case "bit_or":
            return sf.bit_or(name)
