"""`agentpost bench roundtrip`: sent, accepted, processed, seen by the sender, between two gateway processes.

All guarantees are on: FULL sync on both sides, sealed content, signed heads. The sender's gateway runs in this process,
the receiver's in one of its own, over a real link on loopback. Beside it are the same records written by
hand: plain (`peers/bare`), plain in a gateway's tables (`peers/kept`), and as sealed, chained and signed events
(`peers/guarded`). Where `redis-server` and `nats-server` are installed the same trip goes over them in the same run,
with an accepted and a processed record for each message. Systems take turns, and each is judged by its best round.
"""

import asyncio
import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import uvloop

from agentpost.bench.measure import Metric, Say
from agentpost.bench.peers.bare import BarePair, bare_pair
from agentpost.bench.peers.guarded import guarded_pair
from agentpost.bench.peers.kept import kept_pair
from agentpost.bench.peers.nats import nats_peer, nats_trip
from agentpost.bench.peers.redis import redis_peer, redis_trip
from agentpost.bench.peers.running import find_program
from agentpost.bench.peers.trip import BODY, Trip, median_ms
from agentpost.delivery.engine import Engine
from agentpost.delivery.ports import Content, Engagement
from agentpost.delivery.publish import SendRequest
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal

__all__ = [
    "RECEIVER",
    "RECEIVER_NODE",
    "SENDER",
    "SENDER_NODE",
    "Pair",
    "bench_roundtrip",
    "receiver_process",
    "send_all",
    "settle_at_once",
]

# Two processes in Python that write the records by hand, and how.
_BY_HAND: Final = {
    "bare writes in Python": bare_pair,
    "bare writes in a gateway's tables": kept_pair,
    "sealed and signed by hand": guarded_pair,
}
_WINDOWS: Final = (1, 256, 2_048)
_MESSAGES: Final = {1: 300, 256: 10_000, 2_048: 20_000}
SENDER: Final = "bench-sender"
SENDER_NODE: Final = "bench-a"
RECEIVER: Final = "bench-receiver"
RECEIVER_NODE: Final = "bench-b"

# What the edges bring: a gateway that is served in this process, joined by one in another process. Gives its engine.
Pair = Callable[[Path], contextlib.AbstractAsyncContextManager[Engine]]
Run = Callable[[int, int], Trip]


async def settle_at_once(_engagement: Engagement) -> None:
    """The agent of the receiver: has had it, says nothing."""


def bench_roundtrip(*, rounds: int, pair: Pair, say: Say) -> list[Metric]:
    """The figures of all systems that can run here."""
    found: dict[str, dict[int, Trip]] = {}
    with contextlib.ExitStack() as stack:
        systems: dict[str, Run] = {"agentpost": lambda window, messages: uvloop.run(_ours(pair, window, messages))}
        for name, by_hand in _BY_HAND.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentpost-bench-"))
            systems[name] = _by_hand(stack.enter_context(by_hand(Path(folder))))
        for name, program, client, peer, trip in (
            ("Redis Streams", "redis-server", "redis", redis_peer, redis_trip),
            ("NATS JetStream", "nats-server", "nats", nats_peer, nats_trip),
        ):
            path = find_program(program)
            if path is None:
                say(f"{program} is not installed, so {name} is not measured")
                continue
            if importlib.util.find_spec(client) is None:
                say(f"the Python client {client} is not installed (agentpost[bench]), so {name} is not measured")
                continue
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentpost-bench-"))
            port = stack.enter_context(peer(path, Path(folder)))
            systems[name] = _at(trip, port)
        for turn in range(rounds):
            for window in _WINDOWS:
                for name, run in systems.items():
                    say(f"{name}, {window} under way, round {turn + 1} of {rounds}")
                    _keep_best(found.setdefault(name, {}), run(window, _MESSAGES[window]))
    return [metric for window in _WINDOWS for metric in _metrics(window, found)]


