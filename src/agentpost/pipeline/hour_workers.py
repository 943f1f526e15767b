"""Gold of many hours, made in the Python workers of Spark: each takes some hours, and walks the plans over their rows.

pyarrow goes through columns where Spark goes through rows, so this is several times as fast as a job for each table.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from agentpost.pipeline.few_rows import LEFT_TO_SPARK, Recipe
from agentpost.pipeline.files import Files
from agentpost.pipeline.ranges import members, size
from agentpost.pipeline.walking import walk
from agentpost.pipeline.warehouse import Attempt, DataFile, Warehouse
from agentpost.protocol.errors import Code, Refusal

__all__ = ["HourWork", "MadeHours", "SilverRows", "make_hours", "shares_of"]

# What a worker has in memory at once is about a kilobyte for each row.
ROWS_A_SHARE: Final = 250_000
# An hour is not divided. More rows than this are for Spark, which can put aside what does not fit.
MOST_ROWS: Final = 1_000_000
_SHARES_A_CORE: Final = 4
# Fewer rows than this are no file of their own: they go to the driver.
_SMALL_ROWS: Final = 5_000


class SilverRows(NamedTuple):
    """A table of silver. `merge` makes one row of several for a key; None where no key is there twice."""

    files: tuple[DataFile, ...]
    schema: pa.Schema
    merge: Callable[[pa.Table], pa.Table] | None


class HourWork(NamedTuple):
    """What all workers have to know. `others` are small tables that the recipes use besides silver."""

    warehouse: str
    attempt: Attempt
    silver: tuple[SilverRows, ...]
    others: tuple[pa.Table, ...]
    recipes: Mapping[str, Recipe]


class MadeHours(NamedTuple):
    """Files, and the rows that are too few for one, of every table; `unknown` are tables that only Spark can make."""

    files: dict[str, tuple[DataFile, ...]]
    rows: dict[str, pa.Table]
    unknown: frozenset[str]


class _Refused(NamedTuple):
    """Why a worker made nothing. As values: an exception would come back as the text of a stack."""

    code: Code
    message: str
    hint: str


def shares_of(hours: Iterable[int], files: Sequence[DataFile], cores: int) -> list[frozenset[int]] | None:
    """The hours in shares of about as many rows each; None where one hour has too many for a worker."""
    rows: Counter[int] = Counter(dict.fromkeys(hours, 0))
    for file in files:
        of_an_hour = file.rows // size(file.hours)
        rows.update({hour: of_an_hour for hour in members(file.hours) if hour in rows})
    if max(rows.values(), default=0) > MOST_ROWS:
        return None
    most = min(ROWS_A_SHARE, rows.total() // (_SHARES_A_CORE * cores))
    shares: list[list[int]] = []
    full = most
    for hour in sorted(rows):
        if full >= most:
            shares.append([])
            full = 0
        shares[-1].append(hour)
        full += rows[hour]
    return [frozenset(share) for share in shares]


def make_hours(spark: SparkSession, work: HourWork, shares: Sequence[frozenset[int]]) -> MadeHours:
    """Make all tables of these hours."""
    context = spark.sparkContext
    context.setJobDescription("gold of hours")
    answers = context.parallelize(list(shares), len(shares)).map(lambda hours: _answer(work, hours)).collect()
    made: list[MadeHours] = []
    for answer in answers:
        if isinstance(answer, _Refused):
            raise Refusal(answer.code, answer.message, hint=answer.hint)
        made.append(answer)
    unknown = frozenset[str]().union(*(each.unknown for each in made))
    names = work.recipes.keys() - unknown
    return MadeHours(
        {name: tuple(file for each in made for file in each.files.get(name, ())) for name in names},
        {
            name: pa.concat_tables([each.rows[name] for each in made if name in each.rows] or [_none(work, name)])
            for name in names
        },
        unknown,
    )


def _none(work: HourWork, name: str) -> pa.Table:
    return work.recipes[name].rows.empty_table()


def _answer(work: HourWork, hours: frozenset[int]) -> MadeHours | _Refused:
    try:
        return _made(work, hours)
    except Refusal as refusal:
        return _Refused(refusal.code, refusal.message, refusal.hint)


def _made(work: HourWork, hours: frozenset[int]) -> MadeHours:
    """The share of a worker."""
    # The other cores have workers of their own.
    pa.set_cpu_count(1)
    warehouse = Warehouse(Files(work.warehouse))
    # Shares are told from what files have on average; an hour may be much fuller than others.
    if sum(_count(warehouse, each, hours) for each in work.silver) > MOST_ROWS:
        return MadeHours({}, {}, frozenset(work.recipes))
    tables = [*(_rows(warehouse, each, hours) for each in work.silver), *work.others]
    files: dict[str, tuple[DataFile, ...]] = {}
    few: dict[str, pa.Table] = {}
    unknown: set[str] = set()
    # Whoever does this once more, since the first answer was lost, writes other files.
    part = f"{min(hours)}-{secrets.token_hex(4)}"
    for name, recipe in work.recipes.items():
        try:
            rows = walk(recipe.plan, tables, recipe.rows) if recipe.plan else None
        except LEFT_TO_SPARK:
            rows = None
        if rows is None:
            unknown.add(name)
        elif rows.num_rows < _SMALL_ROWS:
            few[name] = rows
        else:
            files[name] = warehouse.write(work.attempt, name, rows, by_hour=True, part=part)
    return MadeHours(files, few, frozenset(unknown))


def _count(warehouse: Warehouse, silver: SilverRows, hours: frozenset[int]) -> int:
    return warehouse.rows(silver.files, columns=["hour"], hours=hours).num_rows


def _rows(warehouse: Warehouse, silver: SilverRows, hours: frozenset[int]) -> pa.Table:
    """All that is known of these hours, a row for each key."""
    schema = silver.schema
    rows = warehouse.rows(silver.files, schema, columns=schema.names, hours=hours).select(schema.names).cast(schema)
    merged = silver.merge(rows) if silver.merge and rows.num_rows else rows
    return merged.combine_chunks()
