"""One gateway of `agentpost bench crowd`, as a process: does what its stdin says, line by line, and answers on stdout.

It does not import what people type commands with. Nothing else starts it.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from agentpost.bench.crowd import ARRIVED_MS, HANDLER, send_for
from agentpost.config import Settings
from agentpost.edges.http.server import serve
from agentpost.edges.operator_client import OperatorClient
from agentpost.edges.runtimes import make_runtime
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.tasks import TaskOwner
from agentpost.world import SystemChance, SystemClock


class BenchNode:
    """The gateway, and what it can be told."""

    def __init__(self, home: Path, node_id: str, tier: NodeTier) -> None:
        settings = Settings(home=home, node_id=node_id, tier=tier, listen_port=0, attempts_per_address=10_000)
        self._gateway = Gateway(settings, clock=SystemClock(), chance=SystemChance(), runtimes=make_runtime)
        self._tasks = TaskOwner("bench")
        self.commands: dict[str, Callable[..., Awaitable[Any]]] = {
            "start": self._start,
            "invite": self._invite,
            "join": self._join,
            "host": self._host,
            "wait": self._wait,
            "send": self._send,
            "arrived": self._arrived,
            "cpu": self._cpu,
        }

    async def _start(self) -> dict[str, str]:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        running = self._tasks.spawn(serve(self._gateway, on_ready=ready.set_result), name="gateway")
        await asyncio.wait({ready, running}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise Refusal(Code.UNAVAILABLE, "the gateway did not start")
        return {"url": ready.result()}

    async def _invite(self, node: str) -> dict[str, str]:
        made = await self._gateway.joining.invite(tier=NodeTier.EDGE, expected_node_id=node, ttl_seconds=600)
        return {"token": made.token}

    async def _join(self, url: str, token: str) -> Any:
        client = OperatorClient(self._gateway.settings.home)
        return await asyncio.to_thread(client.post, "/operator/join", {"url": url, "token": token})

    async def _host(self, agents: list[str]) -> dict[str, int]:
        options = {"function": HANDLER, "maxConcurrent": 16, "idempotent": True}
        for agent_id in agents:
            await self._gateway.engine.agents.add(agent_id, "handler", options)
        return {"agents": len(agents)}

    async def _wait(self, agents: int) -> dict[str, int]:
        """Until so many agents are in the room."""
        room, known = self._gateway.host.room, asyncio.Event()

        def look(_update: bytes, _origin: str) -> None:
            if len(room.snapshot().agents) >= agents:
                known.set()

        end = room.subscribe(look)
        look(b"", "")
        await known.wait()
        end()
        return {"agents": agents}

    async def _send(self, senders: list[str], targets: list[str], rate: float, seconds: float) -> list[float]:
        return await send_for(self._gateway.engine, senders=senders, targets=targets, rate=rate, seconds=seconds)

    async def _arrived(self) -> list[float]:
        return ARRIVED_MS

    async def _cpu(self) -> float:
        return time.process_time()


async def _obey(node: BenchNode) -> None:
    lines = asyncio.StreamReader(limit=16 * 1024 * 1024)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        words = json.loads(line)
        try:
            said = {"answer": await node.commands[words.pop("do")](**words), "problem": None}
        except (Refusal, ExceptionGroup) as refusal:
            said = {"problem": str(refusal)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _, home, node_id, tier = sys.argv
    uvloop.run(_obey(BenchNode(Path(home), node_id, NodeTier(tier))))
