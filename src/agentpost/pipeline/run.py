"""One batch: what is new in the lake becomes the next snapshot of all tables. `pipeline run` and `watch` both call this.

    new manifests ─► checked ─► ledger: what is read of each, which hours have to be computed anew
                             ─► silver of the hours they speak of ─► gold of those hours ─► the fleet ─► snapshot

The cost follows what is new. The driver has what a batch bounds: names of files, hours, rows of the ledger in question.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import SparkSession

from agentpost.pipeline.files import Files
from agentpost.pipeline.intake import Intake, take_in
from agentpost.pipeline.params import Params
from agentpost.pipeline.settings import batch_settings, plans_for
from agentpost.pipeline.tables import formulas
from agentpost.pipeline.transform import Tables
from agentpost.pipeline.warehouse import Snapshot, Warehouse

__all__ = ["LOCK", "PHASES", "RunOptions", "RunResult", "run", "run_batch"]

# When a batch may be cut off, in order; tests do it at each.
PHASES: Final = ("begun", "taken_in", "silver", "gold", "fleet", "committed", "published")
LOCK: Final = "LOCK"
SMALL_EVENTS: Final = 200_000


class RunOptions(Struct, frozen=True, kw_only=True):
    """`full` builds everything anew; `since_us` leaves segments that were sealed before for another run."""

    now_us: int
    since_us: int | None = None
    full: bool = False


class RunResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a batch did. `seconds` says where the time went."""

    version: int
    batch: int
    segments: int
    quarantined: int
    retried: int
    events: int
    hours: int
    newest_us: int
    seconds: dict[str, float]


def run(spark: SparkSession, lake: str, *, warehouse: str | None = None, now_us: int | None = None) -> RunResult:
    """Bring the tables of a lake up to date on a session of the caller's: classic, `--remote`, or a cluster's.

    Without `warehouse` the tables are below the lake, in `pipeline/`.
    """
    files = Files(lake)
    tables = Warehouse(files.below("pipeline") if warehouse is None else Files(warehouse))
    options = RunOptions(now_us=time.time_ns() // 1000 if now_us is None else now_us)
    return run_batch(spark, files, tables, options)


def run_batch(
    spark: SparkSession,
    lake: Files,
    warehouse: Warehouse,
    options: RunOptions,
    *,
    manifests: Sequence[str] | None = None,
    at_phase: Callable[[str], None] = lambda _name: None,
    waits: bool = False,
) -> RunResult:
    """Take in what is new and publish a snapshot. Exactly once, whatever happens on the way.

    `manifests` are names that may be new; without, the lake is looked through. With `waits` a batch that is under way
    is waited for, not refused.
    """
    with warehouse.files.locked(LOCK, waits=waits), batch_settings(spark):
        return _Batch(spark, lake, warehouse, options, at_phase).run(manifests)


class _Batch:
    """A batch under way: what it has so far."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Files,
        warehouse: Warehouse,
        options: RunOptions,
        at_phase: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._warehouse = warehouse
        self._options = options
        self._at_phase = at_phase
        self._seconds: dict[str, float] = {}
        self._params = Params(now_us=options.now_us)

    def run(self, manifests: Sequence[str] | None) -> RunResult:
        current = self._warehouse.current()
        before = None if self._options.full else current
        batch = self._warehouse.begin()
        self._at_phase("begun")
        tables = Tables(self._spark, self._lake, self._warehouse, batch, before, current, self._params)
        with self._timed("intake"):
            intake = take_in(tables, manifests, since_us=self._options.since_us, now_us=self._options.now_us)
        self._at_phase("taken_in")
        with plans_for(self._spark, is_small=intake.events < SMALL_EVENTS):
            try:
                with self._timed("silver"):
                    tables.build_silver(intake)
                self._at_phase("silver")
                with self._timed("gold"):
                    tables.build_gold()
                self._at_phase("gold")
            finally:
                tables.release()
            with self._timed("fleet"):
                tables.build_fleet()
            self._at_phase("fleet")
        with self._timed("commit"):
            versions = tables.commit()
            self._at_phase("committed")
            snapshot = self._snapshot(batch.number, tables.before, intake, versions)
            self._warehouse.publish(batch, snapshot, before=current)
        self._at_phase("published")
        return RunResult(
            version=snapshot.number,
            batch=snapshot.batch,
            segments=intake.looked_at,
            quarantined=intake.set_aside,
            retried=intake.retried,
            events=intake.events,
            hours=len(tables.touched),
            newest_us=snapshot.newest_us,
            seconds=self._seconds,
        )

    def _snapshot(self, number: int, before: Snapshot | None, intake: Intake, versions: dict[str, int]) -> Snapshot:
        start = before or Snapshot(number=0, created_us=0, now_us=0)
        return replace(
            start,
            number=number,
            created_us=time.time_ns() // 1000,
            now_us=self._options.now_us,
            batch=start.batch + bool(intake.looked_at),
            events=start.events + intake.events,
            newest_us=max(start.newest_us, intake.newest_us),
            new_events=intake.events,
            new_segments=intake.looked_at,
            seconds=dict(self._seconds),
            tables={**start.tables, **versions},
            formulas=formulas(replace(self._params, now_us=0)),
        )

    @contextmanager
    def _timed(self, name: str) -> Generator[None]:
        start = time.perf_counter()
        yield
        self._seconds[name] = round(time.perf_counter() - start, 3)
