"""HTTP that waits for a whole request only so long: who sends byte by byte cannot hold connections for ever."""

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["REQUEST_SECONDS", "PatientHttp"]

# From the first byte, or from the connection itself, to the last byte of the body: a megabyte on a poor line.
REQUEST_SECONDS: Final = 30.0
_UNFINISHED: Final = (h11.IDLE, h11.SEND_BODY)


class PatientHttp(H11Protocol):
    """Bytes that arrive do not buy more time; only a whole request does."""

    request_seconds = REQUEST_SECONDS
    _given_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - as uvicorn has it
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A WebSocket has taken the connection over, and is quiet for as long as it likes.
        is_ours = self.transport.get_protocol() is self
        if is_ours and self.conn.their_state in _UNFINISHED:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._given_up is None:
            self._given_up = self.loop.call_later(self.request_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None

    def _give_up(self) -> None:
        self._given_up = None
        if not self.transport.is_closing():
            self.transport.abort()
