"""The link to a seed, kept up for as long as the seed is there: ticket, WebSocket, frames; again and again.

Knows nothing of how a ticket is got; whoever keeps the link to the seed's room knows.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agentpost.auth.wire import Grant
from agentpost.delivery.frames import MAX_FRAME_BYTES
from agentpost.delivery.hub import LinkHub
from agentpost.edges.link.carry import LinkConnection
from agentpost.edges.link.serve import LINK_PATH
from agentpost.gateway import Gateway
from agentpost.protocol.backoff import RetryPolicy, next_delay_seconds
from agentpost.protocol.errors import Code, Refusal

__all__ = ["CLOSE_SECONDS", "keep_link"]

_log = logging.getLogger(__name__)

_RECONNECT: Final = RetryPolicy(
    base_seconds=0.5, factor=2.0, max_delay_seconds=30.0, max_attempts=1_000_000, jitter_share=0.5
)
# Whoever has been silent for so long that the link is given up does not answer a farewell either.
CLOSE_SECONDS: Final = 1.0
# A link that lasted so long was a good one; the next failure begins to count anew.
_GOOD_AFTER_MS: Final = 60_000


async def keep_link(
    gateway: Gateway, hub: LinkHub, *, url: str, node_id: str, get_ticket: Callable[[], Awaitable[Grant]]
) -> None:
    """Keep a link to the gateway at `url`. Ends only when it is cancelled."""
    attempt = 0
    while True:
        began_ms = gateway.clock.monotonic_ms()
        try:
            await _converse(gateway, hub, url, node_id, await get_ticket())
        except Exception as error:  # noqa: BLE001 - whoever is at the address says what he likes; it is tried again
            _log.warning("mail link to %s at %s: %s", node_id, url, _problem(error))
        if gateway.clock.monotonic_ms() - began_ms >= _GOOD_AFTER_MS:
            attempt = 0
        attempt += 1
        jitter = gateway.chance.fraction()
        await asyncio.sleep(next_delay_seconds(_RECONNECT, attempt=attempt, jitter=jitter))


async def _converse(gateway: Gateway, hub: LinkHub, url: str, node_id: str, grant: Grant) -> None:
    address = url.replace("http", "ws", 1) + LINK_PATH
    headers = {"Authorization": f"Bearer {grant.ws_ticket}"}
    # The link has its own pings, which also say how far each side has read.
    async with connect(
        address,
        additional_headers=headers,
        compression=None,
        max_size=MAX_FRAME_BYTES,
        ping_interval=None,
        close_timeout=CLOSE_SECONDS,
    ) as socket:
        connection = LinkConnection(gateway, hub, node_id)
        await connection.carry(_frames(socket), lambda frames: _send(socket, frames))


async def _send(socket: ClientConnection, frames: Sequence[bytes]) -> None:
    try:
        async with socket.send_context():
            for frame in frames:
                socket.protocol.send_binary(frame)
            # All of them with one call of the kernel, which wakes the peer once. Left to the library, each is its own.
            if not socket.transport.is_closing():
                socket.transport.writelines(socket.protocol.data_to_send())
    except ConnectionClosed as closed:
        raise ConnectionError(str(closed)) from None


async def _frames(socket: ClientConnection) -> AsyncIterator[bytes]:
    try:
        async for frame in socket:
            if isinstance(frame, str):
                raise Refusal(Code.MALFORMED, "frames of a link are binary")
            yield frame
    except ConnectionClosed:
        return  # how it ended makes no difference: it is made anew


def _problem(error: Exception) -> str:
    if isinstance(error, Refusal):
        return error.message
    if isinstance(error, InvalidStatus):
        return f"it answered with status {error.response.status_code}"
    return str(error) or type(error).__name__
