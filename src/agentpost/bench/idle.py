"""`agentpost bench idle`: what gateways cost that are joined to a mesh and have nothing to do.

The gateways are those of `agentpost up`, each a process; the first is the seed that the others joined. The kernel says
how much processor time and memory each took (`/proc`, so this runs on Linux).
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from agentpost.bench.measure import Metric, Say
from agentpost.protocol.errors import Code, Refusal

__all__ = ["bench_idle"]

_GOAL_CPU_PERCENT: Final = 1.0
_GOAL_MEGABYTES: Final = 120.0
_STARTED_AT_ONCE: Final = 4
# After the last one has joined, everybody hears of everybody, and then there is peace.
_SETTLE_SECONDS: Final = 15.0


class _Cost(Struct, frozen=True, kw_only=True):
    """What one process took."""

    cpu_percent: float
    megabytes: float


def bench_idle(*, meshes: Sequence[int], seconds: float, say: Say) -> list[Metric]:
    """The cost of a seed and of the most expensive other gateway, in meshes of these sizes."""
    if not Path("/proc/self/stat").exists():
        raise Refusal(Code.UNAVAILABLE, "this bench asks /proc what a process took, which this system does not have")
    return [metric for gateways in meshes for metric in asyncio.run(_idle(gateways, seconds, say))]


async def _idle(gateways: int, seconds: float, say: Say) -> list[Metric]:
    with tempfile.TemporaryDirectory(prefix="agentpost-idle-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            say(f"starting {gateways} gateways")
            pids = await _mesh(stack, Path(folder), gateways)
            await asyncio.sleep(_SETTLE_SECONDS)
            say(f"watching them for {seconds:g} s")
            before = [_cpu_seconds(pid) for pid in pids]
            start = time.monotonic()
            await asyncio.sleep(seconds)
            took = time.monotonic() - start
            costs = [
                _Cost(cpu_percent=(_cpu_seconds(pid) - was) / took * 100, megabytes=_megabytes(pid))
                for pid, was in zip(pids, before, strict=True)
            ]
    seed, others = costs[0], costs[1:]
    return [
        *_metrics(f"seed of {gateways}", seed.cpu_percent, seed.megabytes),
        *_metrics(
            f"gateway of {gateways}",
            max(cost.cpu_percent for cost in others),
            max(cost.megabytes for cost in others),
        ),
    ]


def _metrics(what: str, cpu_percent: float, megabytes: float) -> list[Metric]:
    return [
        Metric.of(f"{what}, processor", cpu_percent, "% of a core", against=_GOAL_CPU_PERCENT),
        Metric.of(f"{what}, memory", megabytes, "MB", against=_GOAL_MEGABYTES),
    ]


async def _mesh(stack: contextlib.AsyncExitStack, folder: Path, gateways: int) -> list[int]:
    names = [f"idle-{number}" for number in range(gateways)]
    slots = asyncio.Semaphore(_STARTED_AT_ONCE)
    seed_pid, url = await stack.enter_async_context(_gateway(folder / names[0], names[0], "backbone"))

    async def join(name: str) -> int:
        home = folder / name
        async with slots:
            pid, _ = await stack.enter_async_context(_gateway(home, name, "edge"))
            invite = await _run("invite", "--home", str(folder / names[0]), "--node", name)
            await _run("join", "--home", str(home), "--url", url, "--token", invite["token"])
            return pid

    return [seed_pid, *await asyncio.gather(*map(join, names[1:]))]


@contextlib.asynccontextmanager
async def _gateway(home: Path, node: str, tier: str) -> AsyncGenerator[tuple[int, str]]:
    """The pid and the URL of a gateway that is up."""
    up = ["up", "--home", str(home), "--node", node, "--tier", tier, "--listen", "127.0.0.1:0", "-o", "json"]
    up += ["--attempts-per-address", "10000"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agentpost", *up, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        text = b""
        while process.stdout is not None and not text.endswith(b"}\n"):
            line = await process.stdout.readline()
            if not line:
                raise Refusal(Code.UNAVAILABLE, f"the gateway {node} did not start")
            text += line
        yield process.pid, json.loads(text)["url"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _run(*words: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agentpost", *words, "-o", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, problem = await process.communicate()
    if process.returncode:
        raise Refusal(Code.UNAVAILABLE, f"agentpost {words[0]} failed: {problem.decode(errors='replace')[:300]}")
    return json.loads(output)


def _cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken, in its own code and in the kernel."""
    # The second field is the name, in brackets, and may hold anything; what follows it is numbers.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise Refusal(Code.UNAVAILABLE, f"the process {pid} has ended")
