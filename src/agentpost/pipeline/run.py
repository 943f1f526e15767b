"""One batch: what is new in the lake becomes a new version of all tables. `pipeline run` and `watch` both call this.

    new segments ─► silver partials of the hours they speak of ─► gold of those hours ─► gold of the fleet ─► version

The cost follows what is new: hours that nothing new speaks of are not touched, whenever what is new arrives.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from agentpost.lake.schema import FACTS
from agentpost.pipeline.checking import Claim, Verdict, check_segment
from agentpost.pipeline.files import Files
from agentpost.pipeline.frames import bronze_events, bronze_schema, frame_of, in_one_part, local_frame
from agentpost.pipeline.gold.names import all_names
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
from agentpost.pipeline.ranges import members, overlaps
from agentpost.pipeline.tables import GOLD, SILVER, GoldInputs, GoldTable, Params, SilverTable
from agentpost.pipeline.warehouse import DataFile, Version, Warehouse, replace_hours, rows_within
from agentpost.pipeline.writing import TableWriter, side_by_side

__all__ = ["LOCK", "PHASES", "SMALL_EVENTS", "Catalog", "RunOptions", "RunResult", "is_brief", "run_batch"]

# When a run may be cut off, in order; tests do it at each.
PHASES: Final = ("begun", "taken_in", "silver", "hour_gold", "fleet_gold", "version", "pointer", "pruned")
# Less than this is checked faster here than it is handed to workers.
CHECK_HERE_BYTES: Final = 24 * 1024 * 1024
# From so many files on that hold the silver of an hour, they are merged.
_MOST_DELTAS: Final = 6
SMALL_EVENTS: Final = 300_000
# What is made of fewer rows is made by one task, and written by the driver.
_FEW_ROWS: Final = 100_000
# What a sealed event takes in its segment, about.
_EVENT_BYTES: Final = 200
_SMALL_PLANS: Final = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
LOCK: Final = "LOCK"
_LOCAL_TABLES: Final = {
    "segments": SEGMENTS,
    "findings": FINDINGS,
    "quarantine": QUARANTINE,
    "facts": FACTS,
    "change_logs": CHANGE_LOGS,
}


class Catalog(NamedTuple):
    """The tables to build."""

    silver: Sequence[SilverTable] = SILVER
    gold: Sequence[GoldTable] = GOLD


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


def is_brief(lake: Files, warehouse: Warehouse, *, full: bool) -> bool:
    """Whether there is so little to take in that a session for it should not be made for speed."""
    version = None if full else warehouse.current()
    known = set(warehouse.read(version, "segments", SEGMENTS, columns=["path"])["path"].to_pylist())
    waiting = sum(item.size for item in lake.listing("outbox") if item.name not in known)
    return waiting < SMALL_EVENTS * _EVENT_BYTES


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
        self._before = None if self._options.full else current
        self._tables: dict[str, tuple[DataFile, ...]] = dict(self._before.tables) if self._before else {}
        schemas = self._before.schemas if self._before else {}
        self._writer = TableWriter(self._spark, self._warehouse, self._attempt, schemas)
        with self._timed("intake"):
            new, intake = self._take_in()
        self._at_phase("taken_in")
        small = intake.events < SMALL_EVENTS
        with _plans_for(self._spark, small=small):
            with self._timed("silver"):
                touched = self._build_silver(intake, small=small)
            self._at_phase("silver")
            with self._timed("hour_gold"):
                self._build_hour_gold(touched, small=small)
            self._at_phase("hour_gold")
            with self._timed("fleet_gold"):
                self._build_fleet_gold()
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
        self._facts = self._in_one_part(pa.concat_tables([known.facts, intake.facts]))
        self._segments = self._in_one_part(_good(pa.concat_tables([known.segments, intake.segments])))
        self._findings = self._in_one_part(intake.findings)
        return new, intake

    def _in_one_part(self, table: pa.Table) -> DataFrame:
        return in_one_part(local_frame(self._spark, table), few=True)

    def _append(self, name: str, known: pa.Table, added: pa.Table) -> None:
        """Add rows to a small table; its files are joined when there are many."""
        files = self._tables.get(name, ())
        if len(files) >= _MOST_DELTAS:
            files, added = (), pa.concat_tables([known, added])
        self._tables[name] = (*files, *self._warehouse.write(self._attempt, name, added))

    def _check(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Check segments: here if it is little, else in the workers of Spark."""
        if sum(claim.manifest.size_bytes for claim in claims) <= CHECK_HERE_BYTES:
            return [check_segment(self._lake, claim) for claim in claims]
        return check_in_workers(self._spark, self._lake.where, claims)

    def _build_silver(self, intake: Intake, *, small: bool) -> frozenset[int]:
        """Write the partials of new events; gives the hours that they speak of."""
        used = [row for row in intake.segments.to_pylist() if row["slice_first"]]
        if not used:
            return frozenset()
        few = intake.events < _FEW_ROWS
        events = in_one_part(bronze_events(self._spark, self._lake, used), few=few)

        def write(table: SilverTable) -> tuple[DataFile, ...]:
            partials = table.partials(events)
            partials = partials.coalesce(1) if small else partials.sortWithinPartitions("hour")
            return self._writer.write(_silver(table), partials, few=few)

        written = side_by_side(write, self._catalog.silver)
        self._new_silver = {_silver(table): files for table, files in zip(self._catalog.silver, written, strict=True)}
        return frozenset(hour for files in written for file in files for hour in members(file.hours))

    def _build_hour_gold(self, touched: frozenset[int], *, small: bool) -> None:
        """Compute the tables of the touched hours anew."""
        if not touched:
            self._learn_schemas()
            return
        for name, files in self._new_silver.items():
            self._tables[name] = (*self._tables.get(name, ()), *files)
        few = self._are_few([_silver(table) for table in self._catalog.silver], touched)
        silver = {table.name: self._merged_silver(table, touched, few=few) for table in self._catalog.silver}
        inputs = self._inputs(silver=silver, hour_gold={})
        hour_tables = [table for table in self._catalog.gold if table.scope == "hour"]

        def write(table: GoldTable | SilverTable) -> None:
            if isinstance(table, SilverTable):
                self._join_deltas(table, silver[table.name], touched)
                return
            rows = table.build(inputs)
            files = self._writer.write(table.name, rows.coalesce(1) if small else rows, few=few)
            self._tables[table.name] = (*replace_hours(self._tables.get(table.name, ()), touched), *files)

        side_by_side(write, [*hour_tables, *self._catalog.silver])

    def _merged_silver(self, table: SilverTable, touched: frozenset[int], *, few: bool) -> DataFrame:
        """All that is known of the touched hours, a row for each key."""
        name = _silver(table)
        files = self._tables[name]
        rows = frame_of(self._spark, self._warehouse, files, self._writer.schema(name), hours=touched)
        rows = in_one_part(rows, few=few)
        # What one run wrote has each key once.
        old = files[: len(files) - len(self._new_silver[name])]
        return table.merge(rows) if any(overlaps(file.hours, touched) for file in old) else rows

    def _are_few(self, tables: Sequence[str], hours: frozenset[int] | None = None) -> bool:
        """Whether these tables have few rows, of these hours if hours are given."""
        return sum(rows_within(self._tables.get(name, ()), hours) for name in tables) < _FEW_ROWS

    def _join_deltas(self, table: SilverTable, merged: DataFrame, touched: frozenset[int]) -> None:
        """Where many runs have written to an hour, one file takes the place of theirs."""
        name = _silver(table)
        counts = Counter(hour for file in self._tables[name] for hour in members(file.hours))
        crowded = frozenset(hour for hour in touched if counts[hour] > _MOST_DELTAS)
        if crowded:
            rows = merged.where(sf.col("hour").isin(*sorted(crowded))).coalesce(1)
            files = self._writer.write(name, rows, part="-joined")
            self._tables[name] = (*replace_hours(self._tables[name], crowded), *files)

    def _build_fleet_gold(self) -> None:
        names = [table.name for table in self._catalog.gold if table.scope == "hour"]
        few = self._are_few(names)

        def rows_of(name: str) -> DataFrame:
            files = self._tables.get(name, ())
            return in_one_part(frame_of(self._spark, self._warehouse, files, self._writer.schema(name)), few=few)

        inputs = self._inputs(silver={}, hour_gold={name: rows_of(name) for name in names})
        fleet_tables = [table for table in self._catalog.gold if table.scope == "fleet"]

        def write(table: GoldTable) -> None:
            rows = table.build(inputs).coalesce(1)
            self._tables[table.name] = self._writer.write(table.name, rows, by_hour=False, few=few)

        side_by_side(write, fleet_tables)

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

    def _inputs(self, *, silver: Mapping[str, DataFrame], hour_gold: Mapping[str, DataFrame]) -> GoldInputs:
        names = all_names(silver.get("names"), self._segments, self._facts)
        return GoldInputs(
            spark=self._spark,
            silver=silver,
            hour_gold=hour_gold,
            facts=self._facts,
            segments=self._segments,
            findings=self._findings,
            # Fetched once: many tables look names up, each of them many times.
            names=local_frame(self._spark, names.toArrow()) if "names" in silver else names,
            params=self._params,
        )

    def _learn_schemas(self) -> None:
        """The schemas of tables that nothing was ever written to: what they would be made of, without a row."""
        missing = [t for t in self._catalog.gold if t.scope == "hour" and t.name not in self._writer.schemas]
        if not missing:
            return
        nothing = self._spark.createDataFrame([], bronze_schema())
        silver = {table.name: table.partials(nothing) for table in self._catalog.silver}
        for name, rows in silver.items():
            self._writer.schemas.setdefault(f"silver_{name}", rows.schema.json())
        inputs = self._inputs(silver=silver, hour_gold={})
        for table in missing:
            self._writer.schemas[table.name] = table.build(inputs).schema.json()

    @contextmanager
    def _timed(self, name: str) -> Generator[None]:
        start = time.perf_counter()
        yield
        self._seconds[name] = round(time.perf_counter() - start, 3)


