"""How partial rows become one row for each key: by column, with what a hash aggregate can do in place."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

__all__ = ["Column", "Columns", "gather", "merge"]

How = Literal["sum", "min", "max", "bit_or", "latest"]


class Column(NamedTuple):
    """How two values of a column become one, and which narrow rows have a value for it.

    `latest` keeps the value that was said last; `by` is the column that says when. All are associative and
    commutative, and null is nothing.
    """

    how: How
    kind: str
    value: str
    where: str = "true"
    by: str = ""


Columns = Mapping[str, Column]


_MERGED: Final[Mapping[How, str]] = {
    "sum": "sum({name})",
    "min": "min({name})",
    "max": "max({name})",
    "bit_or": "bit_or({name})",
    "latest": "max_by({name}, {by}) filter (where {name} is not null)",
}
_GATHERED: Final[Mapping[How, str]] = {
    "sum": "sum({value}) filter (where {where})",
    "min": "min({value}) filter (where {where})",
    "max": "max({value}) filter (where {where})",
    "bit_or": "bit_or({value}) filter (where {where})",
    "latest": "max_by({value}, {at}) filter (where {where} and {value} is not null)",
}


def gather(rows: DataFrame, key: Sequence[str], columns: Columns, *, at: str = "at_us") -> DataFrame:
    """One row for each key out of narrow rows.

    As a `filter`, for which Spark steps over a column that a row has no value for. A null instead would be merged: each
    row would read and write all columns. `at` is when a narrow row was said.
    """
    made = [
        sf.expr(_GATHERED[each.how].format(value=f"cast({each.value} as {each.kind})", where=each.where, at=at)).alias(
            name
        )
        for name, each in columns.items()
    ]
    return rows.groupBy(*key).agg(*made)


def merge(rows: DataFrame, key: Sequence[str], columns: Columns) -> DataFrame:
    """One row for each key out of any number of partial rows."""
    made = [sf.expr(_MERGED[each.how].format(name=name, by=each.by)).alias(name) for name, each in columns.items()]
    return rows.groupBy(*key).agg(*made)
