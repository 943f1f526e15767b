"""The legacy document as Yjs has it: two maps whose values are objects, plain or as maps of their own."""

from collections.abc import Callable
from typing import Any, cast

from pycrdt import Doc, Map, TransactionEvent

from agentpost.protocol.errors import Code, Refusal
from agentpost.work.migration.entries import LegacyEntry, LegacyMap, read_entry

__all__ = ["LegacyDocument"]


class LegacyDocument:
    """Bytes in, bytes out: whoever carries updates between documents subscribes."""

    def __init__(self, update: bytes | None = None) -> None:
        self.doc: Doc[Any] = Doc()
        self._maps: dict[LegacyMap, Map[Any]] = {name: self.doc.get(name.value, type=Map) for name in LegacyMap}
        if update is not None:
            self.receive(update)

    def entries(self) -> tuple[list[LegacyEntry], list[Refusal]]:
        """What can be read, the oldest first, and what cannot."""
        read: list[LegacyEntry] = []
        unreadable: list[Refusal] = []
        for name, legacy in self._maps.items():
            for key, value in cast("dict[str, object]", legacy.to_py() or {}).items():
                try:
                    read.append(read_entry(name, key, value))
                except Refusal as refusal:
                    unreadable.append(refusal)
        return sorted(read, key=lambda entry: (entry.created_at_ms, entry.id)), unreadable

    def keys(self) -> list[tuple[LegacyMap, str]]:
        return [(name, str(key)) for name, legacy in self._maps.items() for key in legacy.keys()]  # noqa: SIM118 - a Map

    def has(self, name: LegacyMap, key: str) -> bool:
        return key in self._maps[name]

    def put(self, name: LegacyMap, key: str, value: dict[str, Any]) -> None:
        self._maps[name][key] = value

    def mark_read(self, entry: LegacyEntry, agent_ids: tuple[str, ...]) -> None:
        """Say in the document that these agents have it, so that whoever still reads it there does not hand it over."""
        present = self._maps[entry.map].get(entry.id)
        value = cast("object", present.to_py() if isinstance(present, Map) else present)
        if not isinstance(value, dict):
            return
        said = cast("dict[str, Any]", value)
        read_by = tuple(dict.fromkeys((*entry.read_by, *agent_ids)))
        if read_by != entry.read_by:
            self._maps[entry.map][entry.id] = said | {"readBy": list(read_by)}

    def clear(self) -> int:
        """Take everything out of both maps. Gives how many entries there were."""
        keys = self.keys()
        with self.doc.transaction():
            for name, key in keys:
                del self._maps[name][key]
        return len(keys)

    def update(self) -> bytes:
        return self.doc.get_update()

    def receive(self, update: bytes) -> None:
        try:
            self.doc.apply_update(update)
        except ValueError:
            raise Refusal(Code.MALFORMED, "this is no Yjs update", hint="Name a file that Yjs wrote (v1).") from None

    def subscribe(self, listener: Callable[[bytes], None]) -> None:
        def changed(event: TransactionEvent) -> None:
            listener(event.update)

        self.doc.observe(changed)
