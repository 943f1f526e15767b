"""The room on disk: each merged update as it came, and the whole document in their place when they have become many."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from agentpost.room.document import Ignored, Room

__all__ = ["RoomJournal", "RoomLog"]

MAX_UPDATES: Final = 1_000
MAX_BYTES: Final = 1024 * 1024


class RoomLog(Protocol):
    """The part of a store that a journal needs."""

    def append_room_update(self, update: bytes) -> Awaitable[None]: ...

    def room_updates(self) -> list[bytes]: ...

    def compact_room(self, snapshot: bytes) -> Awaitable[None]: ...


class RoomJournal:
    """Notes every update from the moment it is made; `flush` makes durable what was noted."""

    def __init__(
        self,
        room: Room,
        log: RoomLog,
        *,
        max_updates: int = MAX_UPDATES,
        max_bytes: int = MAX_BYTES,
        on_note: Callable[[], None] | None = None,
    ) -> None:
        self._room = room
        self._log = log
        self._max_updates = max_updates
        self._max_bytes = max_bytes
        self._on_note = on_note
        self._noted: list[bytes] = []
        self._updates = 0
        self._bytes = 0
        room.subscribe(self._note)

    def load(self) -> list[Ignored]:
        """Bring the room to where it was. Gives what had to be passed over."""
        updates = self._log.room_updates()
        self._updates, self._bytes = len(updates), sum(map(len, updates))
        return self._room.load(updates)

    def store_anew(self) -> None:
        """Put the room as it is in the place of all that is stored, with the next flush."""
        self._noted = []
        self._updates = self._max_updates + 1
        if self._on_note is not None:
            self._on_note()

    async def flush(self) -> None:
        """Store what was noted; as one, if what is stored has become long."""
        noted, self._noted = self._noted, []
        try:
            await self._store(noted)
        except BaseException:
            # A full disk may have room again later. An update that is stored twice is the same update.
            self._noted = noted + self._noted
            raise

    async def _store(self, noted: list[bytes]) -> None:
        updates, size = self._updates + len(noted), self._bytes + sum(map(len, noted))
        if updates > self._max_updates or size > self._max_bytes:
            await self._log.compact_room(self._room.update_since())
            # What is left counts as nothing, so that a large room is not compacted again at once.
            self._updates, self._bytes = 1, 0
            return
        for update in noted:
            await self._log.append_room_update(update)
        self._updates, self._bytes = updates, size

    def _note(self, update: bytes, _origin: str) -> None:
        self._noted.append(update)
        if self._on_note is not None:
            self._on_note()
