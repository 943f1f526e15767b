"""`agentpost bench crowd`: many gateways as processes on this machine, and mail from every agent to every other.

One gateway is the seed; the others can dial only that, so their mail goes through it. The load is open: a message is
sent when its time has come, whatever became of those before it, and its time counts from there. Sealing, signed heads
and FULL sync are on, as always. `edges/bench_node` is the program of each process; it is told what to do line by line.
"""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Final

from agentpost.bench.measure import Metric, Say
from agentpost.delivery.engine import Engine
from agentpost.delivery.ports import Content, Engagement
from agentpost.delivery.publish import SendRequest
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal

__all__ = ["HANDLER", "ARRIVED_MS", "CrowdNode", "bench_crowd", "note_arrival", "send_for"]

HANDLER: Final = "agentpost.bench.crowd:note_arrival"
_GOAL_P95_MS: Final = 1_000.0
_STARTED_AT_ONCE: Final = 4
# How long a step of one process may take: on a small machine twenty gateways start slowly.
_STEP_SECONDS: Final = 120.0
_ANSWER_BYTES: Final = 64 * 1024 * 1024

# Of every message that an agent of this process got: how long after its time. The receiver's half of the measurement.
ARRIVED_MS: Final[list[float]] = []


async def note_arrival(engagement: Engagement) -> None:
    """The agent of the crowd: notes how long the message took, says nothing."""
    due_ns = int(engagement.content.body or 0)
    ARRIVED_MS.append((time.monotonic_ns() - due_ns) / 1e6)


async def send_for(
    engine: Engine, *, senders: Sequence[str], targets: Sequence[str], rate: float, seconds: float
) -> list[float]:
    """Send from these agents to those for a while: how long each took until the sender saw its outcome, in ms."""
    chance = random.Random(engine.store.node_id)  # noqa: S311 - the same traffic every time, nothing secret
    seen_ms: list[float] = []

    async def one(due_ns: int) -> None:
        target = chance.choice(targets)
        request = SendRequest(
            source_agent_id=chance.choice(senders), to_agents=(target,), content=Content(body=str(due_ns))
        )
        _, last_words = await engine.outcomes.send(request)
        if last_words[target].signal is not DeliverySignal.PROCESSED:
            raise Refusal(Code.INTERNAL, f"a message ended with {last_words[target].signal}")
        seen_ms.append((time.monotonic_ns() - due_ns) / 1e6)

    # Whoever starts at the same instant as all others would measure their collision.
    start_ns = time.monotonic_ns() + int(chance.random() / rate * 1e9)
    async with asyncio.TaskGroup() as group:
        for number in range(round(rate * seconds)):
            due_ns = start_ns + int(number / rate * 1e9)
            await asyncio.sleep(max((due_ns - time.monotonic_ns()) / 1e9, 0))
            group.create_task(one(due_ns))
    return seen_ms


class CrowdNode:
    """One gateway process, told what to do over a pipe."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self.name = name
        self.pid = process.pid

    async def ask(self, do: str, **words: Any) -> Any:
        """Tell the process to do something, and wait for its answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise Refusal(Code.INTERNAL, f"{self.name} cannot be told anything")
        self._process.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
        try:
            async with asyncio.timeout(_STEP_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise Refusal(Code.UNAVAILABLE, f"{self.name} did not {do} in time") from None
        if not line:
            raise Refusal(Code.UNAVAILABLE, f"{self.name} ended while it was to {do}")
        answer = json.loads(line)
        if answer["problem"] is not None:
            raise Refusal(Code.INTERNAL, f"{self.name} could not {do}: {answer['problem']}")
        return answer["answer"]


def bench_crowd(*, gateways: int, agents: int, rate: float, seconds: float, say: Say) -> list[Metric]:
    """How long delivery takes in a crowd. `agents` and `rate` are those of all gateways together."""
    return asyncio.run(_crowd(gateways, agents, rate, seconds, say))


async def _crowd(gateways: int, agents: int, rate: float, seconds: float, say: Say) -> list[Metric]:
    names = [f"crowd-{number}" for number in range(gateways)]
    hosted = {name: [f"agent-{name}-{n}" for n in range(number, agents, gateways)] for number, name in enumerate(names)}
    with tempfile.TemporaryDirectory(prefix="agentpost-crowd-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            say(f"starting {gateways} gateways with {agents} agents")
            nodes = await _mesh(stack, Path(folder), names)
            for node in nodes:
                await node.ask("host", agents=hosted[node.name])
            say("waiting until everybody knows everybody")
            await asyncio.gather(*(node.ask("wait", agents=agents) for node in nodes))
            say(f"{rate:g} messages/s for {seconds:g} s")
            cpu_before = await _cpu_seconds(nodes)
            before = time.monotonic()
            answers = await asyncio.gather(
                *(
                    node.ask(
                        "send",
                        senders=hosted[node.name],
                        targets=[agent for name in names if name != node.name for agent in hosted[name]],
                        rate=rate / gateways,
                        seconds=seconds,
                    )
                    for node in nodes
                )
            )
            took = time.monotonic() - before
            cpu_seconds = await _cpu_seconds(nodes) - cpu_before
            arrivals = [await node.ask("arrived") for node in nodes]
    arrived = sorted(ms for each in arrivals for ms in each)
    seen = sorted(ms for answer in answers for ms in answer)
    return [
        Metric.of("messages", len(seen), "messages"),
        Metric.of("seen by their senders", len(seen) / took, "messages/s", against=rate),
        *_percentiles("sent to processed", arrived),
        *_percentiles("sent to seen by the sender", seen),
        Metric.of("processor time for a message, all gateways together", cpu_seconds / len(seen) * 1000, "ms"),
    ]


async def _cpu_seconds(nodes: Sequence[CrowdNode]) -> float:
    return sum([await node.ask("cpu") for node in nodes])


def _percentiles(what: str, sorted_ms: Sequence[float]) -> list[Metric]:
    if not sorted_ms:
        raise Refusal(Code.INTERNAL, "nothing arrived")
    return [
        Metric.of(
            f"{what}, p{share}",
            sorted_ms[min(len(sorted_ms) * share // 100, len(sorted_ms) - 1)],
            "ms",
            against=_GOAL_P95_MS if share == 95 else None,
        )
        for share in (50, 95, 99)
    ]


async def _mesh(stack: contextlib.AsyncExitStack, folder: Path, names: Sequence[str]) -> list[CrowdNode]:
    """The gateways, all joined through the first."""
    slots = asyncio.Semaphore(_STARTED_AT_ONCE)
    seed = await stack.enter_async_context(_node(folder, names[0], "backbone"))
    url = (await seed.ask("start"))["url"]
    tokens = {name: (await seed.ask("invite", node=name))["token"] for name in names[1:]}
    others = [await stack.enter_async_context(_node(folder, name, "edge")) for name in names[1:]]

    async def join(node: CrowdNode) -> None:
        async with slots:
            await node.ask("start")
            await node.ask("join", url=url, token=tokens[node.name])

    await asyncio.gather(*map(join, others))
    return [seed, *others]


@contextlib.asynccontextmanager
async def _node(folder: Path, name: str, tier: str) -> AsyncGenerator[CrowdNode]:
    command = [sys.executable, "-m", "agentpost.edges.bench_node", str(folder / name), name, tier]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, limit=_ANSWER_BYTES
    )
    try:
        yield CrowdNode(process, name)
    finally:
        # What they have is thrown away with the folder: nobody needs to wait until they have drained.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
