"""The server of every port that others reach: it waits for nobody for ever, and keeps little for who never reads."""

import contextlib
from collections.abc import Generator
from functools import partial
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from agentpost.edges.http.connections import CONNECTION, ConnectionBudget, Slot
from agentpost.edges.http.patience import PatientHttp

__all__ = ["GuardedServer", "guarded_server"]

_MOST_UNREAD_BYTES: Final = 1024 * 1024
_MOST_FRAGMENTS: Final = 4_096
# A message has this long, and a second more for each so many bytes that have come of it.
_MESSAGE_SECONDS: Final = 10.0
_LEAST_BYTES_A_SECOND: Final = 128 * 1024


class GuardedServer(uvicorn.Server):
    """A uvicorn server that leaves the signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _WebSockets(WebSocketsSansIOProtocol):
    """WebSockets that hold on to no more than they should for a peer that does not read, or never ends a message."""

    # When the message that is not at its end began, and how many bytes have come since.
    _began_at: float | None = None
    _came: int = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.frames and not self.conn.reader.buffer:
            self._began_at = None
            return
        if self._began_at is None:
            self._began_at, self._came = self.loop.time(), 0
            self.loop.call_later(_MESSAGE_SECONDS, self._abort_if_unfinished, self._began_at)
        self._came += len(data)

    def _abort_if_unfinished(self, began_at: float) -> None:
        """End a connection whose peer takes longer over a message than a slow line does: its bytes are kept so long."""
        if self._began_at != began_at or self.transport.is_closing():
            return
        left = began_at + _MESSAGE_SECONDS + self._came / _LEAST_BYTES_A_SECOND - self.loop.time()
        if left <= 0:
            self.transport.abort()
        else:
            self.loop.call_later(left, self._abort_if_unfinished, began_at)

    def connection_lost(self, exc: Exception | None) -> None:
        slot = cast(Slot | None, self.app_state.get(CONNECTION))
        if slot is not None:
            slot.close()
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._abort_if_unread()

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self._abort_if_unread()

    def _abort_if_unread(self) -> None:
        # Closing waits until all is read, and this peer does not read.
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.transport.abort()

    def handle_ping(self) -> None:
        super().handle_ping()
        # Each ping is answered at once; nobody waits for room, because there is nobody who could.
        if self.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        # Their bytes are bounded by the size of a message; empty ones have none.
        if len(self.frames) > _MOST_FRAGMENTS:
            self.transport.abort()


def guarded_server(
    app: Any, *, most_frame_bytes: int, drain_seconds: int, budget: ConnectionBudget | None = None, **where: Any
) -> GuardedServer:
    """A server of an application. `where` is `host` and `port`, unless it gets a socket.

    A port that strangers reach has a budget; the application says by `proven` whose a connection is.
    """
    return GuardedServer(
        uvicorn.Config(
            app,
            **where,
            loop="none",
            lifespan="off",
            log_config=None,
            # Request lines may carry what must not be logged (AUTH-9).
            access_log=False,
            server_header=False,
            # Where a request comes from is what the connection says: limits, audit and the tailnet go by it.
            proxy_headers=False,
            timeout_graceful_shutdown=drain_seconds,
            http=cast(Any, partial(PatientHttp, budget=budget)),
            ws=_WebSockets,
            ws_max_size=most_frame_bytes,
            ws_per_message_deflate=False,
        )
    )
