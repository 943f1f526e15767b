"""Progress bars from what Spark says of its own stages, for a person at a terminal."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["PhaseBars", "phase_bars"]

_EVERY_SECONDS: Final = 0.2
# What a run does once it has reached a phase.
_NEXT: Final = {
    "begun": "checking new segments",
    "taken_in": "silver: what they say of each delivery",
    "silver": "gold: the hours they speak of",
    "hour_gold": "gold: the fleet",
    "fleet_gold": "publishing",
    "compact_begun": "joining files",
    "compact_written": "publishing",
}


class PhaseBars:
    """A bar for each phase; the tasks of Spark's stages fill it."""

    def __init__(self, spark: SparkSession, progress: Progress) -> None:
        self._spark = spark
        self._progress = progress
        self._bar: TaskID | None = None
        self._stages: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def at_phase(self, name: str) -> None:
        """A run has come this far: end its bar, begin the next."""
        with self._lock:
            if self._bar is not None:
                total = max(1, sum(total for _, total in self._stages.values()))
                self._progress.update(self._bar, total=total, completed=total)
            self._stages.clear()
            title = _NEXT.get(name)
            self._bar = None if title is None else self._progress.add_task(title, total=None)

    def poll(self) -> None:
        """Ask Spark what its stages do."""
        tracker = cast("Any", self._spark.sparkContext.statusTracker())
        found = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
        with self._lock:
            if self._bar is None:
                return
            for stage, info in found.items():
                if info is not None:
                    self._stages[stage] = (info.numCompletedTasks, info.numTasks)
            for stage in self._stages.keys() - found.keys():
                self._stages[stage] = (self._stages[stage][1], self._stages[stage][1])
            if self._stages:
                done, total = (sum(values) for values in zip(*self._stages.values(), strict=True))
                self._progress.update(self._bar, total=total, completed=done)


@contextmanager
def phase_bars(spark: SparkSession, console: Console) -> Generator[PhaseBars]:
    """Bars while the block runs; they stay unseen where nobody looks."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    stop = threading.Event()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bars = PhaseBars(spark, progress)

        def ask() -> None:
            while not stop.wait(_EVERY_SECONDS):
                try:
                    bars.poll()
                except Exception:  # noqa: BLE001 - a session that ends is no reason to fail: there is nothing to show
                    return

        asker = threading.Thread(target=ask, name="progress", daemon=True)
        if console.is_terminal:
            asker.start()
        try:
            yield bars
        finally:
            stop.set()
            if asker.is_alive():
                asker.join(timeout=2)
