"""`agentpost bench mailbox`: a mailbox in a file and over HTTP, every message durable before its call returns.

The limits beside it are APSW's own: one row and one commit each, in the same run on the same disk.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import uvloop

from agentpost.bench.measure import Metric, Say, seconds_of
from agentpost.edges.mailbox.carriers import HttpCarrier
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
_HTTP_ROUNDS: Final = 24
_OPERATIONS: Final = 200
_SMALL: Final = 100
# About as often as the mailbox does it.
_RAW_CHECKPOINT_EVERY: Final = 1_000
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
        async with FileMailbox.open(root / f"alone-{turn}.db", policy=_POLICY, blocking=True) as mailbox:
            for name, value in (await _one_by_one(mailbox)).items():
                note(name, value)
        async with FileMailbox.open(root / f"mail-{turn}.db", policy=_POLICY) as mailbox:
            for name, value in {**await _one_by_one(mailbox), **await _batched(mailbox)}.items():
                note(f"thread {name}", value)
        note("raw", _raw_commits(root / f"raw-again-{turn}.db"))
        async with _server(root / f"http-{turn}.db") as (url, token):
            note("http", await _over_http(url, token, batch=_BATCH, rounds=_HTTP_ROUNDS))
            note("http single", await _over_http(url, token, batch=1, rounds=_HTTP_ROUNDS))
    best = {name: max(values) for name, values in figures.items()}
    raw = best["raw"]
    clients = f"over HTTP, {_HTTP_CLIENTS} clients"
    metrics = [
        Metric.of("enqueue, one by one", best["enqueue"], "1/s", against=raw),
        Metric.of("dequeue and ack, one by one", best["take"], "1/s", against=raw),
        Metric.of("enqueue, one by one, in a thread", best["thread enqueue"], "1/s", against=raw),
        Metric.of("dequeue and ack, one by one, in a thread", best["thread take"], "1/s", against=raw),
        Metric.of(f"enqueue, {_BATCH} at a time", best["thread enqueue_many"], "1/s"),
        Metric.of(f"dequeue and ack, {_BATCH} at a time", best["thread take_many"], "1/s"),
        Metric.of(f"enqueue, dequeue, ack {clients}, {_BATCH} at a time", best["http"], "1/s"),
        Metric.of(f"enqueue, dequeue, ack {clients}, one at a time", best["http single"], "1/s"),
    ]
    return metrics + await _flatness(root, rounds, backlog, say)


def _raw_commits(path: Path) -> float:
    """How many commits of one row a second this disk gives APSW, with nobody else there."""
    database = Database.open_shared(path, FileKind.MAILBOX, busy_timeout_ms=1_000)
    database.run("CREATE TABLE raw (id INTEGER PRIMARY KEY, body BLOB)")
    body = os.urandom(200)

    def add(first: int) -> None:
        for number in range(first, first + _SINGLE):
            database.run("INSERT INTO raw VALUES (?, ?)", (number, body))
            if number % _RAW_CHECKPOINT_EVERY == 0:
                database.checkpoint()

    # Once around, because a log that grows is slower than one that is written over.
    database.sync_commits(False)
    add(0)
    database.sync_commits(True)
    rate = _SINGLE / seconds_of(lambda: add(_SINGLE))
    database.close()
    return rate


async def _one_by_one(mailbox: FileMailbox) -> dict[str, float]:
    async def enqueue() -> None:
        for message in single:
            await mailbox.enqueue(message)

    async def take() -> None:
        while (message := await mailbox.dequeue("bob")) is not None:
            await mailbox.ack("bob", message.msg_id)

    single = _messages("warm", _SINGLE)
    await mailbox.enqueue_many(single)
    await take()
    single = _messages("single", _SINGLE)
    return {"enqueue": await _rate(_SINGLE, enqueue()), "take": await _rate(_SINGLE, take())}


async def _batched(mailbox: FileMailbox) -> dict[str, float]:
    many = _messages("many", _BATCHED)

    async def enqueue_many() -> None:
        for at in range(0, len(many), _BATCH):
            await mailbox.enqueue_many(many[at : at + _BATCH])

    async def take_many() -> None:
        while found := await mailbox.dequeue_many("bob", _BATCH):
            await mailbox.ack_many("bob", [each.msg_id for each in found])

    return {
        "enqueue_many": await _rate(_BATCHED, enqueue_many()),
        "take_many": await _rate(_BATCHED, take_many()),
    }


async def _rate(count: int, work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return count / (time.perf_counter() - start)


@contextlib.asynccontextmanager
async def _server(file: Path) -> AsyncGenerator[tuple[str, str]]:
    """A mailbox served by a process of its own, as `agentpost mailbox serve` does; gives its address and its token."""
    command = (sys.executable, "-m", "agentpost", "mailbox", "serve", "--file", str(file))
    server = await asyncio.create_subprocess_exec(
        *command, "--http", "127.0.0.1:0", "-o", "json", stdout=asyncio.subprocess.PIPE
    )
    try:
        if server.stdout is None:
            raise RuntimeError("the server has no output")
        served: dict[str, str] = json.loads(await server.stdout.readline())
        yield served["http"], await asyncio.to_thread(_first_line, served["tokenFile"])
    finally:
        server.terminate()
        await server.wait()


def _first_line(path: str) -> str:
    return Path(path).read_text().strip()


async def _over_http(url: str, token: str, *, batch: int, rounds: int) -> float:
    """Messages a second through all three calls; each client has a session of its own."""

    async def once(remote: RemoteMailbox, session: str, turn: int) -> None:
        await remote.enqueue_many(_messages(f"{batch}-{turn}", batch, to=session))
        found = await remote.dequeue_many(session, batch)
        await remote.ack_many(session, [each.msg_id for each in found])

    async def client(remote: RemoteMailbox, session: str) -> None:
        for turn in range(1, rounds + 1):
            await once(remote, session, turn)

    async with contextlib.AsyncExitStack() as stack:
        remotes = {f"client-{n}": RemoteMailbox(HttpCarrier(url, token=token)) for n in range(_HTTP_CLIENTS)}
        for remote in remotes.values():
            await stack.enter_async_context(remote)
        # Connected, and everything loaded.
        await asyncio.gather(*(once(remote, session, 0) for session, remote in remotes.items()))
        everybody = asyncio.gather(*(client(remote, session) for session, remote in remotes.items()))
        return await _rate(_HTTP_CLIENTS * rounds * batch, everybody)


async def _flatness(root: Path, rounds: int, backlog: int, say: Say) -> list[Metric]:
    """What an operation costs with `backlog` pending and as many ids remembered, next to one with a hundred."""
    best: dict[str, list[float]] = {}
    async with contextlib.AsyncExitStack() as stack:
        # In the caller's thread, because waking another one would hide what an operation costs.
        small, large = [
            await stack.enter_async_context(FileMailbox.open(root / name, policy=_POLICY, blocking=True))
            for name in ("small.db", "large.db")
        ]
        await _fill(small, _SMALL)
        say(f"filling a mailbox with {backlog:,} messages")
        await _fill(large, backlog)
        for turn in range(rounds):
            say(f"small and large, round {turn + 1} of {rounds}")
            for name, costs in (await _costs((small, large), f"turn-{turn}")).items():
                best[name] = [min(pair) for pair in zip(costs, best.get(name, costs), strict=True)]
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


async def _costs(mailboxes: Sequence[FileMailbox], prefix: str) -> dict[str, list[float]]:
    """Microseconds an operation in each mailbox, every one durable.

    The mailboxes take turns, and the median counts, because a busy disk has fits.
    """
    fresh = _messages(prefix, _OPERATIONS)
    taken: list[list[str]] = [[] for _ in mailboxes]

    async def take(which: int) -> None:
        message = await mailboxes[which].dequeue("bob")
        if message is not None:
            taken[which].append(message.msg_id)

    operations: dict[str, Callable[[int, int], Awaitable[object]]] = {
        "enqueue": lambda which, turn: mailboxes[which].enqueue(fresh[turn]),
        "dequeue": lambda which, _turn: take(which),
        "ack": lambda which, turn: mailboxes[which].ack("bob", taken[which][turn]),
        "peek": lambda which, _turn: mailboxes[which].peek("bob", limit=10),
    }
    costs: dict[str, list[float]] = {}
    for name, operation in operations.items():
        took: list[list[float]] = [[] for _ in mailboxes]
        for turn in range(_OPERATIONS):
            for which, times in enumerate(took):
                start = time.perf_counter()
                await operation(which, turn)
                times.append(time.perf_counter() - start)
        costs[name] = [median(times) * 1e6 for times in took]
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
