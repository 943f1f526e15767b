"""The link to a legacy room while a migration runs: y-protocols sync over a WebSocket, again and again (OPS-9).

Knows what the frames are, not what the entries mean: every change is followed by a step of the bridge.
"""

import asyncio
import logging
from typing import Any, Final

from pycrdt import (
    YMessageType,
    create_sync_message,  # pyright: ignore[reportUnknownVariableType] - a document of anything
    create_update_message,
    handle_sync_message,  # pyright: ignore[reportUnknownVariableType] - the same
)
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from agentpost.gateway import Gateway
from agentpost.protocol.errors import Refusal
from agentpost.tasks import TaskOwner
from agentpost.work.migration.phases import Phase

__all__ = ["LegacyRoomLink"]

_log = logging.getLogger(__name__)

_STEP_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 2.0
_IDLE_SECONDS: Final = 5.0
_MAX_FRAME_BYTES: Final = 64 * 1024 * 1024


class LegacyRoomLink:
    """Does nothing until a migration names a room."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks = TaskOwner("legacy")

    def start(self) -> None:
        self._tasks.spawn(self._run(), name="room")

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        bridge = self._gateway.commons.migration
        while True:
            state = bridge.state
            if state.room is None or state.phase is Phase.OFF:
                await asyncio.sleep(_IDLE_SECONDS)
                continue
            try:
                async with connect(state.room, compression=None, max_size=_MAX_FRAME_BYTES) as socket:
                    await self._carry(socket, state.room)
            except (OSError, TimeoutError, ValueError, WebSocketException) as problem:
                _log.warning("the legacy room cannot be reached: %s", str(problem)[:200])
            finally:
                bridge.is_connected = False
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _carry(self, socket: ClientConnection, url: str) -> None:
        """Keep both documents the same, until the room is gone or another one is named."""
        bridge = self._gateway.commons.migration
        doc = bridge.document.doc
        changed: asyncio.Queue[bytes] = asyncio.Queue()
        is_theirs = False

        def on_change(event: Any) -> None:
            if not is_theirs:
                changed.put_nowait(event.update)

        watching = doc.observe(on_change)
        try:
            await socket.send(create_sync_message(doc))
            # All that was written here while nobody listened.
            await socket.send(create_update_message(doc.get_update()))
            while True:
                while not changed.empty():
                    await socket.send(create_update_message(changed.get_nowait()))
                state = bridge.state
                if state.room != url or state.phase is Phase.OFF:
                    return
                try:
                    async with asyncio.timeout(_STEP_SECONDS):
                        frame = await socket.recv(decode=False)
                except TimeoutError:
                    frame = b""
                if frame[:1] == bytes([YMessageType.SYNC]):
                    is_theirs = True
                    try:
                        answer = handle_sync_message(frame[1:], doc)
                    finally:
                        is_theirs = False
                    bridge.is_connected = True
                    if answer is not None:
                        await socket.send(answer)
                if bridge.is_connected:
                    await self._step()
        finally:
            doc.unobserve(watching)

    async def _step(self) -> None:
        try:
            await self._gateway.commons.migration.step()
        except Refusal as refusal:
            _log.warning("the migration waits for its next step: %s", refusal.message)
