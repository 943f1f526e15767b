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
from pyspark.sql import functions as sf

from agentpost.pipeline.brief import SMALL_EVENTS
from agentpost.pipeline.few_rows import made_of
from agentpost.pipeline.files import Files
from agentpost.pipeline.frames import (
    bronze_events,
    bronze_rows,
    bronze_schema,
    frame_of,
    in_one_part,
    local_frame,
)
from agentpost.pipeline.gold.names import all_names
from agentpost.pipeline.intake import Intake
from agentpost.pipeline.ranges import members, overlaps
from agentpost.pipeline.tables import FLEET, GOLD, SILVER, FleetTable, GoldInputs, GoldTable, Params, SilverTable
from agentpost.pipeline.warehouse import DataFile, Warehouse, replace_hours, rows_within
from agentpost.pipeline.writing import PIECE_BYTES, SMALL_PIECE_BYTES, TableWriter, side_by_side

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
# From so many events on a refresh finds few of the hours that it speaks of in each of many files.
_LONG_EVENTS: Final = 10_000_000
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
            return self._writer.write(_silver(table), partials, piece_bytes=_piece_bytes(intake))

        written = side_by_side(write, self._catalog.silver)
        self._new_silver = {_silver(table): files for table, files in zip(self._catalog.silver, written, strict=True)}
        return frozenset(hour for files in written for file in files for hour in members(file.hours))

    def build_gold(self, touched: frozenset[int], intake: Intake, segments: pa.Table, facts: pa.Table) -> None:
        """Compute the tables of the touched hours anew."""
        if not touched:
            self._learn_schemas(segments, facts)
            return
        few = self._are_few(touched)
        if self._fresh and few:
            self._make_gold_here(touched, segments, facts)
            return
        self._add_silver()
        silver = {table.name: self._merged_silver(table, touched, few=few) for table in self._catalog.silver}
        inputs = self._inputs(silver, segments, facts)

        def write(table: GoldTable | SilverTable) -> None:
            if isinstance(table, SilverTable):
                self._join_deltas(table, silver[table.name], touched)
                return
            rows = table.build(inputs)
            files = self._writer.write(table.name, rows.coalesce(1) if _is_small(intake) else rows, few=few)
            self._tables[table.name] = (*replace_hours(self._tables.get(table.name, ()), touched), *files)

        try:
            with _plans_for(self._spark, intake):
                side_by_side(write, [*self._catalog.gold, *self._catalog.silver])
        finally:
            for rows in silver.values():
                if rows.is_cached:
                    rows.unpersist()

    def _make_gold_here(self, touched: frozenset[int], segments: pa.Table, facts: pa.Table) -> None:
        """Silver and gold of the touched hours, without a job of Spark's: to plan those takes longer than this does."""
        merged = side_by_side(lambda table: self._replace_silver(table, touched), self._catalog.silver)
        silver = {table.name: rows for table, rows in zip(self._catalog.silver, merged, strict=True)}
        names = self._names(segments, facts)

        def inputs(frame: Callable[[pa.Table], DataFrame]) -> GoldInputs:
            frames = {name: frame(rows) for name, rows in silver.items()}
            return GoldInputs(silver=frames, segments=frame(segments), names=frame(names), params=self._params)

        def make(table: GoldTable) -> None:
            key = (table.build, self._params)
            made = made_of(self._spark, [*merged, segments, names], lambda frame: table.build(inputs(frame)), key=key)
            files = self._writer.write_rows(table.name, made.rows, made.schema)
            kept = replace_hours(self._tables.get(table.name, ()), touched)
            self._tables[table.name] = self._writer.joined(table.name, (*kept, *files))

        side_by_side(make, self._catalog.gold)

    def _replace_silver(self, table: SilverTable, touched: frozenset[int]) -> pa.Table:
        """Merge what is new into all that is known of the touched hours, and write that in its place."""
        name, fresh = _silver(table), self._fresh[table.name]
        known = self._warehouse.rows(self._tables.get(name, ()), fresh.schema, hours=touched).cast(fresh.schema)
        merged = table.merge_rows(pa.concat_tables([known, fresh])) if known.num_rows else fresh
        files = self._writer.write_rows(name, merged.sort_by("hour"))
        self._tables[name] = (*replace_hours(self._tables.get(name, ()), touched), *files)
        # As what is read from a file: nobody promises that a column has no nulls.
        return merged.cast(pa.schema([field.with_nullable(True) for field in merged.schema]))

    def _add_silver(self) -> None:
        """The new partials beside those that are there."""
        for table in self._catalog.silver:
            name = _silver(table)
            if self._fresh:
                self._new_silver[name] = self._writer.write_rows(name, self._fresh[table.name].sort_by("hour"))
            self._tables[name] = (*self._tables.get(name, ()), *self._new_silver[name])

    def _merged_silver(self, table: SilverTable, touched: frozenset[int], *, few: bool) -> DataFrame:
        """All that is known of the touched hours, a row for each key."""
        name = _silver(table)
        files = self._tables[name]
        rows = frame_of(self._spark, self._warehouse, files, self._writer.schema(name), hours=touched)
        rows = in_one_part(rows, few=few)
        # What one run wrote has each key once.
        old = files[: len(files) - len(self._new_silver[name])]
        if not any(overlaps(file.hours, touched) for file in old):
            return rows
        merged = table.merge(rows)
        return merged.persist() if table.is_shared else merged

    def _are_few(self, hours: frozenset[int]) -> bool:
        """Whether silver has few rows of these hours, with what is new."""
        names = [_silver(table) for table in self._catalog.silver]
        files = [file for name in names for file in (*self._tables.get(name, ()), *self._new_silver.get(name, ()))]
        return rows_within(files, hours) + sum(rows.num_rows for rows in self._fresh.values()) < FEW_ROWS

    def _join_deltas(self, table: SilverTable, merged: DataFrame, touched: frozenset[int]) -> None:
        """Where many runs have written to an hour, one file takes the place of theirs."""
        name = _silver(table)
        # The files of one run share a directory, and no key stands in two of them.
        written = {(file.path.rpartition("/")[0], hour) for file in self._tables[name] for hour in members(file.hours)}
        counts = Counter(hour for _, hour in written)
        crowded = frozenset(hour for hour in touched if counts[hour] > MOST_DELTAS)
        if crowded:
            rows = merged.where(sf.col("hour").isin(*sorted(crowded))).coalesce(1)
            files = self._writer.write(name, rows, part="-joined", piece_bytes=SMALL_PIECE_BYTES)
            self._tables[name] = (*replace_hours(self._tables[name], crowded), *files)

    def _inputs(self, silver: Mapping[str, DataFrame], segments: pa.Table, facts: pa.Table) -> GoldInputs:
        return GoldInputs(
            silver=silver,
            segments=in_one_part(local_frame(self._spark, segments), few=True),
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


def _piece_bytes(intake: Intake) -> int:
    return SMALL_PIECE_BYTES if intake.events > _LONG_EVENTS else PIECE_BYTES


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
