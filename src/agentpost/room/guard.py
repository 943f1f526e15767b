"""The guard of the room (ROOM-3, PIPE-6): every update passes here before it is merged, stored or passed on.

1. The bytes are read struct by struct (`wire`): only plain values under keys of the known maps, nothing that builds on
   what has not arrived, no bytes left over. Nearly everything bad ends here.
2. The update is applied to a scratch copy, and the library itself says which keys changed and to what.
3. The changed records are shown to the table, which says what is believed (`table`).
4. Only the one who signed or brought a bad write is cut off. What the peer signed itself must be believed, and may take
   the place of no other's record that is. A member's record that a backbone member passes on is merged in any case, for
   later writes build on it; where it is not believed, it is set aside, and its relay stays.

The scratch copy and the table are kept in step with the real document, so a check costs what the update costs and not
what the document does. After a refusal the scratch is thrown away and made anew when it is needed next.

Two writers who do not know of each other yet may write one key at the same time, and Yjs picks one of them by its own
rule. If that hides a record that is believed behind an older one of the same signer, or behind one that is not
believed, the caller is told to write the believed one again (`Checked.restore`). Of two that are both believed, Yjs'
choice stands.

The structs of others are taken from backbone members only, and from a seed that this node dialled: a struct that is
gone shows no signature, so an edge node could take the next clock of any node and silence it. An edge node that knows
more than this side brings them all the same when it answers a sync; `ForeignStructs` says so, and `relay` takes the
records instead.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.crdt import Applied, Replica, Touched
from agentpost.room.members import Member
from agentpost.room.records import Record, is_removed
from agentpost.room.schema import MAPS, check_record, is_harmless, is_id, is_statement
from agentpost.room.table import Aside, RecordTable
from agentpost.room.wire import EMPTY_UPDATE, Item, ItemId, Update, read_update
from agentpost.room.write_rules import may_replace, why_not_written

__all__ = [
    "MAX_UPDATE_BYTES",
    "NOBODY",
    "RELAY_TAG",
    "Change",
    "Checked",
    "ForeignStructs",
    "RoomGuard",
    "SetAside",
    "client_tag",
]

MAX_UPDATE_BYTES: Final = 256 * 1024
# Who brings what this node writes again for others: it answers for none of it.
NOBODY: Final = ""
_RANK: Final = {name: rank for rank, name in enumerate(MAPS)}
_SYNC_AGAIN: Final = "Sync again: send what the other side has not seen, in order."


class Change(NamedTuple):
    """A key whose record is another than before, as the document shows it."""

    map_name: str
    key: str
    record: Record


class SetAside(NamedTuple):
    """A record that was merged and is not believed."""

    map_name: str
    key: str
    signer: str | None
    reason: str


class Checked(NamedTuple):
    """An update that may be merged: what it changes, the bytes to merge, what to write again, what is not believed."""

    changes: list[Change]
    relay: bytes
    restore: list[Change]
    aside: list[SetAside]


_NOTHING: Final = Checked([], b"", [], [])


class ForeignStructs(Refusal):
    """An edge node brings what others wrote. In the answer to a sync that only says that it has seen more."""


class _Shown(NamedTuple):
    """What the document shows under a key; no record, and a reason, for what has not the form of one."""

    map_name: str
    key: str
    record: Record | None
    problem: str
    sig: str | None
    signer: str | None


class _Before(NamedTuple):
    """What stood under a key before: what the document showed, what was believed, and which Yjs item it was."""

    shown: _Shown
    believed: Record | None
    item: ItemId | None


class _Bringer(NamedTuple):
    """Who brings an update. `is_relay`: others' records are taken from it as they are."""

    node_id: str
    is_relay: bool
    is_sync: bool

    def refusal_of(self, map_name: str, key: str, record: Record | None, aside: Aside) -> Refusal:
        """Why a record that is not believed is not taken."""
        if record is not None and record["signedBy"] != self.node_id and self.is_sync:
            return ForeignStructs(Code.WRITE_DENIED, f"{self.node_id} is an edge node and brings what is not believed")
        if record is None or (aside.is_by_member and not aside.is_authentic):
            return Refusal(Code.WRITE_DENIED, f"{map_name}.{key}: {aside.reason}", field="sig")
        code = Code.NODE_REVOKED if aside.is_revoked else Code.WRITE_DENIED
        return Refusal(code, _denial(map_name, key, record, aside.reason), field=map_name)


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

    def __init__(self, table: RecordTable, *, own: str, own_key: str, content: Callable[[], bytes]) -> None:
        self._table = table
        self._own = own
        self._own_key = own_key
        self._content = content
        self._scratch: Replica | None = Replica()
        # How many clocks of each client have arrived, and whose records the clients without a tag carry.
        self._clocks: dict[int, int] = {}
        self._writers: dict[int, str] = {}
        self._tags: tuple[Mapping[str, Member], dict[int, str]] | None = None

    def check(
        self,
        update: bytes,
        *,
        peer: str,
        is_sync: bool = False,
        is_seed: bool = False,
        max_bytes: int = MAX_UPDATE_BYTES,
    ) -> Checked:
        """Judge an update that `peer` brought. `is_seed`: this node dialled the peer, to have the room from it.

        The caller has to merge what this returns. A refusal changes nothing.
        """
        if peer != self._own and self._is_revoked(peer):
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
        is_relay = is_seed or peer in (self._own, NOBODY) or self._is_backbone(peer)
        bringer = _Bringer(peer, is_relay, is_sync)
        writers = self._check_clients(parsed, fresh, bringer)
        before: list[_Before] = []
        try:
            applied = self._try(update, ends if must_compare else None)
            checked = self._judge(applied, fresh, before, bringer)
        except BaseException:
            self._scratch = None
            self._table.show(each.shown[:4] for each in before)
            raise
        self._clocks.update(ends)
        self._writers.update(writers)
        return checked

    def adoptable(self, records: Sequence[tuple[str, str, Record]], *, peer: str) -> list[tuple[str, str, Record]]:
        """Those of a peer's records that would be believed here, and that their signers may write.

        Refused is what the peer itself signed and may not write.
        """
        table, taken = self._table, list[tuple[str, str, Record]]()
        counting = table.would_count([(key, record) for name, key, record in records if is_statement(name, key)])
        for map_name, key, record in records:
            present = table.get(map_name, key)
            if is_statement(map_name, key):
                reason = None if key in counting and present is None else "it does not count"
            else:
                aside = table.why_not(map_name, key, record)
                reason = None if aside is None else aside.reason
                is_own = record["signedBy"] == peer
                if reason is None and (is_own or present is not None):
                    reason = why_not_written(map_name, key, record, present, table, is_concurrent=False)
                if reason is not None and is_own and aside is None:
                    raise Refusal(Code.WRITE_DENIED, _denial(map_name, key, record, reason), field=map_name)
            if reason is None:
                taken.append((map_name, key, record))
        return taken

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

    def _is_backbone(self, node_id: str) -> bool:
        member = self._table.members.nodes.get(node_id)
        return member is not None and not member.is_revoked and member.tier is NodeTier.BACKBONE

    def _is_admitted(self) -> bool:
        """Whether what this node signs is believed, as far as its key goes."""
        member = self._table.members.nodes.get(self._own)
        return member is not None and not member.is_revoked and member.public_key == self._own_key

    def _is_revoked(self, node_id: str) -> bool:
        member = self._table.members.nodes.get(node_id)
        return member is not None and member.is_revoked

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

    def _check_clients(self, parsed: Update, fresh: list[Item], bringer: _Bringer) -> dict[int, str]:
        """Hold Yjs client ids to their owners: whoever takes another's next clock would silence its next write.

        The first gateway that a write reaches sees to that. What a relay brings passed there, and whose a client id is
        may look different from here.
        """
        writers: dict[int, str] = {}
        for client, _, end in parsed.spans:
            if client >> 32 == RELAY_TAG:
                if end > 1:
                    raise Refusal(Code.WRITE_DENIED, f"the client id {client} carries one record, and no more")
            elif not bringer.is_relay and end > self._clocks.get(client, 0):
                self._check_client(client, bringer.node_id, writers, kind=ForeignStructs)
        for item in fresh:
            signer = item.value.get("signedBy")
            if not isinstance(signer, str) or not is_id(signer):
                raise Refusal(Code.WRITE_DENIED, "a record does not say who signed it", field="signedBy")
            if item.id.client >> 32 == RELAY_TAG:
                continue
            if bringer.is_relay:
                writers.setdefault(item.id.client, signer)
                continue
            if signer != bringer.node_id:
                reason = f"{bringer.node_id} is an edge node and brings a record of {signer}"
                raise ForeignStructs(Code.WRITE_DENIED, reason)
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
        nodes = self._table.members.nodes
        if self._tags is None or self._tags[0] is not nodes:
            self._tags = (nodes, {client_tag(node_id): node_id for node_id in nodes})
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

    def _judge(self, applied: Applied, fresh: list[Item], before: list[_Before], bringer: _Bringer) -> Checked:
        table = self._table
        items = {item.value.get("sig"): item for item in fresh}
        shown = [_form(each, bringer) for each in applied.touched]
        if len(shown) > 1:
            shown.sort(key=lambda each: (_RANK[each.map_name], each.key != "coordinator"))
        before += [self._before(each) for each in shown]
        table.show([each[:4] for each in shown])

        checked = Checked([], applied.relay, [], [])
        for new, old in zip(shown, before, strict=True):
            item = items.get(new.sig)
            if item is None:
                raise Refusal(Code.WRITE_DENIED, f"{new.map_name}.{new.key} goes back to an earlier value")
            if new.record is None or new.record != old.shown.record:
                self._judge_change(new, old, bringer, checked, is_concurrent=item.origin != old.item)
        if not bringer.is_relay:
            visible = {each.sig for each in shown}
            for item in fresh:
                if item.value.get("sig") not in visible:
                    self._judge_hidden(item, bringer)
        for new in shown:
            table.put_item(new.map_name, new.key, items[new.sig].id)
        return checked

    def _judge_change(
        self, new: _Shown, old: _Before, bringer: _Bringer, checked: Checked, *, is_concurrent: bool
    ) -> None:
        """Refuse what its bringer answers for; note what the rest changes."""
        map_name, key, record = new.map_name, new.key, new.record
        table, present = self._table, old.believed
        is_own = record is not None and record["signedBy"] == bringer.node_id
        is_answered_for = is_own or not bringer.is_relay
        is_concurrent = is_concurrent and old.shown.record is not None
        aside = table.aside(map_name, key)
        if aside is not None:
            # What a node wrote once, and what of it is not believed any more, comes again with every answer to a sync.
            is_past = bringer.is_sync and (bringer.is_relay or (aside.is_authentic and present is None))
            # This node may not be admitted yet, or with a new key, or revoked: it may write its own all the same.
            is_waiting = bringer.node_id == self._own and not self._is_admitted()
            if is_answered_for and not is_past and not is_waiting:
                raise bringer.refusal_of(map_name, key, record, aside)
            checked.aside.append(SetAside(map_name, key, aside.signer or new.signer, aside.reason))
            # A version that is newer than this one knows fields that this one does not: its owner means what it wrote.
            is_newer = record is None and present is not None and new.signer == present["signedBy"]
            if present is not None and not is_newer:
                self._restore(map_name, key, present, checked)
            return
        if record is None:
            return
        if present is not None and record["signedBy"] == present["signedBy"] and record["rev"] <= present["rev"]:
            if is_answered_for and not is_concurrent:
                reason = f"{map_name}.{key} has rev {record['rev']} after rev {present['rev']}"
                raise Refusal(Code.WRITE_DENIED, reason, field="rev")
            self._restore(map_name, key, present, checked)
            return
        if is_answered_for:
            # What a backbone node wrote while it was away, it wrote without knowing what stands here.
            spared = bringer.is_relay and (is_concurrent or bringer.is_sync)
            reason = why_not_written(map_name, key, record, present, table, is_concurrent=spared)
            if reason is not None and (map_name == "coordination" or not spared):
                raise Refusal(Code.WRITE_DENIED, _denial(map_name, key, record, reason), field=map_name)
            self._check_count(map_name, record["signedBy"], is_relay=bringer.is_relay)
        elif self._is_taken_away(map_name, key, record, present):
            self._restore(map_name, key, present, checked)
            return
        checked.changes.append(Change(map_name, key, record))

    def _is_taken_away(self, map_name: str, key: str, record: Record, present: Record | None) -> bool:
        """Whether a removal stands in the place of a record that is not its signer's."""
        if present is None or is_removed(present) or not is_removed(record):
            return False
        return not may_replace(map_name, key, present, record["signedBy"], self._table)

    def _restore(self, map_name: str, key: str, record: Record | None, checked: Checked) -> None:
        """Have a record written again that was believed, if it would be still."""
        if record is not None and self._table.why_not(map_name, key, record) is None:
            checked.restore.append(Change(map_name, key, record))

    def _judge_hidden(self, item: Item, bringer: _Bringer) -> None:
        """Refuse a write that would be refused if Yjs had picked it. It does no harm, as nobody gets to see it; but who
        may not write a key is thrown out for trying, not for winning.

        One that builds on an older value does not say which key it is for, and is let go.
        """
        if item.root is None or item.key is None:
            return
        record = check_record(item.root, item.key, item.value)
        aside = self._table.why_not(item.root, item.key, record)
        if aside is not None:
            raise bringer.refusal_of(item.root, item.key, record, aside)
        present = self._table.get(item.root, item.key)
        if present is not None and record["signedBy"] == present["signedBy"]:
            return
        reason = why_not_written(item.root, item.key, record, present, self._table, is_concurrent=True)
        if reason is not None:
            raise Refusal(Code.WRITE_DENIED, _denial(item.root, item.key, record, reason), field=item.root)

    def _before(self, new: _Shown) -> _Before:
        map_name, key = new.map_name, new.key
        present, aside = self._table.shown(map_name, key), self._table.aside(map_name, key)
        problem = aside.reason if present is None and aside is not None else ""
        shown = _Shown(map_name, key, present, problem, None, None)
        return _Before(shown, self._table.get(map_name, key), self._table.item(map_name, key))

    def _check_count(self, map_name: str, signer: str, *, is_relay: bool) -> None:
        most = MAPS[map_name].keys_per_node
        # A seed signs the removals of what others left, and may sign as many as there are.
        held = self._table.held_by(map_name, signer) - (self._table.removed_by(map_name, signer) if is_relay else 0)
        if held > most:
            raise Refusal(
                Code.TOO_LARGE,
                f"{signer} has more than {most} records in {map_name}",
                hint="Removed records count as well. Let another gateway have what is new.",
            )


def _form(touched: Touched, bringer: _Bringer) -> _Shown:
    """A changed key with its record in plain form. What is no record is refused, or may come with a relay, unread."""
    map_name, key, value = touched
    if value is None:
        raise Refusal(
            Code.WRITE_DENIED,
            f"{map_name}.{key[:80]} was deleted; keys stay",
            hint='Write a record with "status": "removed" in its place.',
        )
    try:
        record = check_record(map_name, key, value)
    except Refusal as refusal:
        said = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        signer = said.get("signedBy")
        if not bringer.is_relay or signer in (None, bringer.node_id) or not is_harmless(key, said):
            raise
        return _Shown(map_name, key, None, refusal.message, said.get("sig"), signer)
    return _Shown(map_name, key, record, "", record["sig"], record["signedBy"])


def _denial(map_name: str, key: str, record: Record, reason: str) -> str:
    return f"{record['signedBy']} may not write {map_name}.{key}: {reason}"


def _incomplete() -> Refusal:
    return Refusal(Code.SEQUENCE_GAP, "the update builds on changes that have not arrived", hint=_SYNC_AGAIN)