def _by_hand(pair: BarePair) -> Run:
    return lambda window, messages: pair.trip(window=window, messages=messages)


def _at(trip: Callable[..., Trip], port: int) -> Run:
    return lambda window, messages: trip(port, window=window, messages=messages)


def _keep_best(best: dict[int, Trip], trip: Trip) -> None:
    before = best.get(trip.window)
    if before is None or (trip.p50_ms < before.p50_ms if trip.window == 1 else trip.rate > before.rate):
        best[trip.window] = trip


def _metrics(window: int, found: dict[str, dict[int, Trip]]) -> list[Metric]:
    ours = found["agentpost"][window]
    metrics: list[Metric] = []
    for name, trips in found.items():
        trip = trips[window]
        if window == 1:
            metrics.append(Metric.of(f"{name}, p50 of one alone", trip.p50_ms, "ms"))
            against = None if name == "agentpost" else trip.p50_ms
            if against is not None:
                metrics.append(Metric.of(f"agentpost p50 against {name}", ours.p50_ms, "ms", against=against))
        else:
            metrics.append(Metric.of(f"{name}, {window:,} under way", trip.rate, "messages/s"))
            if name != "agentpost":
                metrics.append(
                    Metric.of(f"agentpost against {name}, {window:,}", ours.rate, "messages/s", against=trip.rate)
                )
    return metrics


async def _ours(pair: Pair, window: int, messages: int) -> Trip:
    with tempfile.TemporaryDirectory(prefix="agentpost-bench-") as folder:
        async with pair(Path(folder)) as engine:
            # The first trip opens what later ones share: keys, statements, the window of the link.
            await send_all(engine, window=window, messages=min(window * 2, 500))
            return await send_all(engine, window=window, messages=messages)


async def send_all(engine: Engine, *, window: int, messages: int) -> Trip:
    """Send with `window` messages under way until all are seen as processed."""
    request = SendRequest(source_agent_id=SENDER, to_agents=(RECEIVER,), content=Content(body=BODY))
    took: list[float] = []
    left = messages

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            start = time.perf_counter()
            receipt, last_words = await engine.outcomes.send(request)
            if last_words[RECEIVER].signal is not DeliverySignal.PROCESSED:
                raise Refusal(Code.INTERNAL, f"{receipt.event_id} ended with {last_words[RECEIVER].signal}")
            took.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(window)))
    seconds = time.perf_counter() - start
    return Trip(window=window, messages=len(took), seconds=seconds, p50_ms=median_ms(took))


@contextlib.asynccontextmanager
async def receiver_process(home: Path, *, url: str, token: str) -> AsyncGenerator[None]:
    """A gateway in a process of its own, joined to the one at `url`, with an agent that settles at once."""
    command = [sys.executable, "-m", "agentpost"]
    options = ["--home", str(home)]
    up = [*command, "up", *options, "--node", RECEIVER_NODE, "--tier", "edge", "--listen", "127.0.0.1:0", "-o", "json"]
    process = await asyncio.create_subprocess_exec(*up, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        text = b""
        while process.stdout is not None and not text.endswith(b"}\n"):
            line = await process.stdout.readline()
            if not line:
                raise Refusal(Code.UNAVAILABLE, "the receiver's gateway did not start")
            text += line
        await _run([*command, "join", *options, "--url", url, "--token", token])
        handler = "function=agentpost.bench.roundtrip:settle_at_once"
        options += ["-O", handler, "-O", "maxConcurrent=256", "-O", "idempotent=true"]
        await _run([*command, "agents", "add", RECEIVER, "--runtime", "handler", *options])
        yield
    finally:
        process.terminate()
        await process.wait()


async def _run(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, problem = await process.communicate()
    if process.returncode:
        raise Refusal(Code.UNAVAILABLE, f"{' '.join(command[2:4])} failed: {problem.decode(errors='replace')[:300]}")
