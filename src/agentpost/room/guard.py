"""The guard of the room (ROOM-3, PIPE-6): every update passes here before it is merged, stored or passed on.

1. The bytes are read struct by struct (`wire`): only plain values under keys of the known maps, nothing that builds on
   what has not arrived, no bytes left over. Nearly everything bad ends here.
2. The update is applied to a scratch copy, and the library itself says which keys changed and to what.
3. Each changed record is judged: its form and size (`schema`), its signature, its `rev`, its writer (`authority`).

The scratch copy and the table of records are kept in step with the real document, so a check costs what the update
costs and not what the document does. After a refusal the scratch is thrown away and made anew when it is needed next.

Two writers who do not know of each other yet may write one key at the same time, and Yjs picks one of them by its own
rule, which may be the older one. That is no attack: the update is taken, the record with the higher `rev` stays the
one that counts, and the caller is told to write it again (`Checked.restore`). A *successor* of a record with a lower
`rev` is a replay, and refused.

The structs of others are taken from backbone nodes only: a struct that is gone shows no signature, so whoever may bring
them can take the next clock of any node and silence it. An edge node that knows more than this side brings them all the
same when it answers a sync; `ForeignStructs` says so, and `relay` takes the records instead.
"""

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from agentpost.protocol.errors import Code, Refusal
from agentpost.room.authority import Change, Crossed, Judge
from agentpost.room.crdt import Applied, Replica, Touched
from agentpost.room.keys import KeyBook
from agentpost.room.records import Record, canonical, is_removed, verify_bytes
from agentpost.room.schema import MAPS, check_record, is_id
from agentpost.room.table import RecordTable
from agentpost.room.wire import EMPTY_UPDATE, Item, ItemId, Update, read_update

__all__ = ["MAX_UPDATE_BYTES", "RELAY_TAG", "Checked", "ForeignStructs", "RoomGuard", "client_tag", "in_order"]

MAX_UPDATE_BYTES: Final = 256 * 1024
_RANK: Final = {name: rank for rank, name in enumerate(MAPS)}
_SYNC_AGAIN: Final = "Sync again: send what the other side has not seen, in order."


class Checked(NamedTuple):
    """An update that may be merged: what it changes, the bytes to merge and pass on, and what to write again."""

    changes: list[Change]
    relay: bytes
    restore: list[Change]


_NOTHING: Final = Checked([], b"", [])


class ForeignStructs(Refusal):
    """An edge node brings what others wrote. In the answer to a sync that only says that it has seen more."""


# The upper 21 bits of client ids that carry one record each, of whomever. They are the highest there are, and of two
# values that follow the same one Yjs shows that of the higher client: so a record that was written anew is seen also by
# those who have the struct in which it was written first.
RELAY_TAG: Final = 2**21 - 1


@lru_cache(maxsize=4096)
def client_tag(node_id: str) -> int:
    """The upper 21 bits of the Yjs client ids that only this node may use, so that nobody can take its next clock."""
    tag = int.from_bytes(hashlib.sha256(node_id.encode()).digest()[:4], "big") >> 11 | 1
    return tag if tag != RELAY_TAG else 1


