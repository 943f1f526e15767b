"""The records that the document shows, and which of them are believed.

A record is believed on the strength of the document and the mesh's root key alone (`members`, `write_rules`), so that
all replicas believe the same, whatever the order in which things arrived. What is not believed is set aside: it stays
in the document, because later writes build on it, and is in no view.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from agentpost.room.members import Members, Root, Statement, fold_members
from agentpost.room.records import Record, canonical, from_base64, is_removed, verify_bytes
from agentpost.room.schema import MAPS, is_statement
from agentpost.room.wire import ItemId
from agentpost.room.write_rules import why_not_believed

__all__ = ["Aside", "RecordTable"]

_ACKS: Final = "delegationAck:"
# Maps whose records decide over others.
_DECIDING: Final = frozenset({"agents", "capabilities.catalog"})
# Public keys, so nothing is given away by keeping them.
_raw = lru_cache(maxsize=4096)(from_base64)


class Aside(NamedTuple):
    """Why a record that the document shows is not believed. `is_authentic`: the node that it names did sign it."""

    reason: str
    signer: str | None = None
    is_by_member: bool = False
    is_authentic: bool = False
    is_revoked: bool = False


class RecordTable:
    """Fed with what the document shows. `root` is the anchor of the mesh."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._shown: dict[str, dict[str, Record]] = {name: {} for name in MAPS}
        self._believed: dict[str, dict[str, Record]] = {name: {} for name in MAPS}
        self._aside: dict[tuple[str, str], Aside] = {}
        self._statements: dict[str, Statement] = {}
        # What a statement is in the room: its signature covers that.
        self._said: dict[str, tuple[str, Record]] = {}
        # For each record that is shown: which keys were tried, and whether they signed it.
        self._tried: dict[tuple[str, str], dict[str, bool]] = {}
        self._items: dict[tuple[str, str], ItemId] = {}
        self._held: Counter[tuple[str, str]] = Counter()
        self._removed: Counter[tuple[str, str]] = Counter()
        self._versions: Counter[str] = Counter()
        # Grows with every change of what is believed.
        self.changes = 0
        self.members: Members = self._fold()

    @property
    def root(self) -> Root:
        return self._root

    def set_root(self, root: Root) -> None:
        """Take another root, and find out anew what is believed."""
        self._root = root
        self._settle({name: set(records) for name, records in self._shown.items()}, has_statements=True)

    # Reading

    def get(self, map_name: str, key: str) -> Record | None:
        """The believed record."""
        return self._believed[map_name].get(key)

    def all(self, map_name: str) -> Mapping[str, Record]:
        """The believed records of a map."""
        return self._believed[map_name]

    def __iter__(self) -> Iterator[tuple[str, str, Record]]:
        return ((name, key, record) for name, records in self._believed.items() for key, record in records.items())

    def shown(self, map_name: str, key: str) -> Record | None:
        """The record that the document shows, believed or not; None where it shows none that has the form of one."""
        return self._shown[map_name].get(key)

    def all_shown(self) -> Iterator[tuple[str, str, Record]]:
        return ((name, key, record) for name, records in self._shown.items() for key, record in records.items())

    def aside(self, map_name: str, key: str) -> Aside | None:
        """Why what the document shows is not believed; None if it is."""
        return self._aside.get((map_name, key))

    def all_aside(self) -> Mapping[tuple[str, str], Aside]:
        return self._aside

    def version(self, map_name: str) -> int:
        """Grows with every change of the map's believed records."""
        return self._versions[map_name]

    def held_by(self, map_name: str, node_id: str) -> int:
        """How many keys of the map show a record that names this node as its signer."""
        return self._held[map_name, node_id]

    def removed_by(self, map_name: str, node_id: str) -> int:
        """How many of these are removals."""
        return self._removed[map_name, node_id]

    def item(self, map_name: str, key: str) -> ItemId | None:
        """The Yjs item that is visible under the key, believed or not."""
        return self._items.get((map_name, key))

    # Writing

    def show(self, shown: Iterable[tuple[str, str, Record | None, str]]) -> None:
        """Take over what the document shows now: map, key, the record, and what is wrong with its form, if anything.

        A record whose form is wrong comes as None, with the reason; without a reason, nothing is shown there.
        """
        changed: dict[str, set[str]] = {}
        has_statements = False
        for map_name, key, record, problem in shown:
            self._put(map_name, key, record)
            changed.setdefault(map_name, set()).add(key)
            has_statements = has_statements or (map_name == "coordination" and is_statement(map_name, key))
            if record is None and problem:
                self._aside[map_name, key] = Aside(problem)
            else:
                self._aside.pop((map_name, key), None)
        self._settle(changed, has_statements=has_statements)

    def put_item(self, map_name: str, key: str, item: ItemId) -> None:
        self._items[map_name, key] = item

    def clear(self) -> None:
        """Forget everything but the root."""
        gone = [(map_name, key, None, "") for map_name, key, _ in list(self.all_shown())]
        self.show(gone)
        self._aside.clear()
        self._items.clear()

    def is_signed_by(self, map_name: str, key: str, record: Record, public_key: str) -> bool:
        """Whether the owner of this key signed exactly this record for exactly this key of the room."""
        is_shown = self._shown[map_name].get(key) is record
        tried = self._tried.setdefault((map_name, key), {}) if is_shown else {}
        if public_key not in tried:
            try:
                # The record is in its plain form already.
                unsigned = {name: value for name, value in record.items() if name != "sig"}
                message = canonical([map_name, key, unsigned])
                tried[public_key] = verify_bytes(_raw(public_key), record["sig"], message)
            except ValueError:
                tried[public_key] = False
        return tried[public_key]

    def _put(self, map_name: str, key: str, record: Record | None) -> None:
        records = self._shown[map_name]
        old = records.pop(key, None)
        self._tried.pop((map_name, key), None)
        if old is not None:
            self._held[map_name, old["signedBy"]] -= 1
            if is_removed(old):
                self._removed[map_name, old["signedBy"]] -= 1
        if record is not None:
            records[key] = record
            self._held[map_name, record["signedBy"]] += 1
            if is_removed(record):
                self._removed[map_name, record["signedBy"]] += 1
        if map_name == "coordination" and is_statement(map_name, key):
            gone = self._statements.pop(key, None)
            if gone is not None:
                self._said.pop(gone.sig, None)
            if record is not None and key.split(":")[1] == record["signedBy"]:
                statement = self._statements[key] = Statement.from_record(record)
                self._said[statement.sig] = (key, record)

    def _settle(self, changed: dict[str, set[str]], *, has_statements: bool) -> None:
        """Find out what is believed of these keys, and of those that depend on them."""
        if has_statements:
            self._refold(changed)
        for map_name in MAPS:
            # What depends on a record stands in a map that comes later.
            keys = changed.pop(map_name, None)
            if keys is None:
                continue
            if map_name == "coordination":
                acks = {key for key in keys if key.startswith(_ACKS)}
                changed.setdefault(_ACKS, set()).update(acks)
                keys -= acks
            decided = [key for key in keys if self._judge(map_name, key)]
            if decided and map_name in _DECIDING:
                self._add_dependents(map_name, set(decided), changed)
        for key in changed.pop(_ACKS, ()):
            self._judge("coordination", key)

    def _refold(self, changed: dict[str, set[str]]) -> None:
        before, self.members = self.members, self._fold()
        others = {
            node_id
            for node_id in before.nodes.keys() | self.members.nodes.keys()
            if before.nodes.get(node_id) != self.members.nodes.get(node_id)
        }
        changed.setdefault("coordination", set()).update(self._statements.keys())
        if others:
            for map_name, key, record in self.all_shown():
                if record["signedBy"] in others or (map_name == "agents" and record.get("ownerNodeId") in others):
                    changed.setdefault(map_name, set()).add(key)

    def _fold(self) -> Members:
        return fold_members(self._statements.values(), self._root, self._is_said)

    def _is_said(self, statement: Statement, public_key: str) -> bool:
        key, record = self._said[statement.sig]
        return self.is_signed_by("coordination", key, record, public_key)

    def _judge(self, map_name: str, key: str) -> bool:
        """Whether what is believed of a key is another than before."""
        record = self._shown[map_name].get(key)
        believed = None
        if record is not None:
            aside = self.why_not(map_name, key, record)
            if aside is None:
                believed = record
                self._aside.pop((map_name, key), None)
            else:
                self._aside[map_name, key] = aside
        records = self._believed[map_name]
        if records.get(key) is believed:
            return False
        if believed is None:
            del records[key]
        else:
            records[key] = believed
        self._versions[map_name] += 1
        self.changes += 1
        return True

    def why_not(self, map_name: str, key: str, record: Record) -> Aside | None:
        """Why this record would not be believed, if the document showed it; None if it would."""
        signer: str = record["signedBy"]
        member = self.members.nodes.get(signer)
        if map_name == "coordination" and is_statement(map_name, key):
            return None if self._counts(key, record) else self._aside_of(map_name, key, record, "it does not count")
        if member is None:
            return Aside(f"{signer} is not a member of this mesh", signer)
        if member.is_revoked:
            return self._aside_of(map_name, key, record, f"{signer} was revoked")
        if not self.is_signed_by(map_name, key, record, member.public_key):
            return Aside(f"it is not what {signer} signed", signer, is_by_member=True)
        reason = why_not_believed(map_name, key, record, member, self)
        return None if reason is None else Aside(reason, signer, is_by_member=True, is_authentic=True)

    def would_count(self, records: Sequence[tuple[str, Record]]) -> set[str]:
        """The keys of those of these statements that would count, if the document showed all of them."""
        more = {key: record for key, record in records if key.split(":")[1] == record["signedBy"]}
        if not more:
            return set()
        statements = {key: Statement.from_record(record) for key, record in more.items()}
        said = self._said | {each.sig: (key, more[key]) for key, each in statements.items()}

        def is_said(statement: Statement, public_key: str) -> bool:
            return self.is_signed_by("coordination", *said[statement.sig], public_key)

        counted = fold_members((self._statements | statements).values(), self._root, is_said).counted
        return {key for key, each in statements.items() if each.sig in counted}

    def _counts(self, key: str, record: Record) -> bool:
        """Whether a statement counts, or would."""
        statement = self._statements.get(key)
        if statement is not None and statement.sig == record["sig"]:
            return record["sig"] in self.members.counted
        return key in self.would_count([(key, record)])

    def _aside_of(self, map_name: str, key: str, record: Record, reason: str) -> Aside:
        member = self.members.nodes.get(record["signedBy"])
        if member is None:
            return Aside(reason, record["signedBy"])
        return Aside(
            reason,
            record["signedBy"],
            is_by_member=not member.is_revoked,
            is_authentic=self.is_signed_by(map_name, key, record, member.public_key),
            is_revoked=member.is_revoked,
        )

    def _add_dependents(self, map_name: str, decided: set[str], changed: dict[str, set[str]]) -> None:
        """What is believed of an agent and of the catalog decides over other records."""
        shown = self._shown
        if map_name == "agents":
            catalog = shown["capabilities.catalog"].items()
            owned = {capability_id for capability_id, entry in catalog if entry.get("ownerAgentId") in decided}
            acks = {key for key in shown["coordination"] if key.startswith(_ACKS) and key.split(":")[1] in decided}
            news = {"routing": decided & shown["routing"].keys(), "capabilities.catalog": owned, _ACKS: acks}
        else:
            news = {"capabilities.index": decided & shown["capabilities.index"].keys()}
        for name, keys in news.items():
            if keys:
                changed.setdefault(name, set()).update(keys)
