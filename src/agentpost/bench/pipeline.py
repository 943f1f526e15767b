"""`agentpost bench pipeline`: from segments to gold, what a refresh costs, how fresh `watch` is, how fast it starts.

The lakes are simulated, which is measured too. DuckDB computes the lifecycle of the same segments in the same run, on
as many threads.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentpost.bench.measure import Metric, Say, seconds_of
from agentpost.pipeline.files import Files
from agentpost.pipeline.session import LOCAL, open_session, stop_session
from agentpost.pipeline.warehouse import Warehouse
from agentpost.simulate.faults import ALL_RULES
from agentpost.simulate.fleet import release_part, write_fleet
from agentpost.simulate.plan import FleetPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from agentpost.pipeline.run import RunResult

__all__ = ["PARTS", "bench_pipeline"]

PARTS: Final = frozenset({"simulate", "start", "build", "watch", "history"})
_GOAL_SIMULATED: Final = 300_000
_GOAL_RATE: Final = 250_000
_GOAL_MEMORY: Final = 4.0
_GOAL_FRESH: Final = 10.0
_GOAL_FIRST: Final = 30.0
_GOAL_TRAINED: Final = 12.0
# Enough for the plans of much data, and one per cent of it for those of little.
_WARM_UP_EVENTS: Final = 400_000
_TRAINING_SECONDS: Final = 300
# The best of so many builds and refreshes counts: the JVM goes on compiling for a while.
_ROUNDS: Final = 3
_WATCH_SECONDS: Final = 40
_WATCH_RATE: Final = 1000
_SMALL_EVENTS: Final = 3000


def bench_pipeline(*, events: int, history: int, parts: frozenset[str], say: Say) -> list[Metric]:
    """The figures of the pipeline. `history` is how many times longer the long history is."""
    figures: list[Metric] = []
    with tempfile.TemporaryDirectory(prefix="agentpost-bench-") as place:
        root = Path(place)
        if "simulate" in parts:
            figures += _bench_simulate(root, events, say)
        if "start" in parts:
            figures += _bench_start(root, say)
        if parts & {"build", "watch", "history"}:
            with _session(say) as spark:
                _warm_up(spark, root, say)
                if "build" in parts:
                    figures += _bench_build(spark, root, events, say)
                if "watch" in parts:
                    figures += _bench_watch(spark, root, say)
                if "history" in parts:
                    figures += _bench_history(spark, root, events, history, say)
    return figures


def _bench_simulate(root: Path, events: int, say: Say) -> list[Metric]:
    """What `simulate fleet` does when nobody chooses anything but the number of events."""
    say(f"simulating {events:,} events with all faults")
    lake = root / "simulated"
    start = time.perf_counter()
    done = write_fleet(FleetPlan(events=events, faults=ALL_RULES), lake)
    rate = done.events / (time.perf_counter() - start)
    shutil.rmtree(lake)
    return [Metric.of("a fleet simulated", rate, "events/s", against=_GOAL_SIMULATED)]


def _bench_start(root: Path, say: Say) -> list[Metric]:
    """`pipeline run` on a small mesh as people start it: the first time ever, and once the classes are kept."""
    lake = root / "small"
    write_fleet(FleetPlan(events=_SMALL_EVENTS, nodes=3, agents=9, hours=2), lake, workers=1)
    environment = {**os.environ, "AGENTPOST_CACHE": str(root / "cache")}
    seconds: list[float] = []
    for turn in range(3):
        say(f"pipeline run on a small mesh, {'the first time' if not turn else 'again'}")
        shutil.rmtree(lake / "pipeline", ignore_errors=True)
        command = [sys.executable, "-m", "agentpost", "pipeline", "run", "--lake", str(lake), "-o", "json"]
        seconds.append(seconds_of(partial(subprocess.run, command, env=environment, check=True, capture_output=True)))
        if not turn:
            say("waiting for the class archive")
            _wait_for_archive(root / "cache" / "java")
    return [
        Metric.of("pipeline run, small mesh, the first time", seconds[0], "s", against=_GOAL_FIRST),
        Metric.of("the same with the class archive", min(seconds[1:]), "s", against=_GOAL_TRAINED),
    ]


def _wait_for_archive(directory: Path) -> None:
    """The first run leaves a process behind that writes it."""
    deadline = time.monotonic() + _TRAINING_SECONDS
    while time.monotonic() < deadline and not any(file.suffix in (".jsa", ".aot") for file in directory.iterdir()):
        time.sleep(0.5)


def _warm_up(spark: "SparkSession", root: Path, say: Say) -> None:
    say("warming up")
    lake = root / "warm"
    write_fleet(FleetPlan(seed=9, events=_WARM_UP_EVENTS, parts=(0.98, 0.01, 0.01)), lake)
    release_part(lake, 0)
    for _ in range(2):
        _run(spark, lake, full=True)
    for part in (1, 2):
        release_part(lake, part)
        _run(spark, lake)
    shutil.rmtree(lake)


def _bench_build(spark: "SparkSession", root: Path, events: int, say: Say) -> list[Metric]:
    """All of a lake to gold, then one per cent more, each several times; and the lifecycle alone, next to DuckDB."""
    say(f"simulating {events:,} events")
    lake = root / "fleet"
    write_fleet(FleetPlan(events=events, parts=(1 - 0.01 * _ROUNDS, *[0.01] * _ROUNDS)), lake)
    release_part(lake, 0)
    builds: list[RunResult] = []
    for turn in range(_ROUNDS):
        say(f"lake to gold, round {turn + 1} of {_ROUNDS}")
        builds.append(_run(spark, lake, full=True))
    say("lake to gold, watching its memory")
    # Once more, not timed: to add up what a large process has takes a tenth of a core.
    with _peak_memory() as peak:
        _run(spark, lake, full=True)
    refreshes: list[RunResult] = []
    for turn in range(_ROUNDS):
        release_part(lake, turn + 1)
        say(f"one per cent more, round {turn + 1} of {_ROUNDS}")
        refreshes.append(_run(spark, lake))
    full, more = min(builds, key=_seconds), min(refreshes, key=_seconds)
    figures = [
        Metric.of("lake to gold", full.events / _seconds(full), "events/s", against=_GOAL_RATE),
        *(Metric.of(f"of which {name}", value, "s") for name, value in full.seconds.items()),
        Metric.of("peak memory, JVM and Python", peak[0], "GB", against=_GOAL_MEMORY),
        Metric.of("refresh after 1 % more", _seconds(more), "s", against=_seconds(full)),
        *_bench_lifecycle(spark, lake, say),
    ]
    shutil.rmtree(lake)
    return figures


def _seconds(run: "RunResult") -> float:
    return sum(run.seconds.values())


def _bench_lifecycle(spark: "SparkSession", lake: Path, say: Say) -> list[Metric]:
    from agentpost.pipeline.frames import bronze_events
    from agentpost.pipeline.tables import SILVER

    files = Files(str(lake))
    warehouse = Warehouse(files.below("pipeline"))
    segments = warehouse.read(warehouse.require(), "segments").to_pylist()
    used = [row for row in segments if row["slice_first"]]
    deliveries = next(table for table in SILVER if table.name == "deliveries")

    def lifecycle() -> None:
        rows = deliveries.partials(bronze_events(spark, files, used))
        rows.write.format("noop").mode("overwrite").save()

    say("the lifecycle alone, with Spark and with DuckDB")
    ours = min(seconds_of(lifecycle) for _ in range(3))
    theirs = _duckdb_seconds([files.at(row["path"]) for row in used])
    return [] if theirs is None else [Metric.of("lifecycle alone; against DuckDB", ours, "s", against=theirs)]


def _duckdb_seconds(paths: list[str]) -> float | None:
    try:
        import duckdb
    except ImportError:
        return None
    query = (resources("agentpost.bench") / "lifecycle.sql").read_text()
    with duckdb.connect() as connection:
        connection.execute(f"set threads = {os.cpu_count() or 1}")
        text = query.replace("{segments}", "[" + ", ".join(f"'{path}'" for path in paths) + "]")
        # The text is our own file with paths of our own.
        work = f"create or replace temp table lifecycle as {text}"
        return min(seconds_of(lambda: connection.execute(work)) for _ in range(3))


def _bench_history(spark: "SparkSession", root: Path, events: int, times: int, say: Say) -> list[Metric]:
    """The same amount of new events, on a short history and on a long one; the best of several times each."""
    seconds: list[float] = []
    for scale in (1, times):
        total = events * scale
        say(f"a refresh with {total:,} events of history")
        lake = root / f"history-{scale}"
        share = 0.01 / scale
        write_fleet(FleetPlan(events=total, hours=72 * scale, parts=(1 - _ROUNDS * share, *[share] * _ROUNDS)), lake)
        release_part(lake, 0)
        _run(spark, lake)
        seconds.append(min(_next_part_seconds(spark, lake, turn + 1) for turn in range(_ROUNDS)))
        shutil.rmtree(lake)
    return [Metric.of(f"refresh at {times} x the history", seconds[1], "s", against=seconds[0])]


def _next_part_seconds(spark: "SparkSession", lake: Path, part: int) -> float:
    release_part(lake, part)
    return _seconds(_run(spark, lake))


def _bench_watch(spark: "SparkSession", root: Path, say: Say) -> list[Metric]:
    """A segment every second, each with what a busy fleet says in one; how long until gold has it."""
    from agentpost.pipeline.watch import WatchOptions, watch

    say(f"watching {_WATCH_RATE:,} events a second")
    lake = root / "watched"
    plan = FleetPlan(events=_WATCH_RATE * _WATCH_SECONDS, nodes=3, agents=30, hours=1, parts=(1.0,) * _WATCH_SECONDS)
    write_fleet(plan, lake)
    count = release_part(lake, 0)
    # When each part came, and how many segments the lake had then.
    released: list[tuple[float, int]] = []

    def release() -> None:
        total = count
        for part in range(1, _WATCH_SECONDS):
            time.sleep(1)
            total += release_part(lake, part)
            released.append((time.monotonic(), total))

    releaser = threading.Thread(target=release, name="releaser")
    latencies: list[float] = []
    stop = threading.Event()
    files = Files(str(lake))
    warehouse = Warehouse(files.below("pipeline"))
    releaser.start()
    for _ in watch(
        spark, files, warehouse, WatchOptions(every_seconds=0.1), stop=stop, now_us=lambda: plan.end_ms * 1000
    ):
        now = time.monotonic()
        known = warehouse.read(warehouse.require(), "segments", columns=["path"]).num_rows
        latencies += [now - at for at, total in released[len(latencies) :] if total <= known]
        if len(latencies) == _WATCH_SECONDS - 1:
            stop.set()
    releaser.join()
    # An event waits up to a second for the segment that it is in.
    worst = statistics.quantiles(latencies, n=20)[-1] + 1
    return [Metric.of("watch at 1,000 events/s, appended to gold, p95", worst, "s", against=_GOAL_FRESH)]


@contextmanager
def _session(say: Say) -> Generator["SparkSession"]:
    say("starting Spark")
    spark = open_session(master=LOCAL)
    try:
        yield spark
    finally:
        stop_session(spark)


def _run(spark: "SparkSession", lake: Path, *, full: bool = False) -> "RunResult":
    from agentpost.pipeline.run import RunOptions, run_batch

    files = Files(str(lake))
    options = RunOptions(now_us=FleetPlan().end_ms * 1000, full=full)
    return run_batch(spark, files, Warehouse(files.below("pipeline")), options)


@contextmanager
def _peak_memory() -> Generator[list[float]]:
    """The most that this process and all of its children have at once, in GB."""
    peak = [0.0]
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.2):
            peak[0] = max(peak[0], sum(_resident_bytes(pid) for pid in _family(os.getpid())) / 1e9)

    looker = threading.Thread(target=look, name="memory", daemon=True)
    looker.start()
    try:
        yield peak
    finally:
        stop.set()
        looker.join()


def _family(root: int) -> list[int]:
    processes: dict[int, tuple[int, tuple[str, ...]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            processes[int(entry.name)] = int(fields[1]), tuple(fields[20:22])
    family = [root]
    for pid in family:
        # A JVM that is about to start a program has a child for a moment that uses its parent's own memory.
        memory = processes[pid][1] if pid in processes else None
        family += [child for child, (parent, its) in processes.items() if parent == pid and its != memory]
    return family


def _resident_bytes(pid: int) -> int:
    """Memory that is the process's own: what workers share with the one they were forked from counts once."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
