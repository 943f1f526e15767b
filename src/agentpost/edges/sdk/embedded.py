"""A gateway inside this process, for programs on a machine where none runs. One home has one gateway, as ever."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from agentpost.config import Settings
from agentpost.edges.http.server import make_gateway, serve
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal
from agentpost.tasks import TaskOwner

__all__ = ["gateway_in_process"]

_START_SECONDS: Final = 30.0


@asynccontextmanager
async def gateway_in_process(settings: Settings) -> AsyncGenerator[Gateway]:
    """The gateway, served, for as long as the block runs. A start that fails raises what made it fail."""
    gateway = make_gateway(settings)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    tasks = TaskOwner("embedded")

    async def run() -> None:
        try:
            await serve(gateway, on_ready=ready.set_result)
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    running = tasks.spawn(run(), name="gateway")
    try:
        done, _ = await asyncio.wait({ready, running}, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            running.cancel()
            raise Refusal(
                Code.UNAVAILABLE,
                f"the gateway in {settings.home} was not ready within {_START_SECONDS:g} s",
                hint="Look at the log of this program, and whether the disk of the home answers.",
            )
        if not ready.done():
            raise Refusal(Code.UNAVAILABLE, f"the gateway in {settings.home} was stopped while it started")
        await ready
        yield gateway
    finally:
        gateway.request_stop()
        await asyncio.wait({running})
