"""HTTP with an end to every wait: for a request, for the answer to a stranger, and for a caller that does not read.

It also tells an application whether an answer reached its caller, as far as a connection can know (`Connection`).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentpost.edges.http.connections import CONNECTION, ConnectionBudget, Slot
from agentpost.protocol.errors import Code, Refusal

__all__ = ["HEADER_SECONDS", "REQUEST_SECONDS", "UNREAD_SECONDS", "Connection", "PatientHttp"]

# From the first byte, or from the connection itself, to the end of the headers.
HEADER_SECONDS: Final = 10.0
# To the last byte of the body: a megabyte on a poor line.
REQUEST_SECONDS: Final = 30.0
# How long a request of a caller that has not authenticated may be worked on. The first one may load a library.
_ANSWER_SECONDS: Final = 120.0
# How long a caller may take nothing of what it is sent.
UNREAD_SECONDS: Final = 60.0
_LAST_LOOK_SECONDS: Final = 0.1
_CONNECTION: Final = "agentpost.connection"
_UNFINISHED: Final = (h11.IDLE, h11.SEND_BODY)


def _full() -> bytes:
    refusal = Refusal(Code.RATE_LIMITED, "too many connections from this address", hint="Close some, and try again.")
    body = msgspec.json.encode(refusal.to_wire())
    head = f"HTTP/1.1 {refusal.status} Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


_FULL: Final = _full()


class Connection:
    """The connection of a request. An answer is delivered once the caller sends its next request or hangs up in good
    order; it is lost if the connection ends before the whole answer was written, or is reset: a caller that dies with
    bytes of the answer unread resets it.
    """

    def __init__(self, *, is_watched: bool = True) -> None:
        self._is_watched = is_watched
        self.gone = asyncio.Event()
        self._waiting: list[tuple[Callable[[], None], Callable[[], None]]] = []

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> "Connection":
        """That of a request. Where another server took the request, an answer counts as delivered at once."""
        state: Mapping[str, Any] = scope.get("state") or {}
        return state.get(_CONNECTION) or cls(is_watched=False)

    def tell(self, *, delivered: Callable[[], None], lost: Callable[[], None]) -> None:
        """Call one of these, once, as soon as it is known of the answer to the present request."""
        if not self._is_watched:
            delivered()
        elif self.gone.is_set():
            lost()
        else:
            self._waiting.append((delivered, lost))

    def answer_was_read(self) -> None:
        waiting, self._waiting = self._waiting, []
        for delivered, _ in waiting:
            delivered()

    def ended(self, *, in_good_order: bool) -> None:
        self.gone.set()
        if in_good_order:
            self.answer_was_read()
        waiting, self._waiting = self._waiting, []
        for _, lost in waiting:
            lost()


class PatientHttp(H11Protocol):
    """Bytes that arrive do not buy more time; only a whole request does. With a budget, each connection has a place."""

    header_seconds = HEADER_SECONDS
    request_seconds = REQUEST_SECONDS
    unread_seconds = UNREAD_SECONDS
    _given_up: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _slot: Slot | None = None

    def __init__(self, *args: Any, budget: ConnectionBudget | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._connection = Connection()
        self.app_state = {**self.app_state, _CONNECTION: self._connection}
        if budget is not None:
            self._slot = Slot(budget, self._end)
            # Every scope of this connection has it, that of a WebSocket too.
            self.app_state = {**self.app_state, CONNECTION: self._slot}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - as uvicorn has it
        super().connection_made(transport)
        if self._slot is not None and not self._slot.open(self.client[0] if self.client else ""):
            transport.write(_FULL)
            transport.close()
            return
        self._wait(self.header_seconds)

    def data_received(self, data: bytes) -> None:
        if self._slot is not None:
            self._slot.add_bytes(len(data))
            if not self._slot.is_open:
                return
        if self._is_answered:
            self._connection.answer_was_read()
        had_headers = self.conn.their_state is h11.SEND_BODY
        super().data_received(data)
        # A WebSocket has taken the connection over, and is quiet for as long as it likes.
        if self.transport.get_protocol() is not self:
            self._stop_waiting()
            self._note_work()
        elif self.conn.their_state is h11.SEND_BODY:
            if not had_headers:
                self._stop_waiting()
            self._wait(self.request_seconds)
        elif self.conn.their_state is h11.IDLE:
            self._wait(self.header_seconds)
        else:
            self._note_work()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_waiting()
        if self.transport.is_closing():
            self._expect_reading()
        elif self.conn.their_state in _UNFINISHED:
            if self.conn.their_state is h11.SEND_BODY:
                self._wait(self.request_seconds)
            if self._slot is not None:
                self._slot.release_bytes()
                self._slot.note_idle()
        else:
            # The next request came along with the one before.
            self._note_work()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_expecting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_expecting()
        if self._slot is not None:
            self._slot.close()
        self._connection.ended(in_good_order=exc is None and self._is_answered)
        super().connection_lost(exc)

    @property
    def _is_answered(self) -> bool:
        """Whether the whole answer to the last request was written."""
        # None before the first request, whatever uvicorn says of its type.
        return bool(self.cycle) and self.cycle.response_complete

    def _note_work(self) -> None:
        """A request is complete. A stranger's has a limit; an authenticated caller may wait, e.g. for mail."""
        self._stop_waiting()
        if self._slot is not None:
            self._slot.note_busy()
            if self.transport.get_protocol() is self:
                self._wait(_ANSWER_SECONDS)

    def _wait(self, seconds: float) -> None:
        if self._given_up is None:
            self._given_up = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None

    def _give_up(self) -> None:
        # A process that stood still finds its timers due before it has read what has arrived meanwhile.
        self._given_up = self.loop.call_later(_LAST_LOOK_SECONDS, self._end_unless_done)

    def _end_unless_done(self) -> None:
        self._given_up = None
        is_complete = self.conn.their_state not in _UNFINISHED
        if not (is_complete and self._slot is not None and self._slot.is_proven):
            self._end()

    def _expect_reading(self) -> None:
        """End the connection if the caller takes nothing for long. Closing alone waits until all is read."""
        if self._slot is not None and self._unread is None and self.transport.get_write_buffer_size():
            self._unread = self.loop.call_later(self.unread_seconds, self._end)

    def _stop_expecting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _end(self) -> None:
        self.transport.abort()
