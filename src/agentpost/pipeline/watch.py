"""`pipeline watch`: the same batch as `pipeline run`, again and again on a warm session, as segments come in."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct
from pyspark.sql import SparkSession

from agentpost.pipeline.files import Files
from agentpost.pipeline.hours import Catalog
from agentpost.pipeline.run import RunOptions, RunResult, run_batch
from agentpost.pipeline.warehouse import Warehouse

__all__ = ["Freshness", "WatchOptions", "Watched", "watch"]

# Time itself changes what the tables say: something may have become overdue although nothing came in.
_REFRESH_SECONDS: Final = 60.0


class WatchOptions(Struct, frozen=True, kw_only=True):
    """`batches` and `until_idle` end it; else it goes on until somebody stops it."""

    every_seconds: float = 1.0
    batches: int | None = None
    until_idle: bool = False


class Freshness(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far behind the tables are, in seconds: the fleet's newest event, and that of each node."""

    newest_event_age: float
    node_lag: dict[str, float]


class Watched(Struct, frozen=True, kw_only=True, rename="camel"):
    """One batch and the state after it."""

    run: RunResult
    freshness: Freshness


def watch(
    spark: SparkSession,
    lake: Files,
    warehouse: Warehouse,
    options: WatchOptions,
    *,
    stop: threading.Event,
    now_us: Callable[[], int],
    catalog: Catalog | None = None,
) -> Iterator[Watched]:
    """Run a batch whenever the lake has something new, and once a minute for what time alone changes."""
    seen: object = None
    count, last_run = 0, 0.0
    while not stop.is_set():
        found = _listing(lake)
        if found != seen or time.monotonic() - last_run > _REFRESH_SECONDS:
            is_idle = found == seen
            if is_idle and options.until_idle:
                return
            result = run_batch(spark, lake, warehouse, RunOptions(now_us=now_us()), catalog=catalog)
            seen, last_run = found, time.monotonic()
            yield Watched(run=result, freshness=freshness(warehouse, now_us()))
            count += 1
            if options.batches is not None and count >= options.batches:
                return
        elif options.until_idle:
            return
        stop.wait(options.every_seconds)


def freshness(warehouse: Warehouse, now_us: int) -> Freshness:
    """How old the newest event in the tables is, by node."""
    version = warehouse.require()
    segments = warehouse.read(version, "segments", columns=["node", "newest_us"])
    newest: dict[str, int] = {}
    for row in segments.to_pylist():
        newest[row["node"]] = max(newest.get(row["node"], 0), row["newest_us"])
    return Freshness(
        newest_event_age=_age(now_us, version.newest_us),
        node_lag={node: _age(now_us, at) for node, at in sorted(newest.items())},
    )


def _age(now_us: int, at_us: int) -> float:
    return round(max(0, now_us - at_us) / 1_000_000, 3)


def _listing(lake: Files) -> frozenset[Any]:
    return frozenset((*lake.listing("manifests"), *lake.listing("facts")))
