"""What both ends of a link do with an open connection: carry frames until it is over. Knows nothing of handshakes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from agentpost.delivery.hub import LinkHub
from agentpost.delivery.link import PING_EVERY_SECONDS, LinkSession
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Refusal
from agentpost.tasks import TaskOwner

__all__ = ["LinkConnection", "SendFrames"]

_log = logging.getLogger(__name__)

_LAST_WORD_SECONDS: Final = 1.0
# How long what is in no hurry waits for something to go with.
_SOON_SECONDS: Final = 0.002

# Hands frames to the connection, in their order, and waits while that has no room.
SendFrames = Callable[[Sequence[bytes]], Awaitable[None]]


class LinkConnection:
    """One peer on one connection, known to the gateway for as long as it lasts, so that it can be cut off (ROOM-6)."""

    def __init__(self, gateway: Gateway, hub: LinkHub, node_id: str) -> None:
        self.node_id = node_id
        self._gateway = gateway
        self._wake = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None
        self._session: LinkSession = hub.open(node_id, on_wake=self._wake.set, on_wake_soon=self._wake_soon)
        gateway.connections.add(self)

    @property
    def refusal(self) -> Refusal | None:
        """Why the link ended, if for a reason."""
        return self._session.refusal

    def cut(self, refusal: Refusal) -> None:
        """End the connection as soon as the loop comes round."""
        self._session.refuse(refusal)

    def close(self) -> None:
        self._session.close()
        self._gateway.connections.discard(self)

    async def carry(self, frames: AsyncIterator[bytes], send: SendFrames) -> None:
        """Read and write until one of them ends. They do not wait for each other: the peer may be waiting, too."""
        tasks = TaskOwner("link")
        reader = tasks.spawn(self._read(frames), name=f"read {self.node_id}")
        writer = tasks.spawn(self._write(send), name=f"write {self.node_id}")
        ticker = tasks.spawn(self._tick(), name=f"ping {self.node_id}")
        try:
            await asyncio.wait({reader, writer, ticker}, return_when=asyncio.FIRST_COMPLETED)
            if self._session.refusal is not None:
                # The peer is told why, if it listens.
                await asyncio.wait({writer}, timeout=_LAST_WORD_SECONDS)
        finally:
            self.close()
            await tasks.close()
        refusal, audit = self._session.refusal, self._session.audit
        if refusal is not None:
            _log.log(
                logging.INFO if audit is None else logging.WARNING, "link with %s: %s", self.node_id, refusal.message
            )
        if audit is not None:
            # A gateway whose disk failed has nowhere to record it.
            with contextlib.suppress(Refusal):
                await self._gateway.store.record_audit([audit])

    async def _read(self, frames: AsyncIterator[bytes]) -> None:
        try:
            async for frame in frames:
                await self._session.take(frame)
        except Refusal as refusal:
            # What is not the session's own is the gateway's: a full disk, say. It ends the link, too.
            self._session.refuse(refusal)

    async def _write(self, send: SendFrames) -> None:
        # A connection that breaks is no failure; the reader hears of it, and the link is made anew.
        with contextlib.suppress(OSError, RuntimeError):
            await send(self._session.start())
            while True:
                self._wake.clear()
                if self._soon is not None:
                    self._soon.cancel()
                    self._soon = None
                while to_send := self._session.frames_to_send():
                    await send(to_send)
                if self._session.is_closed:
                    return
                await self._wake.wait()

    def _wake_soon(self) -> None:
        if self._soon is None and not self._wake.is_set():
            self._soon = asyncio.get_running_loop().call_later(_SOON_SECONDS, self._wake.set)

    async def _tick(self) -> None:
        while not self._session.is_closed:
            await asyncio.sleep(PING_EVERY_SECONDS)
            try:
                await self._session.tick()
            except Refusal as refusal:
                self._session.refuse(refusal)
