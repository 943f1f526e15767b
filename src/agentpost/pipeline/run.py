"""One batch: what is new in the lake becomes a new version of all tables. `pipeline run` and `watch` both call this.

    new segments ─► silver partials of the hours they speak of ─► gold of those hours ─► gold of the fleet ─► version

The cost follows what is new. The tables of the fleet are made by the driver, without Spark.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import SparkSession

from agentpost.lake.schema import FACTS
from agentpost.pipeline.checking import Claim, Verdict, check_segment
from agentpost.pipeline.files import Files
from agentpost.pipeline.hours import MOST_DELTAS, Catalog, HourTables
from agentpost.pipeline.intake import (
    CHANGE_LOGS,
    FINDINGS,
    QUARANTINE,
    SEGMENTS,
    Intake,
    Known,
    NewInput,
    discover,
    take_in,
)
from agentpost.pipeline.ranges import members
from agentpost.pipeline.tables import FleetInputs, FromHour, Params
from agentpost.pipeline.warehouse import DataFile, Version, Warehouse, replace_hours
from agentpost.pipeline.workers import check_in_workers
from agentpost.pipeline.writing import TableWriter

__all__ = ["LOCK", "PHASES", "RunOptions", "RunResult", "run_batch"]

# When a run may be cut off, in order; tests do it at each.
PHASES: Final = ("begun", "taken_in", "silver", "hour_gold", "fleet_gold", "version", "pointer", "pruned")
# Less than this is checked faster here than it is handed to workers.
CHECK_HERE_BYTES: Final = 24 * 1024 * 1024
LOCK: Final = "LOCK"
_LOCAL_TABLES: Final = {
    "segments": SEGMENTS,
    "findings": FINDINGS,
    "quarantine": QUARANTINE,
    "facts": FACTS,
    "change_logs": CHANGE_LOGS,
}


class RunOptions(Struct, frozen=True, kw_only=True):
    """`full` builds everything anew; `since_us` leaves segments that were sealed before for another run."""

    now_us: int
    since_us: int | None = None
    full: bool = False


class RunResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a run did. `seconds` says where the time went."""

    version: int
    batch: int
    segments: int
    quarantined: int
    events: int
    hours: int
    findings: int
    newest_us: int
    seconds: dict[str, float]


def run_batch(
    spark: SparkSession,
    lake: Files,
    warehouse: Warehouse,
    options: RunOptions,
    *,
    catalog: Catalog | None = None,
    at_phase: Callable[[str], None] = lambda _name: None,
) -> RunResult:
    """Take in what is new and publish a version. Exactly once, whatever happens on the way."""
    with warehouse.files.locked(LOCK):
        return _Batch(spark, lake, warehouse, options, catalog or Catalog(), at_phase).run()


