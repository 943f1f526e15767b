"""The notes of the store in memory."""

from collections.abc import Sequence

from agentpost.store import rules
from agentpost.store.memory_keeping import MemoryKeeping
from agentpost.store.values import Note

__all__ = ["MemoryNotes"]


class MemoryNotes(MemoryKeeping):
    """A part of `MemoryStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._notes: dict[tuple[str, str], Note] = {}

    async def put_notes(self, notes: Sequence[Note]) -> None:
        self._check_open()
        self._check_notes(notes)
        self._keep_notes(notes)

    def note(self, collection: str, key: str) -> Note | None:
        self._check_open()
        return self._notes.get((collection, key))

    def notes(self, collection: str, *, after_key: str = "", limit: int = 256) -> list[Note]:
        self._check_open()
        found = sorted(key for place, key in self._notes if place == collection and key > after_key)
        return [self._notes[collection, key] for key in found[:limit]]

    def count_notes(self, collection: str) -> int:
        self._check_open()
        return sum(1 for place, _ in self._notes if place == collection)

    def _check_notes(self, notes: Sequence[Note]) -> None:
        for note in notes:
            rules.check_note(note)

    def _keep_notes(self, notes: Sequence[Note]) -> None:
        for note in notes:
            if note.value is None:
                self._notes.pop((note.collection, note.key), None)
            else:
                self._notes[note.collection, note.key] = note
