"""The door of the links: a WebSocket for a peer whose ticket the gate has taken already.

The gate is the room's: whoever has no good ticket for links gets an HTTP answer and no connection (AUTH-1).
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from litestar.types import Receive, Send

from agentpost.auth.wire import Entry
from agentpost.delivery.hub import LinkHub
from agentpost.edges.link.carry import LinkConnection
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal

__all__ = ["LINK_PATH", "LinkDoor"]

LINK_PATH: Final = "/ansible/link"
_POLICY_VIOLATION: Final = 1008
_GOING_AWAY: Final = 1001
_TOO_LARGE: Final = 1009


class LinkDoor:
    """One peer that came in. Made without waiting, so that a revocation right after the ticket finds it."""

    def __init__(self, gateway: Gateway, hub: LinkHub, entry: Entry) -> None:
        gateway.admit(entry)
        self._connection = LinkConnection(gateway, hub, entry.node_id)

    def close(self) -> None:
        self._connection.close()

    async def serve(self, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept", "subprotocol": None, "headers": []})

        async def send_frames(frames: Sequence[bytes]) -> None:
            for frame in frames:
                await send({"type": "websocket.send", "bytes": frame, "text": None})

        await self._connection.carry(_frames(receive), send_frames)
        refusal = self._connection.refusal
        code = _GOING_AWAY if refusal is None or refusal.code is Code.UNAVAILABLE else _POLICY_VIOLATION
        # The peer may have gone already, and then there is nobody to tell.
        with contextlib.suppress(RuntimeError, OSError):
            await send({"type": "websocket.close", "code": code, "reason": refusal.code.value if refusal else ""})


async def _frames(receive: Receive) -> AsyncIterator[bytes]:
    while (message := await receive())["type"] == "websocket.receive":
        frame = message.get("bytes")
        if frame is None:
            raise Refusal(Code.MALFORMED, "frames of a link are binary")
        yield frame
    if message["type"] == "websocket.disconnect" and message["code"] == _TOO_LARGE:
        raise Refusal(Code.TOO_LARGE, "a frame so large that it was not read")
