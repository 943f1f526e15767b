"""`agentpost bench mailbox`: a mailbox in a file and over HTTP, every message durable before its call returns.

The limits beside it are APSW's own: one row and one commit each, in the same run on the same disk.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import uvloop

from agentpost.bench.measure import Metric, Say
from agentpost.edges.mailbox.carriers import HttpCarrier
from agentpost.edges.mailbox.serving import serve_http
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxPolicy
from agentpost.mailbox.remote import RemoteMailbox
from agentpost.protocol.mailbox import MailboxMessage
from agentpost.store.database import Database, FileKind

__all__ = ["bench_mailbox"]

_BATCH: Final = 64
_SINGLE: Final = 600
_BATCHED: Final = 64 * 200
_HTTP_CLIENTS: Final = 16
_HTTP_BATCH: Final = 32
_HTTP_ROUNDS: Final = 12
_OPERATIONS: Final = 200
_SMALL: Final = 100
# A day is not enough where a million messages have to be made first on a slow machine.
_POLICY: Final = MailboxPolicy(ttl_seconds=10 * 86_400, in_flight_timeout_seconds=86_400)


def bench_mailbox(*, rounds: int, backlog: int, say: Say) -> list[Metric]:
    """The figures of the mailbox. `backlog` is what the large one has pending, and how many ids it remembers."""
    with tempfile.TemporaryDirectory(prefix="agentpost-bench-") as folder:
        return uvloop.run(_bench(Path(folder), rounds, backlog, say))


async def _bench(root: Path, rounds: int, backlog: int, say: Say) -> list[Metric]:
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    for turn in range(rounds):
        say(f"in process and over HTTP, round {turn + 1} of {rounds}")
        note("raw", _raw_commits(root / f"raw-{turn}.db"))
        async with FileMailbox.open(root / f"mail-{turn}.db", policy=_POLICY) as mailbox:
            for name, value in (await _rates(mailbox)).items():
                note(name, value)
            note("http", await _over_http(mailbox))
    best = {name: max(values) for name, values in figures.items()}
    metrics = [
        Metric.of("enqueue, one by one", best["enqueue"], "1/s", against=best["raw"]),
        Metric.of("dequeue and ack, one by one", best["take"], "1/s", against=best["raw"]),
        Metric.of(f"enqueue, {_BATCH} at a time", best["enqueue_many"], "1/s"),
        Metric.of(f"dequeue and ack, {_BATCH} at a time", best["take_many"], "1/s"),
        Metric.of(f"enqueue, dequeue, ack over HTTP, {_HTTP_CLIENTS} clients", best["http"], "1/s"),
    ]
    return metrics + await _flatness(root, rounds, backlog, say)


def _raw_commits(path: Path) -> float:
    """How many commits of one row a second this disk gives APSW, with nobody else there."""
    database = Database.open_shared(path, FileKind.MAILBOX, busy_timeout_ms=1_000)
    database.run("CREATE TABLE raw (id INTEGER PRIMARY KEY, body BLOB)")
    body = os.urandom(200)
    start = time.perf_counter()
    for number in range(_SINGLE):
        database.run("INSERT INTO raw VALUES (?, ?)", (number, body))
    rate = _SINGLE / (time.perf_counter() - start)
    database.close()
    return rate


async def _rates(mailbox: FileMailbox) -> dict[str, float]:
    single, many = _messages("single", _SINGLE), _messages("many", _BATCHED)
    rates: dict[str, float] = {}

    async def timed(name: str, count: int, work: Awaitable[None]) -> None:
        start = time.perf_counter()
        await work
        rates[name] = count / (time.perf_counter() - start)

    async def enqueue() -> None:
        for message in single:
            await mailbox.enqueue(message)

    async def take() -> None:
        while (message := await mailbox.dequeue("bob")) is not None:
            await mailbox.ack("bob", message.msg_id)

    async def enqueue_many() -> None:
        for at in range(0, len(many), _BATCH):
            await mailbox.enqueue_many(many[at : at + _BATCH])

    async def take_many() -> None:
        while found := await mailbox.dequeue_many("bob", _BATCH):
            await mailbox.ack_many("bob", [each.msg_id for each in found])

    await timed("enqueue", _SINGLE, enqueue())
    await timed("take", _SINGLE, take())
    await timed("enqueue_many", _BATCHED, enqueue_many())
    await timed("take_many", _BATCHED, take_many())
    return rates


async def _over_http(mailbox: FileMailbox) -> float:
    """Messages a second through all three calls; each client has a session of its own, and sends a few at a time."""

    async def client(url: str, number: int) -> None:
        session = f"client-{number}"
        async with RemoteMailbox(HttpCarrier(url)) as remote:
            for turn in range(_HTTP_ROUNDS):
                await remote.enqueue_many(_messages(f"{number}-{turn}", _HTTP_BATCH, to=session))
                found = await remote.dequeue_many(session, _HTTP_BATCH)
                await remote.ack_many(session, [each.msg_id for each in found])

    async with serve_http(mailbox, host="127.0.0.1", port=0, token=None) as url:
        start = time.perf_counter()
        await asyncio.gather(*(client(url, number) for number in range(_HTTP_CLIENTS)))
        return _HTTP_CLIENTS * _HTTP_ROUNDS * _HTTP_BATCH / (time.perf_counter() - start)


async def _flatness(root: Path, rounds: int, backlog: int, say: Say) -> list[Metric]:
    """What an operation costs with `backlog` pending and as many ids remembered, next to one with a hundred."""
    async with contextlib.AsyncExitStack() as stack:
        small = await stack.enter_async_context(FileMailbox.open(root / "small.db", policy=_POLICY))
        large = await stack.enter_async_context(FileMailbox.open(root / "large.db", policy=_POLICY))
        await _fill(small, _SMALL)
        say(f"filling a mailbox with {backlog:,} messages")
        await _fill(large, backlog)
        best: dict[str, tuple[float, float]] = {}
        for turn in range(rounds):
            say(f"small and large, round {turn + 1} of {rounds}")
            of_small, of_large = await _costs(small, f"s{turn}"), await _costs(large, f"l{turn}")
            for name, cost in of_small.items():
                before = best.get(name, (cost, of_large[name]))
                best[name] = (min(before[0], cost), min(before[1], of_large[name]))
    return [
        Metric.of(f"{name} with {backlog:,} pending", on_large, "us", against=on_small)
        for name, (on_small, on_large) in best.items()
    ]


async def _fill(mailbox: FileMailbox, count: int) -> None:
    step = 1_000
    for first in range(0, count, step):
        await mailbox.enqueue_many(_messages(f"fill-{first}", min(step, count - first)))
    # As many ids again that are only remembered.
    for first in range(0, count, step):
        size = min(step, count - first)
        await mailbox.enqueue_many(_messages(f"gone-{first}", size, to="gone"))
        found = await mailbox.dequeue_many("gone", size)
        await mailbox.ack_many("gone", [each.msg_id for each in found])


async def _costs(mailbox: FileMailbox, prefix: str) -> dict[str, float]:
    """Microseconds an operation, each of them durable."""
    fresh = _messages(prefix, _OPERATIONS)

    async def each(calls: Sequence[Callable[[], Awaitable[object]]]) -> float:
        start = time.perf_counter()
        for call in calls:
            await call()
        return (time.perf_counter() - start) / len(calls) * 1e6

    taken: list[str] = []

    async def take() -> None:
        message = await mailbox.dequeue("bob")
        if message is not None:
            taken.append(message.msg_id)

    half = _SMALL // 2
    costs = {
        "enqueue": await each([lambda message=message: mailbox.enqueue(message) for message in fresh]),
        "dequeue": await each([take] * half),
    }
    costs["ack"] = await each([lambda msg_id=msg_id: mailbox.ack("bob", msg_id) for msg_id in taken])
    costs["peek"] = await each([lambda: mailbox.peek("bob", limit=10)] * half)
    return costs


def _messages(prefix: str, count: int, *, to: str = "bob") -> list[MailboxMessage]:
    return [
        MailboxMessage(
            msg_id=f"{prefix}:{number:08d}",
            sender=f"sender-{number % 7}",
            to=to,
            payload="x" * 256,
            created_at=1_700_000_000 + number,
            attempt=0,
        )
        for number in range(count)
    ]
