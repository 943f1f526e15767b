"""The chunks of payloads that one peer asked for. They are read from the disk when there is room to send them."""

from collections import deque
from typing import Final

from agentpost.delivery.fetch import serve_chunk
from agentpost.delivery.frames import GetChunk, encode_frame
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.interface import Store

__all__ = ["ChunkDesk"]

_AT_ONCE: Final = 4
_MOST_ASKED: Final = 1024


class ChunkDesk:
    """What was asked for and is here, and what is on its way here: a mirror may hand on an event before its payload."""

    def __init__(self, store: Store, peer: str) -> None:
        self._store = store
        self._peer = peer
        self._here: deque[GetChunk] = deque()
        self._awaited: list[GetChunk] = []

    def ask(self, request: GetChunk, *, is_awaited: bool) -> None:
        """Take a request that the peer may make."""
        (self._awaited if is_awaited else self._here).append(request)

    def check_room(self) -> None:
        """Refused: whoever asks for more than it takes."""
        if len(self._here) + len(self._awaited) >= _MOST_ASKED:
            raise Refusal(Code.RATE_LIMITED, f"{self._peer} asks for more chunks than it takes")

    def came(self, sha256: str) -> bool:
        """A payload is here now. True if the peer waits for it."""
        came = [request for request in self._awaited if request.sha256 == sha256]
        if came:
            self._awaited = [request for request in self._awaited if request.sha256 != sha256]
            self._here.extend(came)
        return bool(came)

    def frames(self) -> list[bytes]:
        """The next few chunks."""
        count = min(len(self._here), _AT_ONCE)
        return [encode_frame(serve_chunk(self._store, self._here.popleft())) for _ in range(count)]
