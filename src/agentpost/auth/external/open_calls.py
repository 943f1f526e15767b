"""Calls that wait for something, by their session: when that is revoked, they are told at once."""

import asyncio
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from agentpost.protocol.ids import SessionId

__all__ = ["OpenCalls"]


class OpenCalls:
    def __init__(self) -> None:
        self._open: defaultdict[SessionId, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def within(self, session_id: SessionId) -> Generator[asyncio.Event]:
        """An event that is set when the session ends. Whoever waits within the session waits for that, too."""
        ended = asyncio.Event()
        self._open[session_id].add(ended)
        try:
            yield ended
        finally:
            self._open[session_id].discard(ended)
            if not self._open[session_id]:
                del self._open[session_id]

    def end(self, session_ids: Iterable[SessionId]) -> None:
        for session_id in session_ids:
            for ended in self._open.get(session_id, ()):
                ended.set()