class RoomGuard:
    """`content` gives the real document, for a new scratch copy."""

    def __init__(self, table: RecordTable, keys: KeyBook, *, content: Callable[[], bytes]) -> None:
        self._table = table
        self._keys = keys
        self._judge = Judge(table, keys)
        self._content = content
        self._scratch: Replica | None = Replica()
        # How many clocks of each client have arrived, and whose records the clients without a tag carry.
        self._clocks: dict[int, int] = {}
        self._writers: dict[int, str] = {}
        self._tags: tuple[int, dict[int, str]] | None = None

    def check(self, update: bytes, *, peer: str, is_sync: bool = False, max_bytes: int = MAX_UPDATE_BYTES) -> Checked:
        """Judge an update that `peer` brought; with `is_sync` it tells of the past, see `authority`.

        The caller has to merge what this returns. A refusal changes nothing.
        """
        if self._keys.is_shut_out(peer):
            raise Refusal(Code.NODE_REVOKED, f"{peer} was revoked")
        if len(update) > max_bytes:
            raise Refusal(
                Code.TOO_LARGE,
                f"an update of {len(update)} bytes; the room takes {max_bytes}",
                hint="Send less at once.",
            )
        if update == EMPTY_UPDATE:
            return _NOTHING
        parsed = read_update(update)
        ends = self._ends(parsed)
        fresh = [item for item in parsed.writes if item.id.clock >= self._clocks.get(item.id.client, 0)]
        must_compare = self._check_dependencies(parsed, ends)
        is_backbone = self._keys.is_backbone(peer) or (is_sync and self._introduces(fresh, peer))
        writers = self._check_clients(parsed, fresh, peer, is_edge=not is_backbone)
        undo: list[tuple[str, str, Record | None]] = []
        try:
            applied = self._try(update, ends if must_compare else None)
            checked = self._judge_all(applied, fresh, undo, is_past=is_sync and is_backbone)
        except BaseException:
            self._scratch = None
            for map_name, key, record in reversed(undo):
                self._table.put(map_name, key, record)
            raise
        self._clocks.update(ends)
        self._writers.update(writers)
        return checked

    def judge(self, map_name: str, key: str, record: Record, *, is_past: bool) -> None:
        """Refuse a record that `check` would refuse whoever brings it. Costs nothing but the judging."""
        present = self._table.get(map_name, key)
        # Its own admission may be the one that says which key it has.
        is_node = map_name == "nodes"
        if is_node:
            self._table.put(map_name, key, record)
        try:
            self._verify(map_name, key, record, is_past=is_past)
            change = Change(map_name, key, record, None if is_removed(present) else present)
            self._judge.check(change, is_past=is_past, is_concurrent=False)
        finally:
            if is_node:
                self._table.put(map_name, key, present)

    def next_clock(self, client: int) -> int:
        return self._clocks.get(client, 0)

    def learn(self, update: bytes) -> dict[str, ItemId]:
        """Take note of an update that is in the document already. Gives the items of its records, by signature."""
        parsed = read_update(update)
        self._clocks.update(self._ends(parsed))
        self._scratch = None
        items: dict[str, ItemId] = {}
        for item in parsed.writes:
            if isinstance(signature := item.value.get("sig"), str):
                items[signature] = item.id
                self._writers.setdefault(item.id.client, item.value.get("signedBy"))
        return items

    def _ends(self, parsed: Update) -> dict[int, int]:
        """The clocks that the clients of this update will have."""
        ends: dict[int, int] = {}
        for client, start, end in parsed.spans:
            known = self._clocks.get(client, 0)
            if start > known:
                raise _incomplete()
            ends[client] = max(known, end)
        return ends

    def _check_dependencies(self, parsed: Update, ends: dict[int, int]) -> bool:
        """Refuse what would wait inside the document. True if only the document can say that nothing does."""
        clocks, must_compare = self._clocks, False
        for client, clock in parsed.builds_on.items():
            if clock >= clocks.get(client, 0):
                if clock >= ends.get(client, 0):
                    raise _incomplete()
                must_compare = True
        for root in parsed.roots:
            if root not in MAPS:
                raise Refusal(Code.WRITE_DENIED, f"the room has no map {root[:40]!r}")
        for client, clock, length in parsed.deletions:
            if clock + length > max(clocks.get(client, 0), ends.get(client, 0)):
                raise _incomplete()
        return must_compare

    def _introduces(self, fresh: list[Item], peer: str) -> bool:
        """Whether the peer brings its own admission as a backbone node; so a seed that lost its disk takes it back."""
        present = self._table.get("nodes", peer)
        for item in fresh:
            if item.value.get("signedBy") == peer and "admission" in item.value:
                try:
                    self._table.put("nodes", peer, check_record("nodes", peer, item.value))
                    if self._keys.is_backbone(peer):
                        return True
                except Refusal:
                    continue
                finally:
                    self._table.put("nodes", peer, present)
        return False

    def _check_clients(self, parsed: Update, fresh: list[Item], peer: str, *, is_edge: bool) -> dict[int, str]:
        """Hold Yjs client ids to their owners: whoever takes another's next clock would silence its next write."""
        writers: dict[int, str] = {}
        if is_edge:
            for client, _, end in parsed.spans:
                if end > self._clocks.get(client, 0) and client >> 32 != RELAY_TAG:
                    self._check_client(client, peer, writers, kind=ForeignStructs)
        for client, _, end in parsed.spans:
            if client >> 32 == RELAY_TAG and end > 1:
                raise Refusal(Code.WRITE_DENIED, f"the client id {client} carries one record, and no more")
        for item in fresh:
            signer = item.value.get("signedBy")
            if not isinstance(signer, str) or not is_id(signer):
                raise Refusal(Code.WRITE_DENIED, "a record does not say who signed it", field="signedBy")
            if item.id.client >> 32 == RELAY_TAG:
                continue
            if is_edge and signer != peer:
                raise ForeignStructs(Code.WRITE_DENIED, f"{peer} is an edge node and brings a record of {signer}")
            self._check_client(item.id.client, signer, writers)
        return writers

    def _check_client(
        self, client: int, writer: str, writers: dict[int, str], *, kind: type[Refusal] = Refusal
    ) -> None:
        if client >> 32 == client_tag(writer):
            return
        # Whose tag it has, or else who used it first: foreign Yjs clients draw their ids by chance.
        owner = self._owner_of_tag(client >> 32) or self._writers.get(client) or writers.setdefault(client, writer)
        if owner != writer:
            raise kind(Code.WRITE_DENIED, f"the client id {client} belongs to {owner}, not to {writer}")

    def _owner_of_tag(self, tag: int) -> str | None:
        version = self._table.version("nodes")
        if self._tags is None or self._tags[0] != version:
            self._tags = (version, {client_tag(node_id): node_id for node_id in self._table.all("nodes")})
        return self._tags[1].get(tag)

    def _try(self, update: bytes, ends: dict[int, int] | None) -> Applied:
        if self._scratch is None:
            self._scratch = Replica(self._content())
        applied = self._scratch.apply(update)
        if ends is not None:
            arrived = self._scratch.clocks()
            if any(arrived.get(client, 0) < end for client, end in ends.items()):
                raise _incomplete()
        return applied

    def _judge_all(
        self, applied: Applied, fresh: list[Item], undo: list[tuple[str, str, Record | None]], *, is_past: bool
    ) -> Checked:
        items = {item.value.get("sig"): item for item in fresh}
        touched = in_order(applied.touched)
        records = [each.value for each in touched]
        before = [self._table.get(each.map_name, each.key) for each in touched]

        def put(map_name: str, key: str, record: Record) -> None:
            undo.append((map_name, key, self._table.get(map_name, key)))
            self._table.put(map_name, key, record)

        # The admissions of all nodes first: a node may be vouched for by one that comes with it.
        for each, record, old in zip(touched, records, before, strict=True):
            if each.map_name == "nodes" and (old is None or record["rev"] > old["rev"]):
                put(each.map_name, each.key, record)

        changes: list[Change] = []
        restore: list[Change] = []
        places: list[tuple[str, str, ItemId]] = []
        for (map_name, key, _), record, old in zip(touched, records, before, strict=True):
            item = items.get(record["sig"])
            if item is None:
                raise Refusal(Code.WRITE_DENIED, f"{map_name}.{key} goes back to an earlier value")
            places.append((map_name, key, item.id))
            if record == old:
                continue
            self._verify(map_name, key, record, is_past=is_past)
            is_concurrent = old is not None and item.origin != self._table.item(map_name, key)
            if old is not None and record["rev"] <= old["rev"]:
                if not is_concurrent:
                    raise Refusal(
                        Code.WRITE_DENIED,
                        f"{map_name}.{key} has rev {record['rev']} after rev {old['rev']}",
                        field="rev",
                    )
                if record["rev"] < old["rev"]:
                    restore.append(Change(map_name, key, old, record))
                    continue
            change = Change(map_name, key, record, None if is_removed(old) else old)
            self._judge.check(change, is_past=is_past, is_concurrent=is_concurrent)
            put(map_name, key, record)
            self._check_count(map_name, record["signedBy"])
            changes.append(change)
        visible = {record["sig"] for record in records}
        for item in fresh:
            if item.value.get("sig") not in visible:
                self._judge_hidden(item, is_past=is_past)
        for map_name, key, item_id in places:
            self._table.put_item(map_name, key, item_id)
        return Checked(changes, applied.relay, restore)

    def _judge_hidden(self, item: Item, *, is_past: bool) -> None:
        """Refuse a write that would be refused if Yjs had picked it. It does no harm, as nobody gets to see it; but who
        may not write a key is thrown out for trying, not for winning.

        One that builds on an older value does not say which key it is for, and is let go.
        """
        if item.root is None or item.key is None:
            return
        record = check_record(item.root, item.key, item.value)
        self._verify(item.root, item.key, record, is_past=is_past)
        present = self._table.get(item.root, item.key)
        change = Change(item.root, item.key, record, None if is_removed(present) else present)
        self._judge.check(change, is_past=is_past, is_concurrent=True)

    def _verify(self, map_name: str, key: str, record: Record, *, is_past: bool) -> None:
        signer = record["signedBy"]
        public_key = self._keys.public_key(signer)
        if public_key is None:
            reason = f"nobody who is trusted here has admitted {signer}"
            raise Crossed(Code.WRITE_DENIED, reason, signer=signer, field="signedBy")
        message = canonical([map_name, key, {name: value for name, value in record.items() if name != "sig"}])
        if verify_bytes(public_key, record["sig"], message):
            return
        if not any(verify_bytes(former, record["sig"], message) for former in self._keys.former_keys(signer)):
            raise Refusal(Code.WRITE_DENIED, f"{map_name}.{key} is not what {signer} signed", field="sig")
        if not is_past:
            reason = f"{signer} has another key than the one that signed {map_name}.{key}"
            raise Crossed(Code.WRITE_DENIED, reason, signer=signer, field="sig")

    def _check_count(self, map_name: str, signer: str) -> None:
        most = MAPS[map_name].keys_per_node
        if self._table.held_by(map_name, signer) > most:
            raise Refusal(
                Code.TOO_LARGE,
                f"{signer} has more than {most} records in {map_name}",
                hint="Removed records count as well. Let another gateway have what is new.",
            )


def in_order(touched: Iterable[Touched]) -> list[Touched]:
    """Changed keys with their records in plain form, in the order of judging; a refusal if one is none."""
    ranked = sorted(touched, key=lambda each: (_RANK[each.map_name], each.key != "coordinator"))
    return [Touched(each.map_name, each.key, _form(each)) for each in ranked]


def _form(touched: Touched) -> Record:
    if touched.value is None:
        raise Refusal(
            Code.WRITE_DENIED,
            f"{touched.map_name}.{touched.key[:80]} was deleted; keys stay",
            hint='Write a record with "status": "removed" in its place.',
        )
    return check_record(touched.map_name, touched.key, touched.value)


def _incomplete() -> Refusal:
    return Refusal(Code.SEQUENCE_GAP, "the update builds on changes that have not arrived", hint=_SYNC_AGAIN)
