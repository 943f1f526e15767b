"""A gateway inside this process, for programs on a machine where none runs. One home has one gateway, as ever."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from agentpost.config import Settings
from agentpost.edges.http.server import serve
from agentpost.edges.runtimes import make_runtime
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Refusal
from agentpost.tasks import TaskOwner
from agentpost.world import SystemChance, SystemClock

__all__ = ["gateway_in_process"]

_START_SECONDS: Final = 30.0


@asynccontextmanager
async def gateway_in_process(settings: Settings) -> AsyncGenerator[Gateway]:
    """The gateway, served, for as long as the block runs."""
    gateway = Gateway(settings, clock=SystemClock(), chance=SystemChance(), runtimes=make_runtime)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    tasks = TaskOwner("embedded")

    async def run() -> None:
        try:
            await serve(gateway, on_ready=ready.set_result)
        except Refusal as refusal:
            if ready.done():
                raise
            ready.set_exception(refusal)

    running = tasks.spawn(run(), name="gateway")
    try:
        async with asyncio.timeout(_START_SECONDS):
            await ready
        yield gateway
    finally:
        gateway.request_stop()
        await asyncio.wait({running})
