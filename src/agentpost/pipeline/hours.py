"""The tables of the hours: new events become silver partials, and gold of the hours that they speak of.

Hours that nothing new speaks of are not touched, whenever what is new arrives.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from agentpost.pipeline.brief import SMALL_EVENTS
from agentpost.pipeline.few_rows import Build, Recipe, made_of, recipe_of
from agentpost.pipeline.files import Files
from agentpost.pipeline.frames import (
    bronze_events,
    bronze_rows,
    bronze_schema,
    frame_of,
    local_frame,
)
from agentpost.pipeline.gold.names import all_names
from agentpost.pipeline.hour_workers import HourWork, SilverRows, make_hours, shares_of
from agentpost.pipeline.intake import Intake
from agentpost.pipeline.ranges import members, overlaps
from agentpost.pipeline.tables import FLEET, GOLD, SILVER, FleetTable, GoldInputs, GoldTable, Params, SilverTable
from agentpost.pipeline.warehouse import DataFile, Warehouse, live_files, replace_hours, rows_within
from agentpost.pipeline.writing import PIECE_BYTES, TableWriter, side_by_side

__all__ = ["MOST_DELTAS", "Catalog", "HourTables"]

# From so many runs on that have written silver of an hour, it is merged.
MOST_DELTAS: Final = 6
# What is made of fewer events is made by the driver.
FEW_EVENTS: Final = 100_000
# The touched hours of fewer rows are merged by the driver, which makes gold of them.
FEW_ROWS: Final = 300_000
# Little data: one partition and no second thoughts, which cost a job for every stage.
_PARTS: Final = "spark.sql.shuffle.partitions"
_SMALL_PLANS: Final = {_PARTS: "1", "spark.sql.adaptive.enabled": "false"}
# Much of it: what a task adds up has to fit into its share of the memory, however long the history is.
_EVENTS_A_PART: Final = 600_000
_NAMES: Final = pa.schema([("name_hash", pa.int64()), ("name", pa.string())])


class Catalog(NamedTuple):
    """The tables to build."""

    silver: Sequence[SilverTable] = SILVER
    gold: Sequence[GoldTable] = GOLD
    fleet: Sequence[FleetTable] = FLEET


class HourTables:
    """The tables of the hours in a run under way. `tables` are the files of every table, and are kept up to date."""

    def __init__(
        self,
        spark: SparkSession,
        warehouse: Warehouse,
        writer: TableWriter,
        catalog: Catalog,
        params: Params,
        tables: dict[str, tuple[DataFile, ...]],
    ) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._writer = writer
        self._catalog = catalog
        # What the hours say holds at any time, so that plans of it do too.
        self._params = msgspec.structs.replace(params, now_us=0)
        self._tables = tables
        # What is new: the rows themselves if they are few, else the files that have them.
        self._fresh: dict[str, pa.Table] = {}
        self._new_silver: dict[str, tuple[DataFile, ...]] = {}

    def build_silver(self, lake: Files, intake: Intake) -> frozenset[int]:
        """Make the partials of new events; gives the hours that they speak of."""
        used = [row for row in intake.segments.to_pylist() if row["slice_first"]]
        if not used:
            return frozenset()
        if intake.events < FEW_EVENTS:
            return self._make_silver_here(bronze_rows(lake, used))
        with _plans_for(self._spark, intake):
            return self._write_silver(bronze_events(self._spark, lake, used), intake)

    def _make_silver_here(self, events: pa.Table) -> frozenset[int]:
        def make(table: SilverTable) -> pa.Table:
            made = made_of(self._spark, [events], lambda frame: table.partials(frame(events)), key=table.partials)
            self._writer.schemas[_silver(table)] = made.schema
            return made.rows

        rows = side_by_side(make, self._catalog.silver)
        self._fresh = {table.name: each for table, each in zip(self._catalog.silver, rows, strict=True)}
        return frozenset(hour for each in rows for hour in cast("list[int]", each["hour"].unique().to_pylist()))

    def _write_silver(self, events: DataFrame, intake: Intake) -> frozenset[int]:
        def write(table: SilverTable) -> tuple[DataFile, ...]:
            partials = table.partials(events)
            partials = partials.coalesce(1) if _is_small(intake) else partials.sortWithinPartitions("hour")
            return self._writer.write(_silver(table), partials, piece_bytes=PIECE_BYTES)

        written = side_by_side(write, self._catalog.silver)
        self._new_silver = {_silver(table): files for table, files in zip(self._catalog.silver, written, strict=True)}
        return frozenset(hour for files in written for file in files for hour in members(file.hours))

    def build_gold(self, touched: frozenset[int], intake: Intake, segments: pa.Table, facts: pa.Table) -> None:
        """Compute the tables of the touched hours anew."""
        if not touched:
            self._learn_schemas(segments, facts)
            return
        if self._fresh and self._are_few(touched):
            self._make_gold_here(touched, segments, facts)
            return
        self._add_silver()
        left = self._make_gold_in_workers(touched, segments, facts)
        crowded = {table.name: self._crowded_hours(table, touched) for table in self._catalog.silver}
        with _plans_for(self._spark, intake):
            if left:
                self._write_gold(left, touched, segments, facts)
            side_by_side(lambda table: self._join_deltas(table, crowded[table.name]), self._catalog.silver)

    def _make_gold_here(self, touched: frozenset[int], segments: pa.Table, facts: pa.Table) -> None:
        """Silver and gold of the touched hours, without a job of Spark's: to plan those takes longer than this does."""
        merged = side_by_side(lambda table: self._replace_silver(table, touched), self._catalog.silver)
        names = self._names(segments, facts)

        def make(table: GoldTable) -> None:
            build = self._build_of(table, merged, segments, names)
            made = made_of(self._spark, [*merged, segments, names], build, key=(table.build, self._params))
            self._keep(table, touched, made.schema, made.rows)

        side_by_side(make, self._catalog.gold)

    def _make_gold_in_workers(
        self, touched: frozenset[int], segments: pa.Table, facts: pa.Table
    ) -> Sequence[GoldTable]:
        """Gold of the touched hours, by whoever is there to work. Gives the tables that only Spark can make."""
        files = [file for table in self._catalog.silver for file in self._tables[_silver(table)]]
        shares = shares_of(touched, files, self._spark.sparkContext.defaultParallelism)
        if shares is None:
            return self._catalog.gold
        silver = tuple(self._silver_rows(table, touched) for table in self._catalog.silver)
        others = segments, self._names(segments, facts)
        empty = [each.schema.empty_table() for each in silver]
        recipes: dict[str, Recipe] = {}
        for table in self._catalog.gold:
            build = self._build_of(table, empty, *others)
            key = (table.build, self._params)
            recipes[table.name] = recipe_of(self._spark, [*empty, *others], build, key=key)
        work = HourWork(self._warehouse.files.where, self._writer.attempt, silver, others, recipes)
        made = make_hours(self._spark, work, shares)
        for table in self._catalog.gold:
            if table.name not in made.unknown:
                schema = recipes[table.name].schema
                self._keep(table, touched, schema, made.rows[table.name], made.files[table.name])
        return [table for table in self._catalog.gold if table.name in made.unknown]

    def _build_of(self, table: GoldTable, silver: Sequence[pa.Table], segments: pa.Table, names: pa.Table) -> Build:
        """How a table is made of what is at hand."""

        def build(frame: Callable[[pa.Table], DataFrame]) -> DataFrame:
            frames = {each.name: frame(rows) for each, rows in zip(self._catalog.silver, silver, strict=True)}
            inputs = GoldInputs(silver=frames, segments=frame(segments), names=frame(names), params=self._params)
            return table.build(inputs)

        return build

    def _keep(
        self, table: GoldTable, touched: frozenset[int], schema: str, rows: pa.Table, made: Sequence[DataFile] = ()
    ) -> None:
        """Put what was made of the touched hours in the place of what was there."""
        files = self._writer.write_rows(table.name, rows, schema)
        kept = replace_hours(self._tables.get(table.name, ()), touched)
        self._tables[table.name] = self._writer.joined(table.name, (*kept, *made, *files))

    def _write_gold(
        self, tables: Sequence[GoldTable], touched: frozenset[int], segments: pa.Table, facts: pa.Table
    ) -> None:
        """Gold of the touched hours by Spark itself, a job for each table."""
        silver = {table.name: self._merged_silver(table, touched) for table in self._catalog.silver}
        inputs = self._inputs(silver, segments, facts)

        def write(table: GoldTable) -> None:
            files = self._writer.write(table.name, table.build(inputs), part="-spark")
            self._tables[table.name] = (*replace_hours(self._tables.get(table.name, ()), touched), *files)

        try:
            side_by_side(write, tables)
        finally:
            for rows in silver.values():
                if rows.is_cached:
                    rows.unpersist()

    def _silver_rows(self, table: SilverTable, touched: frozenset[int]) -> SilverRows:
        schema = to_arrow_schema(self._writer.schema(_silver(table)))
        files = tuple(live_files(self._tables[_silver(table)], touched))
        merge = table.merge_rows if self._is_told_before(table, touched) else None
        return SilverRows(files, _loose(schema), merge)

    def _replace_silver(self, table: SilverTable, touched: frozenset[int]) -> pa.Table:
        """Merge what is new into all that is known of the touched hours, and write that in its place."""
        name, fresh = _silver(table), self._fresh[table.name]
        known = self._warehouse.rows(self._tables.get(name, ()), fresh.schema, hours=touched).cast(fresh.schema)
        merged = table.merge_rows(pa.concat_tables([known, fresh])) if known.num_rows else fresh
        files = self._writer.write_rows(name, merged.sort_by("hour"))
        self._tables[name] = (*replace_hours(self._tables.get(name, ()), touched), *files)
        return merged.cast(_loose(merged.schema)).combine_chunks()

    def _add_silver(self) -> None:
        """The new partials beside those that are there."""
        for table in self._catalog.silver:
            name = _silver(table)
            if self._fresh:
                self._new_silver[name] = self._writer.write_rows(name, self._fresh[table.name].sort_by("hour"))
            self._tables[name] = (*self._tables.get(name, ()), *self._new_silver[name])

    def _merged_silver(self, table: SilverTable, touched: frozenset[int]) -> DataFrame:
        """All that is known of the touched hours, a row for each key."""
        name = _silver(table)
        rows = frame_of(self._spark, self._warehouse, self._tables[name], self._writer.schema(name), hours=touched)
        if not self._is_told_before(table, touched):
            return rows
        merged = table.merge(rows)
        return merged.persist() if table.is_shared else merged

    def _is_told_before(self, table: SilverTable, touched: frozenset[int]) -> bool:
        """Whether earlier runs have told of these hours too. What one run wrote has each key once."""
        files = self._tables[_silver(table)]
        old = files[: len(files) - len(self._new_silver[_silver(table)])]
        return any(overlaps(file.hours, touched) for file in old)

    def _are_few(self, hours: frozenset[int]) -> bool:
        """Whether silver has few rows of these hours, with what is new."""
        names = [_silver(table) for table in self._catalog.silver]
        files = [file for name in names for file in (*self._tables.get(name, ()), *self._new_silver.get(name, ()))]
        return rows_within(files, hours) + sum(rows.num_rows for rows in self._fresh.values()) < FEW_ROWS

    def _join_deltas(self, table: SilverTable, crowded: frozenset[int]) -> None:
        """Where many runs have written to an hour, one file takes the place of theirs."""
        if crowded:
            name = _silver(table)
            rows = frame_of(self._spark, self._warehouse, self._tables[name], self._writer.schema(name), hours=crowded)
            files = self._writer.write(name, table.merge(rows).coalesce(1), part="-joined", piece_bytes=PIECE_BYTES)
            self._tables[name] = (*replace_hours(self._tables[name], crowded), *files)

    def _crowded_hours(self, table: SilverTable, touched: frozenset[int]) -> frozenset[int]:
        # The files of one run share a directory, and no key stands in two of them.
        files = self._tables[_silver(table)]
        written = {(file.path.rpartition("/")[0], hour) for file in files for hour in members(file.hours)}
        counts = Counter(hour for _, hour in written)
        return frozenset(hour for hour in touched if counts[hour] > MOST_DELTAS)

    def _inputs(self, silver: Mapping[str, DataFrame], segments: pa.Table, facts: pa.Table) -> GoldInputs:
        return GoldInputs(
            silver=silver,
            segments=local_frame(self._spark, segments).coalesce(1),
            names=local_frame(self._spark, self._names(segments, facts)),
            params=self._params,
        )

    def _names(self, segments: pa.Table, facts: pa.Table) -> pa.Table:
        told = self._warehouse.rows(self._tables.get("silver_names", ()), _NAMES, columns=_NAMES.names)
        return all_names(told, segments, facts)

    def _learn_schemas(self, segments: pa.Table, facts: pa.Table) -> None:
        """The schemas of tables that nothing was ever written to: what they would be made of, without a row."""
        missing = [table for table in self._catalog.gold if table.name not in self._writer.schemas]
        if not missing:
            return
        nothing = self._spark.createDataFrame([], bronze_schema())
        silver = {table.name: table.partials(nothing) for table in self._catalog.silver}
        for name, rows in silver.items():
            self._writer.schemas.setdefault(f"silver_{name}", rows.schema.json())
        inputs = self._inputs(silver, segments, facts)
        for table in missing:
            self._writer.schemas[table.name] = table.build(inputs).schema.json()


def _silver(table: SilverTable) -> str:
    return f"silver_{table.name}"


def _is_small(intake: Intake) -> bool:
    return intake.events < SMALL_EVENTS


def _loose(schema: pa.Schema) -> pa.Schema:
    """As what is read from a file: nobody promises that a column has no nulls."""
    return pa.schema([field.with_nullable(True) for field in schema])


@contextmanager
def _plans_for(spark: SparkSession, intake: Intake) -> Generator[None]:
    """Plans that fit how much there is."""
    parts = max(int(spark.conf.get(_PARTS) or 1), intake.events // _EVENTS_A_PART)
    wanted = _SMALL_PLANS if _is_small(intake) else {_PARTS: str(parts)}
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or "")