class _Batch:
    """A run under way: what it has so far."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Files,
        warehouse: Warehouse,
        options: RunOptions,
        catalog: Catalog,
        at_phase: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._warehouse = warehouse
        self._options = options
        self._catalog = catalog
        self._at_phase = at_phase
        self._seconds: dict[str, float] = {}
        self._params = Params(now_us=options.now_us)

    def run(self) -> RunResult:
        self._attempt = self._warehouse.begin()
        self._at_phase("begun")
        current = self._warehouse.current()
        self._before = None if self._options.full or not self._has_all_tables(current) else current
        self._tables: dict[str, tuple[DataFile, ...]] = dict(self._before.tables) if self._before else {}
        schemas = self._before.schemas if self._before else {}
        self._writer = TableWriter(self._spark, self._warehouse, self._attempt, schemas)
        hours = HourTables(self._spark, self._warehouse, self._writer, self._catalog, self._params, self._tables)
        with self._timed("intake"):
            new, intake = self._take_in()
        self._at_phase("taken_in")
        with self._timed("silver"):
            touched = hours.build_silver(self._lake, intake)
        self._at_phase("silver")
        with self._timed("hour_gold"):
            hours.build_gold(touched, intake, self._segments, self._facts)
        self._at_phase("hour_gold")
        with self._timed("fleet_gold"):
            self._build_fleet_gold(intake, touched)
        self._at_phase("fleet_gold")
        with self._timed("commit"):
            version = self._commit(intake, bool(new))
        return RunResult(
            version=version.number,
            batch=version.batch,
            segments=len(new.manifests) + len(new.unread),
            quarantined=intake.quarantine.num_rows,
            events=intake.events,
            hours=len(touched),
            findings=intake.findings.num_rows,
            newest_us=version.newest_us,
            seconds=self._seconds,
        )

    def _has_all_tables(self, version: Version | None) -> bool:
        """Whether a version has every table of the hours: what an older agentpost has left out is in the lake."""
        return version is not None and all(table.name in version.schemas for table in self._catalog.gold)

    def _take_in(self) -> tuple[NewInput, Intake]:
        tables = {
            name: self._warehouse.read(self._before, name, schema).cast(schema)
            for name, schema in _LOCAL_TABLES.items()
        }
        known = Known(**tables)
        new = discover(self._lake, known, since_us=self._options.since_us)
        intake = take_in(self._lake, known, new, check=self._check)
        for name in ("segments", "quarantine", "facts", "change_logs"):
            self._append(name, tables[name], cast("pa.Table", getattr(intake, name)))
        self._tables["findings"] = self._warehouse.write(self._attempt, "findings", intake.findings)
        self._facts = pa.concat_tables([known.facts, intake.facts])
        self._segments = _good(pa.concat_tables([known.segments, intake.segments]))
        return new, intake

    def _append(self, name: str, known: pa.Table, added: pa.Table) -> None:
        """Add rows to a small table; its files are joined when there are many."""
        files = self._tables.get(name, ())
        if len(files) >= MOST_DELTAS:
            files, added = (), pa.concat_tables([known, added])
        self._tables[name] = (*files, *self._warehouse.write(self._attempt, name, added))

    def _check(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Check segments: here if it is little, else in the workers of Spark."""
        if sum(claim.manifest.size_bytes for claim in claims) <= CHECK_HERE_BYTES:
            return [check_segment(self._lake, claim) for claim in claims]
        return check_in_workers(self._spark, self._lake.where, claims)

    def _build_fleet_gold(self, intake: Intake, touched: frozenset[int]) -> None:
        """Made by each run, from what the hours and the intake say: what time alone changes is up to date."""
        read: dict[tuple[str, pa.Schema, str], pa.Table] = {}

        def hour_rows(name: str, schema: pa.Schema, where: pc.Expression | None = None, /) -> pa.Table:
            key = (name, schema, str(where))
            if key not in read:
                read[key] = self._rows(self._tables, name, schema, where=where)
            return read[key]

        @cache
        def changed(name: str, schema: pa.Schema) -> tuple[pa.Table, pa.Table] | None:
            if self._before is None:
                return None
            before, after = (
                self._rows(tables, name, schema, touched) for tables in (self._before.tables, self._tables)
            )
            return before, after

        def hours(name: str) -> list[int]:
            return [hour for file in self._tables.get(name, ()) for hour in members(file.hours)]

        inputs = FleetInputs(
            hour_rows, self._facts, self._segments, intake.findings, self._params, changed=changed, hours=hours
        )
        for table in self._catalog.fleet:
            made = table.build(inputs)
            if isinstance(made, FromHour):
                since = frozenset(hour for hour in hours(table.name) if hour >= made.hour)
                files = self._writer.write_small(table.name, made.rows.cast(table.schema), by_hour=True)
                kept = replace_hours(self._tables.get(table.name, ()), since)
                self._tables[table.name] = self._writer.joined(table.name, (*kept, *files))
            else:
                self._tables[table.name] = self._writer.write_small(table.name, made.cast(table.schema))

    def _rows(
        self,
        tables: Mapping[str, tuple[DataFile, ...]],
        name: str,
        schema: pa.Schema,
        hours: frozenset[int] | None = None,
        *,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        files = tables.get(name, ())
        return self._warehouse.rows(files, schema, columns=schema.names, hours=hours, where=where).cast(schema)

    def _commit(self, intake: Intake, is_new: bool) -> Version:
        before = self._before
        version = Version(
            number=self._attempt.number,
            attempt=self._attempt.name,
            created_us=time.time_ns() // 1000,
            now_us=self._options.now_us,
            batch=(before.batch if before else 0) + is_new,
            events=(before.events if before else 0) + intake.events,
            newest_us=max(before.newest_us if before else 0, intake.newest_us),
            tables=self._tables,
            schemas=self._writer.schemas,
        )
        self._warehouse.commit(self._attempt, version)
        self._at_phase("version")
        self._warehouse.publish(self._attempt)
        self._at_phase("pointer")
        self._warehouse.prune()
        self._at_phase("pruned")
        return version

    @contextmanager
    def _timed(self, name: str) -> Generator[None]:
        start = time.perf_counter()
        yield
        self._seconds[name] = round(time.perf_counter() - start, 3)


def _good(segments: pa.Table) -> pa.Table:
    """The segments that are read, as gold sees them."""
    return segments.filter(pc.is_null(segments["reason"]))
