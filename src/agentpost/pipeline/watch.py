"""`pipeline watch`: manifests as a stream of Spark's; each of its batches is the batch of `pipeline run`.

Spark's checkpoint remembers which manifests it has handed over, the ledger which segments are taken: a new checkpoint
loses nothing and counts nothing twice. Between batches the tables are brought up to date once a minute, since time alone
makes things overdue; and now and then the lake is looked through for what the stream has missed.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from urllib.parse import unquote

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from agentpost.pipeline.files import Files
from agentpost.pipeline.run import RunOptions, run_batch
from agentpost.pipeline.warehouse import Snapshot, Warehouse
from agentpost.protocol.errors import Code, Refusal

__all__ = ["Freshness", "WatchOptions", "Watched", "freshness", "watch"]

_REFRESH_SECONDS: Final = 60.0
_SWEEP_SECONDS: Final = 3600.0
_CHECKPOINT: Final = "_watch"
_LOOK_SECONDS: Final = 0.2
# So many manifests at most become one batch: more wait for the next.
MOST_MANIFESTS: Final = 2_000


class WatchOptions(Struct, frozen=True, kw_only=True):
    """`batches` and `until_idle` end it; else it goes on until it is stopped."""

    every_seconds: float = 1.0
    batches: int | None = None
    until_idle: bool = False
    manifests_a_batch: int = MOST_MANIFESTS


class Freshness(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far behind the tables are, in seconds: the fleet's newest event, and the outbox of each node."""

    newest_event_age: float
    node_lag: dict[str, float]


class Watched(Struct, frozen=True, kw_only=True, rename="camel"):
    """A snapshot that a batch has published, and how fresh it is."""

    snapshot: Snapshot
    freshness: Freshness


def watch(
    spark: SparkSession,
    lake: Files,
    warehouse: Warehouse,
    options: WatchOptions,
    *,
    stop: threading.Event,
    now_us: Callable[[], int],
) -> Iterator[Watched]:
    """Publish a snapshot whenever the lake has something new, and once a minute for what time alone changes."""
    query = _stream(spark, lake, warehouse, options)
    seen = None if (before := warehouse.current()) is None else before.number
    count, refreshed, swept = 0, time.monotonic(), time.monotonic()
    try:
        while not stop.wait(_LOOK_SECONDS):
            snapshot = warehouse.current()
            if snapshot is not None and snapshot.number != seen:
                seen, refreshed = snapshot.number, time.monotonic()
                yield Watched(snapshot=snapshot, freshness=freshness(warehouse, snapshot, now_us()))
                count += 1
                if options.batches is not None and count >= options.batches:
                    return
                continue
            if not query.isActive:
                _expect_ended_well(query)
                return
            if time.monotonic() - refreshed > _REFRESH_SECONDS:
                is_sweep = time.monotonic() - swept > _SWEEP_SECONDS
                swept = time.monotonic() if is_sweep else swept
                with contextlib.suppress(Refusal):  # a batch of the stream is under way, which does the same
                    run_batch(spark, lake, warehouse, RunOptions(now_us=now_us()), manifests=None if is_sweep else ())
    finally:
        query.stop()


def freshness(warehouse: Warehouse, snapshot: Snapshot, now_us: int) -> Freshness:
    """How old the newest event in the tables is, and how long ago the outbox of each node was sealed."""
    heads = warehouse.read(snapshot, "completeness", columns=["node", "complete_us", "is_active"]).to_pylist()
    return Freshness(
        newest_event_age=_age(now_us, snapshot.newest_us),
        node_lag={
            row["node"]: _age(now_us, row["complete_us"])
            for row in sorted(heads, key=lambda row: row["node"])
            if row["is_active"] and row["complete_us"] is not None
        },
    )


def _stream(spark: SparkSession, lake: Files, warehouse: Warehouse, options: WatchOptions) -> Any:
    """The names of manifests as they come; each batch of them is one of the pipeline's."""
    source, target = lake.where, warehouse.files.where

    def batch(rows: DataFrame, _number: int) -> None:
        # Over Spark Connect this runs beside the server: it has nothing but what it closes over.
        names = [row["path"] for row in rows.select("path").distinct().collect()]
        manifests = ["manifests/" + unquote(name).rpartition("/manifests/")[2] for name in names]
        files, tables = Files(source), Warehouse(Files(target))
        run_batch(
            rows.sparkSession, files, tables, RunOptions(now_us=time.time_ns() // 1000), manifests=manifests, waits=True
        )

    manifests = (
        spark.readStream.format("text")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.json")
        .option("maxFilesPerTrigger", options.manifests_a_batch)
        .load(lake.url("manifests"))
        .selectExpr("_metadata.file_path as path")
    )
    writer = (
        manifests.writeStream.queryName("agentpost")
        .foreachBatch(batch)
        .option("checkpointLocation", warehouse.files.url(_CHECKPOINT))
    )
    if options.until_idle:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{options.every_seconds} seconds").start()


def _expect_ended_well(query: Any) -> None:
    problem = query.exception()
    if problem is not None:
        raise cast("Exception", problem)


def _age(now_us: int, at_us: int) -> float:
    return round(max(0, now_us - at_us) / 1_000_000, 3)
