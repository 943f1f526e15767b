"""Two gateways for `agentpost bench roundtrip`: one served in this process, one in a process of its own, joined."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from agentpost.bench.roundtrip import RECEIVER, RECEIVER_NODE, SENDER, SENDER_NODE, receiver_process
from agentpost.config import Settings
from agentpost.delivery.engine import Engine
from agentpost.edges.garbage import spare_what_stays
from agentpost.edges.sdk.embedded import gateway_in_process
from agentpost.gateway import Gateway
from agentpost.protocol.snapshot import NodeTier

__all__ = ["bench_pair"]

_START_SECONDS: Final = 30.0


@contextlib.asynccontextmanager
async def bench_pair(folder: Path) -> AsyncGenerator[Engine]:
    """The engine of the sender, once it can reach the receiver's agent."""
    settings = Settings(home=folder / "sender", node_id=SENDER_NODE, tier=NodeTier.BACKBONE, listen_port=0)
    async with gateway_in_process(settings) as gateway:
        async with asyncio.timeout(_START_SECONDS):
            invite = await gateway.joining.invite(tier=NodeTier.EDGE, expected_node_id=RECEIVER_NODE, ttl_seconds=120)
        async with receiver_process(folder / "receiver", url=gateway.url, token=invite.token):
            await gateway.engine.agents.add(SENDER, "pull")
            await _wait_for_receiver(gateway)
            # As `agentpost up` does.
            spare_what_stays()
            yield gateway.engine


async def _wait_for_receiver(gateway: Gateway) -> None:
    """Until the receiver's agent is in the room; the link follows the room."""
    known = asyncio.Event()

    def look(_update: bytes, _origin: str) -> None:
        if RECEIVER in gateway.host.room.snapshot().agents:
            known.set()

    gateway.host.room.subscribe(look)
    look(b"", "")
    async with asyncio.timeout(_START_SECONDS):
        await known.wait()
