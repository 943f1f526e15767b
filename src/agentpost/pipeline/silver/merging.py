"""How partial rows become one: by column, with what a hash aggregate can do in place."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

__all__ = ["Columns", "How", "merge", "rows_of"]

How = Literal["sum", "min", "max", "bit_or"]
Columns = Mapping[str, tuple[How, str]]  # how two values of it become one, and its type


def merge(rows: DataFrame, key: Sequence[str], columns: Columns) -> DataFrame:
    """One row for each key. All of `How` are associative and commutative, and null is nothing."""
    return rows.groupBy(*key).agg(*[_merged(name, how).alias(name) for name, (how, _) in columns.items()])


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