def _silver(table: SilverTable) -> str:
    return f"silver_{table.name}"


@contextmanager
def _plans_for(spark: SparkSession, *, small: bool) -> Generator[None]:
    """Plans for little data: one partition and no second thoughts, which cost a job for every stage."""
    before = {name: spark.conf.get(name) for name in _SMALL_PLANS}
    for name, value in _SMALL_PLANS.items() if small else ():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or "")


def check_in_workers(spark: SparkSession, lake: str, claims: Sequence[Claim]) -> list[Verdict]:
    """Check segments in Spark's Python workers, the largest first."""
    encode = msgspec.msgpack.encode
    ordered = sorted(claims, key=lambda claim: -claim.manifest.size_bytes)
    context = spark.sparkContext
    parts = min(len(ordered), 4 * context.defaultParallelism)
    # Dealt out like cards, so that each part has its share of the large ones.
    dealt = [ordered[start::parts] for start in range(parts)]
    work = context.parallelize([encode(part) for part in dealt], parts)
    context.setJobDescription("checking segments")
    answers = work.map(lambda part: _check_part(lake, part)).collect()
    decode = msgspec.msgpack.Decoder(list[Verdict]).decode
    return [verdict for answer in answers for verdict in decode(answer)]


def _check_part(lake: str, part: bytes) -> bytes:
    files = Files(lake)
    claims = msgspec.msgpack.decode(part, type=list[Claim])
    return msgspec.msgpack.encode([check_segment(files, claim) for claim in claims])


def _good(segments: pa.Table) -> pa.Table:
    """The segments that are read, as gold sees them."""
    return segments.filter(pc.is_null(segments["reason"]))
