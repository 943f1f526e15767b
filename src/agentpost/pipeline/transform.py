"""The tables of a batch under way: read as they were before it, computed with Spark, written, and committed.

A table of the hours is replaced by the file: the rows of touched hours are computed anew, all others of those files are
carried over. Nothing that a reader has open changes.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from agentpost.pipeline.buckets import Buckets, buckets_of, weights_of
from agentpost.pipeline.check_job import LOGGED, check_manifests, read_logs
from agentpost.pipeline.checking import Checked, Claim
from agentpost.pipeline.codes import name_hash
from agentpost.pipeline.delta import TableFile
from agentpost.pipeline.files import Files, Listed
from agentpost.pipeline.frames import bronze_events, bronze_schema, files_frame, local_frame, of_hours
from agentpost.pipeline.gold.deliveries import fold
from agentpost.pipeline.gold.inputs import FleetInputs, HourInputs
from agentpost.pipeline.intake import CHANGE_LOGS, NODE_KEYS, Intake
from agentpost.pipeline.ledger import SEGMENTS, Segment
from agentpost.pipeline.params import Params
from agentpost.pipeline.silver import legs
from agentpost.pipeline.tables import FLEET, GOLD, LEGS, SILVER, FleetTable, SilverTable, formulas
from agentpost.pipeline.warehouse import Batch, Snapshot, Warehouse

__all__ = ["FIRST", "Tables"]

NAMES: Final = pa.schema([("name_hash", pa.int64()), ("name", pa.string())])
_FACTS_NOW: Final = pa.schema(
    [("topic", pa.string()), ("key", pa.string()), ("at_us", pa.int64()), ("value", pa.string())]
)
_FACTS: Final = pa.schema([field for field in LOGGED if field.name != "problem"])
_BACKLOG: Final = pa.schema(
    [
        ("hour", pa.int32()),
        ("node", pa.string()),
        ("minute", pa.int32()),
        ("begun", pa.int64()),
        ("ended", pa.int64()),
        ("waiting", pa.int64()),
        ("growing_since", pa.int32()),
        ("is_alert", pa.bool_()),
    ]
)
# What these are before the first batch has written them.
FIRST: Final = {"segments": SEGMENTS, "facts_now": _FACTS_NOW, "backlog": _BACKLOG}
_BUCKET: Final = "bucket"
_JOBS_AT_ONCE: Final = 4
# What a task adds up has to fit into its share of the memory, however long the history is.
_EVENTS_A_BUCKET: Final = 600_000
_LEAST_BUCKETS: Final = 8  # for a batch that is worth dividing
_SMALL_EVENTS: Final = 200_000
# Tables that grow by a small file with each batch: their files are joined when there are so many.
_MOST_SMALL_FILES: Final = 24
_SMALL_BYTES: Final = 16 * 1024 * 1024


class _Change(Struct, kw_only=True):
    """What a batch does to a table."""

    adds: list[TableFile] = []
    gone: set[str] = set()
    schema: pa.Schema


class Tables:
    """`before` is the snapshot that the batch adds to, None if it computes all anew; `current` the one it replaces."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Files,
        warehouse: Warehouse,
        batch: Batch,
        before: Snapshot | None,
        current: Snapshot | None,
        params: Params,
    ) -> None:
        stale = _stale(before, params)
        self.lake = lake
        self.touched: frozenset[int] = frozenset()
        self._spark = spark
        self._warehouse = warehouse
        self._batch = batch
        # Other formulas of silver: everything comes from the segments again.
        self.before = None if stale & {LEGS, *(table.name for table in SILVER)} else before
        self._all_gold = self.before is not None and bool(stale)
        self._current = current
        self._params = params
        # What the hours say holds at any time.
        self._timeless = replace(params, now_us=0)
        self._changes: dict[str, _Change] = {}
        self._live: dict[str, dict[str, TableFile]] = {}
        self._kept: list[DataFrame] = []

    # What the intake asks for

    def read(
        self, table: str, schema: pa.Schema, *, columns: list[str] | None = None, where: ds.Expression | None = None
    ) -> pa.Table:
        return self._warehouse.read(self.before, table, schema, columns=columns, where=where)

    def check(self, claims: Sequence[Claim], keys: Mapping[str, Sequence[str]]) -> list[Checked]:
        return check_manifests(self._spark, self.lake, claims, keys, now_us=self._params.now_us)

    def read_logs(self, logs: Sequence[Listed]) -> pa.Table:
        """Add the rows of change logs to `facts`, and those that are newer than what is known to `facts_now`."""
        rows = self._keep(read_logs(self._spark, self.lake, logs))
        good = rows.where("problem is null").drop("problem")
        self._write("facts", good.coalesce(1))
        self._join_small("facts")
        told = good.where("topic <> 'session'").select("topic", "key", "at_us", "value")
        known = self._frame_before("facts_now", _FACTS_NOW)
        newest = known.unionByName(told).selectExpr("topic", "key", "struct(at_us, value) as said")
        now = (
            newest.groupBy("topic", "key")
            .agg({"said": "max"})
            .selectExpr("topic", "key", "`max(said)`.at_us as at_us", "`max(said)`.value as value")
        )
        self._write("facts_now", now.coalesce(1), replaces=True)
        about_nodes = rows.where("topic = 'node' or problem is not null").select("log", "key", "value", "problem")
        return cast("pa.Table", about_nodes.toArrow())

    # Silver, gold, the fleet

    def build_silver(self, intake: Intake) -> None:
        """Write what the new segments say of the hours that they speak of, together with what was known of those."""
        self._write_ledger(intake)
        self._names = self._all_names(intake.names)
        planned = intake.planned
        rebuilt = planned.hours
        self.touched = frozenset(hour for each in planned.fresh for hour in each.hours) | rebuilt
        if not self.touched and self.before is not None:
            return
        again = self._speaking_of(rebuilt)
        events = bronze_events(self._spark, self.lake, planned.fresh)
        old_events = bronze_events(self._spark, self.lake, again) if again else None
        self._buckets = self._distribution(planned.fresh, again)
        narrow = of_hours(legs.narrow(events), rebuilt, is_in=False)
        if old_events is not None:
            narrow = narrow.unionByName(of_hours(legs.narrow(old_events), rebuilt))
        fresh = legs.partials(self._distributed(narrow), _BUCKET)
        known = self._known_hours(LEGS, fresh.drop(_BUCKET), rebuilt)
        merged = fresh if known is None else legs.merge(fresh.unionByName(self._distributed(known)), _BUCKET)
        self._legs = self._keep(merged)
        silver: dict[str, DataFrame] = {}
        for table in SILVER:
            silver[table.name] = self._keep(self._merged(table, events, old_events, rebuilt))
        self._silver_tasks = silver["silver_tasks"]
        work: list[Callable[[], None]] = [lambda: self._replace(LEGS, self._legs.drop(_BUCKET))]
        work += [
            lambda name=name, rows=rows: self._replace(name, rows.coalesce(self._few)) for name, rows in silver.items()
        ]
        _all_at_once(work)

    def build_gold(self) -> None:
        """Compute the tables of the touched hours anew."""
        if self._all_gold:
            self._take_all_hours()
        if not self.touched and self.before is not None:
            return
        outboxes = self._frame_after("segments", SEGMENTS).select("node", "epoch").where("node <> ''").distinct()
        deliveries = self._keep(fold(self._legs, self._timeless, _BUCKET))
        inputs = HourInputs(
            legs=self._legs,
            deliveries=deliveries,
            tasks=self._silver_tasks,
            names=self._names,
            outboxes=outboxes,
            params=self._timeless,
        )
        large = GOLD[0]
        work: list[Callable[[], None]] = [lambda: self._replace(large.name, large.build(inputs))]
        for table in GOLD[1:]:
            work.append(lambda table=table: self._replace(table.name, table.build(inputs).coalesce(self._few)))
        _all_at_once(work)

    def build_fleet(self) -> None:
        """Compute the tables of the fleet: what time alone changes is up to date after each batch."""
        since_hour = self._first_changed_hour()
        for tables in (FLEET[:1], FLEET[1:2], FLEET[2:]):
            # Each group is computed from those before it.
            inputs = self._fleet_inputs(since_hour)
            _all_at_once([lambda table=table, inputs=inputs: self._build_fleet(table, inputs) for table in tables])

    def commit(self) -> dict[str, int]:
        """Commit every table that the batch changed. Gives their versions."""
        current = self._current.tables if self._current is not None else {}
        versions: dict[str, int] = {}
        for name, change in sorted(self._changes.items()):
            if name in current and not change.adds and not change.gone and self.before is not None:
                continue
            versions[name] = self._warehouse.commit(
                self._batch, name, before=self._current, adds=change.adds, gone=change.gone, schema=change.schema
            )
        return versions

    def release(self) -> None:
        """Let go of what was kept for the tables of the hours."""
        for rows in self._kept:
            rows.unpersist()
        self._kept.clear()

    def _build_fleet(self, table: FleetTable, inputs: FleetInputs) -> None:
        rows = table.build(inputs).coalesce(1)
        if not table.is_by_hour:
            self._write(table.name, rows, replaces=True)
        elif self.touched:
            live = self._live_before(table.name)
            gone = {path for path, file in live.items() if (file.last_hour or 0) >= inputs.since_hour}
            schema = from_arrow_schema(to_arrow_schema(rows.schema))
            kept = files_frame(self._spark, self._warehouse, table.name, sorted(gone), schema)
            carried = kept.where(f"hour < {inputs.since_hour}").select(*rows.columns)
            self._write(table.name, rows.unionByName(carried).coalesce(1) if gone else rows, gone=gone)
        elif table.name not in (self.before.tables if self.before else {}):
            self._write(table.name, rows)

    def _fleet_inputs(self, since_hour: int) -> FleetInputs:
        def after(name: str) -> DataFrame:
            return self._frame_after(name, FIRST.get(name, pa.schema([])))

        return FleetInputs(
            segments=after("segments"),
            facts=after("facts_now"),
            names=self._names,
            outboxes=after("segments").select("node", "epoch").where("node <> ''").distinct(),
            throughput=after("throughput"),
            delivery_minutes=after("delivery_minutes"),
            delivery_findings=after("delivery_findings"),
            open_deliveries=after("open_deliveries"),
            task_findings=after("task_findings"),
            backlog=after("backlog"),
            completeness=after("completeness"),
            params=self._params,
            since_hour=since_hour,
        )

    # Hours

    def _distribution(self, fresh: Sequence[Segment], again: Sequence[Segment]) -> Buckets:
        weights = weights_of((each.hours, each.events) for each in (*fresh, *again))
        events = sum(weights.values())
        self._few = 1 if events < _SMALL_EVENTS else 2
        least = 1 if events < _SMALL_EVENTS else _LEAST_BUCKETS
        return buckets_of(weights, events_a_bucket=_EVENTS_A_BUCKET, least=least)

    def _distributed(self, rows: DataFrame) -> DataFrame:
        told = rows.withColumn(_BUCKET, sf.expr(self._buckets.expression))
        return told.repartitionById(self._buckets.count, sf.col(_BUCKET))

    def _merged(
        self, table: SilverTable, events: DataFrame, old_events: DataFrame | None, rebuilt: frozenset[int]
    ) -> DataFrame:
        fresh = of_hours(table.partials(events), rebuilt, is_in=False)
        if old_events is not None:
            fresh = fresh.unionByName(of_hours(table.partials(old_events), rebuilt))
        known = self._known_hours(table.name, fresh, rebuilt)
        return fresh if known is None else table.merge(fresh.unionByName(known))

    def _known_hours(self, table: str, like: DataFrame, rebuilt: frozenset[int]) -> DataFrame | None:
        """What is known of the touched hours that are not computed anew from their segments."""
        wanted = self.touched - rebuilt
        paths = [path for path, file in self._live_before(table).items() if _speaks_of(file, wanted)]
        if not paths:
            return None
        rows = files_frame(self._spark, self._warehouse, table, paths, like.schema)
        return of_hours(rows, wanted).select(*like.columns)

    def _speaking_of(self, hours: frozenset[int]) -> list[Segment]:
        """Every segment that something is read of and that speaks of these hours, as the ledger is after the batch."""
        if not hours:
            return []
        rows = self._frame_after("segments", SEGMENTS).where(
            f"size(slice_first) > 0 and arrays_overlap(hours, array({', '.join(map(str, sorted(hours)))}))"
        )
        return [Segment.of(row) for row in cast("pa.Table", rows.toArrow()).to_pylist()]

    def _take_all_hours(self) -> None:
        """Other formulas of gold: all hours of silver, with what the batch has added to it."""
        legs_after = self._frame_after(LEGS, pa.schema([]))
        hours = legs_after.select("hour").distinct().toArrow()["hour"].to_pylist()
        counts = {hour: 1 for hour in hours}
        self.touched = self.touched | frozenset(hours)
        self._few = 2
        self._buckets = buckets_of(counts, events_a_bucket=max(1, len(hours) // _LEAST_BUCKETS))
        self._legs = self._keep(self._distributed(legs_after))
        self._silver_tasks = self._frame_after("silver_tasks", pa.schema([]))

    def _first_changed_hour(self) -> int:
        """The first hour in which anything began or ended to wait otherwise than before; far in the future if none."""
        if not self.touched:
            return 2**31 - 1
        rows = of_hours(self._frame_after("delivery_minutes", pa.schema([])), self.touched).select("minute")
        old = self._live_before("delivery_minutes")
        paths = [path for path, file in old.items() if _speaks_of(file, self.touched)]
        if paths:
            schema = self._changes["delivery_minutes"].schema
            before = files_frame(self._spark, self._warehouse, "delivery_minutes", paths, from_arrow_schema(schema))
            rows = rows.unionByName(of_hours(before, self.touched).select("minute"))
        first = rows.agg({"minute": "min"}).toArrow().to_pylist()[0]["min(minute)"]
        return 2**31 - 1 if first is None else int(first) // 60

    # Tables

    def _replace(self, table: str, rows: DataFrame) -> None:
        """Write these rows of the touched hours in the place of what was there."""
        gone = {path for path, file in self._live_before(table).items() if _speaks_of(file, self.touched)}
        if gone:
            old = files_frame(self._spark, self._warehouse, table, sorted(gone), rows.schema)
            carried = of_hours(old, self.touched, is_in=False).select(*rows.columns)
            rows = rows.unionByName(carried.coalesce(max(1, len(gone) // 2)))
        self._write(table, rows, gone=gone)

    def _write(self, table: str, rows: DataFrame, *, gone: Iterable[str] = (), replaces: bool = False) -> None:
        """Run what these rows are made of. With `replaces` they are all of the table."""
        rows.write.mode("append").parquet(self._warehouse.files.url(f"{table}/{self._batch.name}"))
        change = self._change(table, to_arrow_schema(rows.schema))
        change.adds += [
            file
            for file in self._warehouse.written(self._batch, table)
            if file.path not in {a.path for a in change.adds}
        ]
        change.gone |= set(self._live_before(table)) if replaces else set(gone)

    def _append(self, table: str, rows: pa.Table) -> None:
        """Add rows that the driver has."""
        change = self._change(table, rows.schema)
        change.adds += self._warehouse.write(self._batch, table, rows)
        self._join_small(table)

    def _join_small(self, table: str) -> None:
        """Join the small files of a table that grows with each batch, when there are many."""
        live = {path: file for path, file in self._live_before(table).items() if path not in self._changes[table].gone}
        small = [file for file in live.values() if file.size_bytes < _SMALL_BYTES]
        if len(small) < _MOST_SMALL_FILES:
            return
        change = self._changes[table]
        files = self._warehouse.files
        parts = [
            ds.dataset(files.at(f"{table}/{file.path}"), filesystem=files.system, format="parquet").to_table()
            for file in small
        ]
        joined = pa.concat_tables(parts, promote_options="default")
        change.adds += self._warehouse.write(self._batch, table, joined)
        change.gone |= {file.path for file in small}

    def _change(self, table: str, schema: pa.Schema) -> _Change:
        if table not in self._changes:
            # What all is computed anew from takes the place of all that was there.
            gone = set() if self.before is not None else set(self._warehouse.live(self._current, table))
            self._changes[table] = _Change(schema=schema, gone=gone, adds=[])
        return self._changes[table]

    def _write_ledger(self, intake: Intake) -> None:
        planned = intake.planned
        rows = pa.Table.from_pylist([each.row() for each in planned.rows], SEGMENTS)
        change = self._change("segments", SEGMENTS)
        if planned.replaced:
            # The rows beside those that are replaced stay, in a new file.
            kept: list[pa.Table] = [rows]
            names = pa.array(sorted(planned.replaced), pa.string())
            for path in self._live_before("segments"):
                files = self._warehouse.files
                found = ds.dataset(files.at(f"segments/{path}"), filesystem=files.system, format="parquet").to_table()
                is_old = pc.is_in(found["manifest"], value_set=names)
                if pc.any(is_old).as_py():
                    kept.append(found.filter(pc.invert(is_old)).cast(SEGMENTS))
                    change.gone.add(path)
            rows = pa.concat_tables(kept)
        self._append("segments", rows)
        self._append("change_logs", intake.change_logs)
        self._append("node_keys", intake.node_keys)
        if "facts_now" not in self._changes and self.before is None:
            for name, schema in (("facts_now", _FACTS_NOW), ("facts", _FACTS)):
                self._change(name, schema)

    def _all_names(self, said: frozenset[str]) -> DataFrame:
        """Every name by its hash, with those that this batch brings."""
        known = set(
            self.read(
                "names", NAMES, columns=["name"], where=ds.field("name").isin(pa.array(sorted(said), pa.string()))
            )["name"].to_pylist()
        )
        new = pa.table({"name": pa.array(sorted(said - known), pa.string())})
        hashed = cast(
            "pa.Table", local_frame(self._spark, new).selectExpr(f"{name_hash('name')} as name_hash", "name").toArrow()
        )
        self._append("names", hashed.cast(NAMES))
        return self._frame_after("names", NAMES)

    def _frame_before(self, table: str, schema: pa.Schema) -> DataFrame:
        paths = sorted(self._live_before(table))
        return files_frame(self._spark, self._warehouse, table, paths, from_arrow_schema(schema))

    def _frame_after(self, table: str, schema: pa.Schema) -> DataFrame:
        """A table as it is after the batch, committed or not."""
        change = self._changes.get(table)
        live = self._live_before(table)
        if change is not None:
            paths = [path for path in live if path not in change.gone] + [file.path for file in change.adds]
            return files_frame(self._spark, self._warehouse, table, sorted(paths), from_arrow_schema(change.schema))
        found = self._warehouse.open(self.before, table)
        schema = schema if found is None else self._warehouse.schema(found)
        return files_frame(self._spark, self._warehouse, table, sorted(live), from_arrow_schema(schema))

    def _live_before(self, table: str) -> dict[str, TableFile]:
        if table not in self._live:
            self._live[table] = self._warehouse.live(self.before, table)
        return self._live[table]

    def _keep(self, rows: DataFrame) -> DataFrame:
        self._kept.append(rows.persist())
        return self._kept[-1]


def _stale(before: Snapshot | None, params: Params) -> set[str]:
    """The tables that were computed with other formulas than these."""
    if before is None:
        return set()
    return {name for name, found in formulas(replace(params, now_us=0)).items() if before.formulas.get(name) != found}


def _speaks_of(file: TableFile, hours: Iterable[int]) -> bool:
    """Whether a file may have rows of these hours."""
    first, last = file.first_hour, file.last_hour
    return first is None or last is None or any(first <= hour <= last for hour in hours)


def _all_at_once(work: Sequence[Callable[[], None]]) -> None:
    """Do all of it side by side: small jobs of Spark wait more than they work."""
    with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result()
