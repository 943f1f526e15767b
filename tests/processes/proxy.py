"""A TCP proxy in front of a gateway. Holds, delays, cuts, repeats and swaps what passes; alters nothing.

    with Proxy(port) as proxy:
        ...                      # clients go to proxy.url
        proxy.hold(UP)           # what clients send is kept, as on a link that loses everything in one direction
        proxy.release()          # the link is healed: all of it comes now, in order, as after retransmissions
        proxy.abandon()          # open connections are silent for good; whoever dials anew gets through
        proxy.cut()              # open connections end, in the middle of whatever they were carrying

Nothing of the above is felt by the senders: they may write as much as they like.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Final, Self

from agentpost.delivery.frames import Frame, decode_frame

__all__ = ["DOWN", "UP", "Meddle", "Proxy"]

UP: Final = "up"
"""From the client to the gateway."""
DOWN: Final = "down"

# What becomes of one frame of a mail link: any number of frames, in bytes as they came.
Meddle = Callable[[str, Frame, bytes], list[bytes]]

_LINK: Final = b"GET /ansible/link "
_END_OF_HEAD: Final = b"\r\n\r\n"
_BINARY: Final = 2
_PATIENCE_SECONDS: Final = 30


class Proxy:
    """Made for one gateway, in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self.url = ""
        self.delay_seconds = 0.0
        # How much each connection carries, each way; all there is if None.
        self.bytes_per_second: float | None = None
        self.meddle: Meddle | None = None
        self.dialled = 0
        self._target_port = target_port
        self._connections: set[_Connection] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()

    def hold(self, *directions: str) -> None:
        """Keep what goes in these directions, or in both, on every connection there is and will be."""
        self._do(self._set_gates(directions or (UP, DOWN), is_open=False))

    def release(self) -> None:
        """Let everything through that was held, and what follows."""
        self._do(self._set_gates((UP, DOWN), is_open=True))

    def abandon(self) -> None:
        """Let the connections that are open be silent for ever: half open at both ends."""
        self._do(self._abandon())

    def cut(self) -> None:
        """End the connections that are open. What was on its way is lost."""
        self._do(self._cut())

    # In the proxy's own thread

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    async def _start(self) -> None:
        self._gates = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        await self._set_gates((UP, DOWN), is_open=True)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _set_gates(self, directions: tuple[str, ...], *, is_open: bool) -> None:
        for direction in directions:
            if is_open:
                self._gates[direction].set()
            else:
                self._gates[direction].clear()

    async def _abandon(self) -> None:
        for connection in self._connections:
            connection.is_abandoned = True

    async def _cut(self) -> None:
        for connection in tuple(self._connections):
            connection.abort()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.dialled += 1
        if (task := asyncio.current_task()) is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            to_client.transport.abort()
            return
        connection = _Connection(self, to_client, to_server)
        self._connections.add(connection)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(connection.pump(UP, client, to_server, self._gates[UP]))
                pumps.create_task(connection.pump(DOWN, server, to_client, self._gates[DOWN]))
        finally:
            self._connections.discard(connection)
            connection.abort()


class _Connection:
    def __init__(self, proxy: Proxy, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter) -> None:
        self.is_abandoned = False
        self.is_link = False
        self._proxy = proxy
        self._writers = (to_client, to_server)

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def pump(
        self, direction: str, source: asyncio.StreamReader, target: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        """Read on, whatever becomes of it: a sender does not feel that the link is bad."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        splitter = _Splitter(self)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write(target, waiting, gate))
            free_at = 0.0
            with contextlib.suppress(OSError):
                while chunk := await source.read(65536):
                    for piece in self._pieces(direction, splitter, chunk):
                        free_at = max(free_at, self._due()) + self._seconds_for(piece)
                        waiting.put_nowait((free_at, piece))
            # The end of a connection travels like everything else: held, and unseen on one that was abandoned.
            waiting.put_nowait((max(free_at, self._due()), b""))
            await writing

    def _seconds_for(self, piece: bytes) -> float:
        rate = self._proxy.bytes_per_second
        return 0.0 if rate is None else len(piece) / rate

    def _pieces(self, direction: str, splitter: "_Splitter", chunk: bytes) -> Iterator[bytes]:
        meddle = self._proxy.meddle
        for raw, payload in splitter.split(direction, chunk):
            yield from [raw] if meddle is None or payload is None else meddle(direction, decode_frame(payload), raw)

    def _due(self) -> float:
        """When what came just now is to arrive. A long way takes time; as much as before travels on it at once."""
        return asyncio.get_running_loop().time() + self._proxy.delay_seconds

    async def _write(
        self, target: asyncio.StreamWriter, waiting: "asyncio.Queue[tuple[float, bytes]]", gate: asyncio.Event
    ) -> None:
        while True:
            due_at, piece = await waiting.get()
            await gate.wait()
            await asyncio.sleep(max(0.0, due_at - asyncio.get_running_loop().time()))
            if self.is_abandoned:
                if piece:
                    continue
                # One end has given it up; the other is left to find out by itself.
                return
            with contextlib.suppress(OSError, RuntimeError):
                if not piece:
                    target.close()
                    return
                target.write(piece)
                await target.drain()


class _Splitter:
    """The bytes of one direction as pieces: the frames of a mail link each by itself, all else as it came."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._buffer = b""
        self._is_past_head = False

    def split(self, direction: str, chunk: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        self._buffer += chunk
        if not self._is_past_head:
            if direction == UP and self._buffer.startswith(_LINK):
                self._connection.is_link = True
            head, found, rest = self._buffer.partition(_END_OF_HEAD)
            if not self._connection.is_link or not found:
                # Not a link, or not yet: nothing is kept back for long, and heads come in one piece.
                yield self._buffer, None
                self._buffer = b""
                return
            self._is_past_head, self._buffer = True, rest
            yield head + found, None
        while (size := _frame_bytes(self._buffer)) is not None:
            raw, self._buffer = self._buffer[:size], self._buffer[size:]
            yield raw, _payload(raw)


def _frame_bytes(data: bytes) -> int | None:
    """How long the WebSocket frame is that `data` begins with; None if it is not all there (RFC 6455, 5.2)."""
    if len(data) < 2:
        return None
    length, at = data[1] & 0x7F, 2
    if length >= 126:
        wide = 2 if length == 126 else 8
        if len(data) < at + wide:
            return None
        length, at = int.from_bytes(data[at : at + wide], "big"), at + wide
    size = at + (4 if data[1] & 0x80 else 0) + length
    return size if len(data) >= size else None


def _payload(raw: bytes) -> bytes | None:
    """What a binary frame says; None for the WebSocket's own."""
    if raw[0] & 0x0F != _BINARY:
        return None
    length = raw[1] & 0x7F
    at = 2 + (0 if length < 126 else 2 if length == 126 else 8)
    if not raw[1] & 0x80:
        return raw[at:]
    mask, body = raw[at : at + 4], raw[at + 4 :]
    key = (mask * (len(body) // 4 + 1))[: len(body)]
    return (int.from_bytes(body, "big") ^ int.from_bytes(key, "big")).to_bytes(len(body), "big")
