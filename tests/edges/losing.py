"""A relay in front of a gateway that loses answers: the call gets through, and its caller hears nothing."""

import asyncio
import contextlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["LosingRelay"]

_PATIENCE_SECONDS = 30


class LosingRelay:
    """Listens on a Unix socket, or on a port, and passes everything on to a gateway's.

    relay.lose(2)    # the next two answers are swallowed, and their connections closed
    relay.lost       # how many were
    """

    def __init__(self, to: Path | tuple[str, int], *, at: Path | None = None) -> None:
        self._to, self._at = to, at
        self._left = 0
        self.lost = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)

    def lose(self, answers: int) -> None:
        self._left = answers

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_PATIENCE_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()

    async def _start(self) -> None:
        if self._at is not None:
            self._server: asyncio.Server = await asyncio.start_unix_server(self._serve, self._at)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(OSError):
                await self._relay(reader, writer)
        finally:
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_port = isinstance(self._to, tuple)
        dialling = asyncio.open_connection(*self._to) if is_port else asyncio.open_unix_connection(self._to)
        there, onward = await dialling
        sending = asyncio.ensure_future(self._copy(reader, onward))
        try:
            await self._answer(there, writer)
        finally:
            sending.cancel()
            onward.close()
            await asyncio.gather(sending, return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if self._left > 0:
                # The gateway has done what it was asked, and says so: nobody hears it.
                self._left -= 1
                self.lost += 1
                return
            writer.write(data)
            await writer.drain()
