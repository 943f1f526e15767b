"""A mailbox over WebSocket: each frame is one JSON-RPC message. Speaks ASGI."""

from typing import Any, cast

from litestar.types import Receive, Send

from agentpost.edges.mailbox.rpc import RpcConnection
from agentpost.mailbox.interface import ServedMailbox

__all__ = ["serve_websocket"]


async def serve_websocket(mailbox: ServedMailbox, receive: Receive, send: Send) -> None:
    """Serve one connection that was let in already, until it ends."""
    await send(cast(Any, {"type": "websocket.accept", "subprotocol": None, "headers": []}))

    async def write(data: bytes) -> bool:
        try:
            await send(cast(Any, {"type": "websocket.send", "text": data.decode(), "bytes": None}))
        except (OSError, RuntimeError):
            # It went away.
            return False
        return True

    connection = RpcConnection(mailbox, write)
    try:
        while True:
            event = cast("dict[str, Any]", await receive())
            if event["type"] == "websocket.disconnect":
                return
            if event["type"] == "websocket.receive":
                text = event.get("text")
                await connection.receive(event.get("bytes") or b"" if text is None else text.encode())
    finally:
        await connection.close()
