"""`agentpost bench store`: durable appends next to what SQLite itself can do here, and what size does to them.

The limit is measured in the same run, on the same disk, with the same pragmas, into the same table: APSW alone, in one
thread that writes rows which are ready made before the clock starts, in batches of 256, with nobody to answer. In a
second figure that thread encodes and chains the events as well, which tells the price of callers from that of rows.
Limits and store take turns, and each is judged by its best round.
"""

# apsw's type stubs use collections.abc.Buffer, which Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

import asyncio
import gc
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import uvloop
from msgspec.structs import replace

from agentpost.bench.events import NODE_ID, make_events
from agentpost.bench.measure import Metric, Say, seconds_of
from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.heads import next_chain
from agentpost.store.home import Home
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import CHAIN_START

__all__ = ["bench_store"]

T = TypeVar("T")

_BATCH: Final = 256
_INSERT: Final = "INSERT INTO outbox (seq, event_id, chain, body) VALUES (?, ?, ?, ?)"
_CALLERS: Final = (1, 16, 256)
_APPENDS: Final = {1: 400, 16: 6_400, 256: 51_200}
_SMALL_ROWS: Final = 10_000
_GROW_BY: Final = 4_096
_READS: Final = 200


def bench_store(*, rounds: int, rows: int, say: Say) -> list[Metric]:
    """The figures of the durable store. `rows` is the size of the large outbox."""
    with tempfile.TemporaryDirectory(prefix="agentpost-bench-") as folder:
        root = Path(folder)
        return [*_bench_appends(root, rounds, say), *_bench_size(root, rounds, rows, say)]


def _bench_appends(root: Path, rounds: int, say: Say) -> list[Metric]:
    limit = with_making = 0.0
    best = dict.fromkeys(_CALLERS, 0.0)
    for turn in range(rounds):
        say(f"appends, round {turn + 1} of {rounds}")
        limit = max(limit, _raw_rate(root, ready_made=True))
        with_making = max(with_making, _raw_rate(root, ready_made=False))
        for callers in _CALLERS:
            best[callers] = max(best[callers], _run(_append_rate(root, callers)))
    metrics = [
        Metric.of("limit: raw APSW, batches of 256", limit, "events/s"),
        Metric.of("the same thread also encodes and chains", with_making, "events/s"),
    ]
    for callers, rate in best.items():
        name = f"durable appends, {callers} caller{'s' if callers > 1 else ''}"
        metrics.append(Metric.of(name, rate, "events/s", against=limit))
    metrics.append(Metric.of("256 callers, against encoding and chaining", best[256], "events/s", against=with_making))
    return metrics


def _raw_rate(root: Path, *, ready_made: bool) -> float:
    """What one thread with one connection does in batches of 256."""
    home = _new_home(root, "raw")
    _run(_open_and_close(home))
    events = make_events(_APPENDS[256])
    made = list(_rows(events)) if ready_made else []
    connection = apsw.Connection(str(Home(home).database))
    connection.pragma("synchronous", "FULL")

    def write() -> None:
        rows = iter(made) if ready_made else _rows(events)
        while batch := list(itertools.islice(rows, _BATCH)):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, batch)
            connection.execute("COMMIT")

    gc.collect()
    seconds = seconds_of(write)
    connection.close()
    shutil.rmtree(home)
    return len(events) / seconds


def _rows(events: list[MessageEvent]) -> Iterator[tuple[int, str, bytes, bytes]]:
    chain = CHAIN_START
    for seq, event in enumerate(events, start=1):
        body = encode_event(replace(event, seq=seq))
        chain = next_chain(chain, body)
        yield seq, event.event_id, chain, body


async def _append_rate(root: Path, callers: int) -> float:
    """Callers that each append one event, wait until it is durable, and go on with the next."""
    home = _new_home(root, "appends")
    store = _open(home)
    each = _APPENDS[callers] // callers
    events = make_events(callers * each)

    async def call(caller: int) -> None:
        for event in events[caller::callers]:
            await store.append((event,))

    gc.collect()
    start = time.perf_counter()
    await asyncio.gather(*(call(caller) for caller in range(callers)))
    seconds = time.perf_counter() - start
    await store.close()
    shutil.rmtree(home)
    return callers * each / seconds


def _bench_size(root: Path, rounds: int, rows: int, say: Say) -> list[Metric]:
    return _run(_size(root, rounds, rows, say))


async def _size(root: Path, rounds: int, rows: int, say: Say) -> list[Metric]:
    small, large = _open(_new_home(root, "small")), _open(_new_home(root, "large"))
    try:
        await _grow(small, _SMALL_ROWS, None)
        await _grow(large, rows, say)
        append: dict[SqliteStore, list[float]] = {small: [], large: []}
        read: dict[SqliteStore, list[float]] = {small: [], large: []}
        for turn in range(rounds * 4):
            say(f"size, round {turn + 1} of {rounds * 4}")
            for store in (small, large):
                append[store].append(await _append_cost_us(store))
                read[store].append(_read_cost_us(store, seed=turn))
    finally:
        await small.close()
        await large.close()
    return [
        Metric.of(
            f"append at {rows:,} rows, against {_SMALL_ROWS:,}",
            min(append[large]),
            "µs/event",
            against=min(append[small]),
        ),
        Metric.of(
            f"cursor read of 256 at {rows:,} rows, against {_SMALL_ROWS:,}",
            min(read[large]),
            "µs/event",
            against=min(read[small]),
        ),
    ]


async def _grow(store: SqliteStore, rows: int, say: Say | None) -> None:
    while (done := store.head().seq) < rows:
        if say is not None and done % (_GROW_BY * 16) == 0:
            say(f"filling an outbox: {done:,} of {rows:,}")
        await store.append(make_events(min(_GROW_BY, rows - done)))


async def _append_cost_us(store: SqliteStore) -> float:
    """The cost of an event in appends of 256: dominated by the disk, as it should be."""
    batches: list[list[MessageEvent]] = [make_events(_BATCH) for _ in range(8)]
    start = time.perf_counter()
    for batch in batches:
        await store.append(batch)
    return (time.perf_counter() - start) / (8 * _BATCH) * 1e6


def _read_cost_us(store: SqliteStore, *, seed: int) -> float:
    """The cost of an event in reads of 256 from anywhere in the outbox."""
    last = store.head().seq - _BATCH
    where = random.Random(seed)  # noqa: S311 - places to read, not secrets
    starts = [where.randrange(last) for _ in range(_READS)]
    seconds = seconds_of(lambda: [store.read_outbox(start) for start in starts])
    return seconds / (_READS * _BATCH) * 1e6


async def _open_and_close(home: Path) -> None:
    await _open(home).close()


def _open(home: Path) -> SqliteStore:
    return SqliteStore.open(home, node_id=NODE_ID, epoch="bench", now_ms=0)


def _new_home(root: Path, name: str) -> Path:
    home = root / name
    home.mkdir(mode=0o700)
    return home


def _run(work: Coroutine[Any, Any, T]) -> T:
    # The gateway runs on uvloop, so this is what its callers see.
    return uvloop.run(work)
