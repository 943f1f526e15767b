"""The verified records of the room, by map and key, and which Yjs item each of them is.

Filled by the guard alone. Knows nothing of why a record is here; what does not verify never gets in.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from agentpost.room.records import Record
from agentpost.room.schema import MAPS
from agentpost.room.wire import ItemId

__all__ = ["RecordTable"]


class RecordTable:
    def __init__(self) -> None:
        self._records: dict[str, dict[str, Record]] = {name: {} for name in MAPS}
        self._items: dict[tuple[str, str], ItemId] = {}
        self._held: Counter[tuple[str, str]] = Counter()
        self._versions: Counter[str] = Counter()
        # Grows with every change of any map.
        self.changes = 0

    def get(self, map_name: str, key: str) -> Record | None:
        return self._records[map_name].get(key)

    def all(self, map_name: str) -> Mapping[str, Record]:
        return self._records[map_name]

    def __iter__(self) -> Iterator[tuple[str, str, Record]]:
        return ((name, key, record) for name, records in self._records.items() for key, record in records.items())

    def version(self, map_name: str) -> int:
        """Grows with every change of the map, so that a reader knows whether what it made is still true."""
        return self._versions[map_name]

    def held_by(self, map_name: str, node_id: str) -> int:
        """How many keys of the map hold a record that this node signed."""
        return self._held[map_name, node_id]

    def put(self, map_name: str, key: str, record: Record | None) -> None:
        records = self._records[map_name]
        old = records.pop(key, None)
        if old is not None:
            self._held[map_name, old["signedBy"]] -= 1
        if record is not None:
            records[key] = record
            self._held[map_name, record["signedBy"]] += 1
        self._versions[map_name] += 1
        self.changes += 1

    def item(self, map_name: str, key: str) -> ItemId | None:
        """The Yjs item that is visible under the key; also where its record did not verify."""
        return self._items.get((map_name, key))

    def put_item(self, map_name: str, key: str, item: ItemId) -> None:
        self._items[map_name, key] = item

    def forget_items(self) -> None:
        self._items.clear()
