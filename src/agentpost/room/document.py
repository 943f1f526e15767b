"""The room of a gateway: the Yjs document `ansible-control`, read by its records and written under this node's key.

Bytes in, bytes out: knows nothing of sockets and of where it is stored. Listeners are told of every update that was
merged, whoever made it, in the form in which it is stored and passed on.

What is overwritten leaves a mark in a Yjs document for ever, unless the same client wrote the same key right before.
So a key that is written again and again (`MapRules.is_hot`) has a client id of its own: then only its last value takes
space. The ids are new with every start, so that a gateway that lost the end of its log never uses a place twice.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct

from agentpost.protocol.errors import Refusal
from agentpost.protocol.snapshot import NodeTier, RoomSnapshot
from agentpost.room.crdt import Replica, merged
from agentpost.room.guard import (
    MAX_UPDATE_BYTES,
    NOBODY,
    RELAY_TAG,
    Change,
    Checked,
    RoomGuard,
    SetAside,
    client_tag,
)
from agentpost.room.members import Root, statement_key
from agentpost.room.membership import RoomMembers
from agentpost.room.presence import Presence
from agentpost.room.records import REMOVED, Record, is_removed, sign_record, to_base64
from agentpost.room.schema import MAPS, check_id, check_record, is_statement
from agentpost.room.snapshots import SnapshotMaker
from agentpost.room.table import Aside, RecordTable
from agentpost.room.wire import ItemId, Write, encode_write, encode_writes
from agentpost.world import Chance, Clock

__all__ = ["Ignored", "Listener", "Room"]

Listener = Callable[[bytes, str], object]
_SIGNATURE: Final = ("signedBy", "rev", "sig")
# Of a crowd that is not believed, this many are written over at once.
_HEALED_AT_ONCE: Final = 64


class Ignored(Struct, frozen=True, kw_only=True):
    """Something in the stored room that was passed over, and why."""

    where: str
    reason: str


class Room:
    """Used by one thread. `root` is the anchor of the mesh; a gateway without one has joined none, and is its own."""

    def __init__(
        self,
        *,
        node_id: str,
        tier: NodeTier,
        signing: Ed25519PrivateKey,
        clock: Clock,
        chance: Chance,
        root: Root | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.node_id = check_id(node_id, field="nodeId")
        self.public_key = to_base64(signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        self._signing = signing
        self._clock = clock
        self._chance = chance
        self._table = RecordTable(root or Root(node_id, self.public_key, tier))
        self.keys = RoomMembers(self._table, own=node_id)
        self.presence = presence or Presence(clock)
        self._snapshots = SnapshotMaker(self._table, self.presence)
        self._document = Replica(is_watched=False)
        self._guard = self._new_guard()
        self._client = self._new_client()
        self._hot_clients: dict[tuple[str, str], int] = {}
        self._listeners: list[Listener] = []
        # Told of every record that was merged and is not believed, and of who brought it.
        self.on_aside: Callable[[SetAside, str], None] = _ignore

    # Reading

    def snapshot(self) -> RoomSnapshot:
        """The room as the router needs it. The same object until something changes."""
        return self._snapshots.make()

    def record(self, map_name: str, key: str) -> Record | None:
        """A believed record, removed ones included. Not to be altered."""
        return self._table.get(map_name, key)

    def records(self, map_name: str) -> Mapping[str, Record]:
        """The believed records of a map, removed ones included."""
        return self._table.all(map_name)

    def set_aside(self) -> Mapping[tuple[str, str], Aside]:
        """What the document shows and is not believed, by map and key, with the reasons."""
        return self._table.all_aside()

    def state(self) -> bytes:
        """The state vector: what this side has seen."""
        return self._document.state()

    def update_since(self, state: bytes | None = None) -> bytes:
        """What somebody with this state has not seen; the whole document, without one."""
        return self._document.update_since(state)

    def has_seen(self, clocks: Mapping[int, int]) -> bool:
        """Whether so many clocks of each of these clients are here."""
        return all(clock <= self._guard.next_clock(client) for client, clock in clocks.items())

    # Writing

    def write(self, map_name: str, key: str, fields: Mapping[str, Any]) -> bool:
        """Set a record of this node's. False, and nothing happens, if that is what stands there already."""
        news = self._news(map_name, key, fields)
        if news is None:
            return False
        self._put(map_name, key, news, self._client_for(map_name, key))
        return True

    def write_together(self, writes: Sequence[tuple[str, str, Mapping[str, Any]]]) -> bool:
        """Set several records of this node's in one update: nobody sees some of them without the others.

        What stands there already is left out. Not for keys that are written again and again (`MapRules.is_hot`).
        """
        news: list[Write] = []
        for map_name, key, fields in writes:
            signed = self._news(map_name, key, fields)
            if signed is not None:
                news.append(Write(map_name, key, self._table.item(map_name, key), signed))
        if news:
            update = encode_writes(ItemId(self._client, self._guard.next_clock(self._client)), news)
            self._take(self._guard.check(update, peer=self.node_id), self.node_id)
        return bool(news)

    def remove(self, map_name: str, key: str) -> bool:
        """Take a record away: the key stays, and says so."""
        return self._table.get(map_name, key) is not None and self.write(map_name, key, {"status": REMOVED})

    def admit(self, node_id: str, public_key: str, tier: NodeTier) -> bool:
        """Say that a node is a member with this key and this tier. False if that is what all believe already."""
        member = self.keys.member(node_id)
        if member is not None and (member.public_key, member.tier, member.is_revoked) == (public_key, tier, False):
            return False
        self._state(node_id, {"act": "admit", "publicKey": public_key, "tier": tier.value})
        return True

    def revoke(self, node_id: str) -> bool:
        """Say that a node is no member any more. False if that is what all believe already."""
        if self.keys.is_revoked(node_id):
            return False
        self._state(node_id, {"act": "revoke"})
        return True

    def receive(
        self,
        update: bytes,
        *,
        peer: str,
        is_sync: bool = False,
        is_seed: bool = False,
        max_bytes: int = MAX_UPDATE_BYTES,
    ) -> list[Change]:
        """Take an update that a peer brought, if the guard lets it pass; a refusal if not, and nothing has happened.

        `is_sync`: it is the answer to what this side has not seen, not a write that is being made. `is_seed`: this node
        dialled the peer, to have the room from it.
        """
        checked = self._guard.check(update, peer=peer, is_sync=is_sync, is_seed=is_seed, max_bytes=max_bytes)
        self._take(checked, peer)
        for change in checked.restore:
            # The owner's signature is in the record, so whoever has it can put it back. An edge node leaves that to the
            # seeds, which see the same, but not in the answer to a sync: then it may be the only one who knows better.
            if is_sync or change.record["signedBy"] == self.node_id or self.keys.is_backbone(self.node_id):
                self._put_together([change])
        return checked.changes

    def adopt(self, records: Iterable[tuple[str, str, Any]], *, peer: str) -> None:
        """Write anew what a peer knows of others, where it would be believed and is newer than what is here.

        A refusal means that the peer itself signed something that it may not write.
        """
        waiting = [(name, key, record) for name, key, value in records if (record := _formed(name, key, value))]
        # What one record says may be the reason to believe another: the statements first.
        while True:
            news = [each for each in waiting if self._is_news(*each)]
            taken = self._guard.adoptable(news, peer=peer)
            if not taken:
                return
            self._put_together(taken)
            waiting = news

    def sign_anew(self) -> None:
        """Sign what this node owns with the key that it has now, where a former key of it signed that.

        Its own record it writes anew itself: the former key stands in it.
        """
        former = self.keys.former_keys(self.node_id)
        for map_name, key, record in list(self._table.all_shown()):
            if record["signedBy"] != self.node_id or self._table.get(map_name, key) is record or map_name == "nodes":
                continue
            if any(self._table.is_signed_by(map_name, key, record, each) for each in former):
                news = self._signed(map_name, key, _fields_of(record), record["rev"])
                self._put(map_name, key, news, self._client_for(map_name, key))

    def left_over(self) -> frozenset[tuple[str, str]]:
        """Where the document shows what a revoked node, or one that is no member, has left."""
        return frozenset(place for place, each in self._table.all_aside().items() if _is_left_over(place, each))

    def heal(self, places: Collection[tuple[str, str]]) -> None:
        """Write a removal over what stands there and is not believed, some of it at once."""
        for map_name, key in sorted(self.left_over().intersection(places))[:_HEALED_AT_ONCE]:
            shown = self._table.shown(map_name, key)
            news = self._signed(map_name, key, {"status": REMOVED}, 0 if shown is None else shown["rev"])
            self._put(map_name, key, news, self._client_for(map_name, key))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Be told of every merged update and of who brought it. Gives the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Keeping

    def load(self, updates: Iterable[bytes]) -> list[Ignored]:
        """Take over what was stored here: it passed the guard before. What is believed is found out anew."""
        ignored: list[Ignored] = []
        items: dict[str, ItemId] = {}
        taken: list[bytes] = []
        for place, update in enumerate(updates):
            try:
                self._document.apply(update)
                items |= self._guard.learn(update)
            except Refusal as refusal:
                ignored.append(Ignored(where=f"update {place + 1}", reason=refusal.message))
                self._document = Replica(is_watched=False)
                for earlier in taken:
                    self._document.apply(earlier)
            else:
                taken.append(update)
        self._show_all(items)
        for (map_name, key), aside in self._table.all_aside().items():
            ignored.append(Ignored(where=f"{map_name}.{key[:80]}", reason=aside.reason))
        return ignored

    def start_over(self, root: Root | None = None) -> list[tuple[str, str, Record]]:
        """Forget the room, to take it anew from a peer. Gives the records of this node that stood in it.

        `root`: that of another mesh, if this node changes to one.
        """
        own = [each for each in self._table if each[2]["signedBy"] == self.node_id and not is_removed(each[2])]
        self._document = Replica(is_watched=False)
        self._table.clear()
        if root is not None:
            self._table.set_root(root)
        self._guard = self._new_guard()
        self._client = self._new_client()
        self._hot_clients = {}
        return own

    def set_root(self, root: Root) -> None:
        """Take the root of the mesh that this node joins."""
        self._table.set_root(root)

    @property
    def root(self) -> Root:
        return self._table.root

    def _show_all(self, items: Mapping[str, ItemId]) -> None:
        shown: list[tuple[str, str, Record | None, str]] = []
        for map_name in MAPS:
            for key, value in self._document.values(map_name).items():
                try:
                    shown.append((map_name, key, check_record(map_name, key, value), ""))
                except Refusal as refusal:
                    shown.append((map_name, key, None, refusal.message))
                said = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
                item = items.get(said.get("sig", ""))
                if item is not None:
                    self._table.put_item(map_name, key, item)
        self._table.show(shown)

    def _is_news(self, map_name: str, key: str, record: Record) -> bool:
        present = self._table.get(map_name, key)
        return present is None or record["rev"] > present["rev"]

    def _put_together(self, records: Sequence[tuple[str, str, Record]]) -> None:
        """Write records of others anew, in structs of their own."""
        updates = [
            encode_write(
                ItemId(self._relay_client(), 0),
                root=map_name,
                key=key,
                after=self._table.item(map_name, key),
                value=record,
            )
            for map_name, key, record in records
        ]
        update = merged(updates)
        self._take(self._guard.check(update, peer=NOBODY, max_bytes=len(update)), self.node_id)

    def _state(self, node_id: str, said: Mapping[str, Any]) -> None:
        key = statement_key(self.node_id, self._chance.entropy(12).hex())
        named = self._table.members.next_statement(self.node_id, node_id)
        if said["act"] == "admit" and self.keys.public_key(node_id) is None:
            named.pop("through", None)
        self.write("coordination", key, {"nodeId": node_id, "at": self._clock.now_ms(), **said, **named})

    def _news(self, map_name: str, key: str, fields: Mapping[str, Any]) -> Record | None:
        """The signed record; None if this node has said that already."""
        shown = self._table.shown(map_name, key)
        record = {name: value for name, value in fields.items() if value is not None and name not in _SIGNATURE}
        if shown is not None and shown["signedBy"] == self.node_id and _fields_of(shown) == record:
            return None
        return self._signed(map_name, key, record, 0 if shown is None else shown["rev"])

    def _signed(self, map_name: str, key: str, fields: Record, after_rev: int) -> Record:
        # The time of day, so that a node that lost its disk does not begin below what others know of it.
        record = fields | {"rev": max(self._clock.now_ms(), after_rev + 1), "signedBy": self.node_id}
        return check_record(map_name, key, sign_record(map_name, key, record, self._signing))

    def _put(self, map_name: str, key: str, record: Record, client: int) -> None:
        update = encode_write(
            ItemId(client, self._guard.next_clock(client)),
            root=map_name,
            key=key,
            after=self._table.item(map_name, key),
            value=record,
        )
        # What this node writes passes the same guard: what others would refuse never leaves.
        self._take(self._guard.check(update, peer=self.node_id), self.node_id)

    def _take(self, checked: Checked, origin: str) -> None:
        if not checked.relay:
            return
        self._document.apply(checked.relay)
        for listener in tuple(self._listeners):
            listener(checked.relay, origin)
        for each in checked.aside:
            self.on_aside(each, origin)

    def _client_for(self, map_name: str, key: str) -> int:
        if not MAPS[map_name].is_hot:
            return self._client
        client = self._hot_clients.get((map_name, key))
        if client is None:
            client = self._hot_clients[map_name, key] = self._new_client()
        return client

    def _new_client(self) -> int:
        return client_tag(self.node_id) << 32 | int.from_bytes(self._chance.entropy(4), "big")

    def _relay_client(self) -> int:
        """An id that carries a record of anybody, once."""
        return RELAY_TAG << 32 | int.from_bytes(self._chance.entropy(4), "big")

    def _new_guard(self) -> RoomGuard:
        return RoomGuard(
            self._table, own=self.node_id, own_key=self.public_key, content=lambda: self._document.update_since()
        )


def _fields_of(record: Mapping[str, Any]) -> Record:
    return {name: value for name, value in record.items() if name not in _SIGNATURE}


def _formed(map_name: str, key: str, value: Any) -> Record | None:
    try:
        return check_record(map_name, key, value)
    except Refusal:
        return None


def _is_left_over(place: tuple[str, str], aside: Aside) -> bool:
    """Whether a record is in nobody's way if it goes. A statement stays: others build on it."""
    return aside.signer is not None and not aside.is_by_member and not is_statement(*place)


def _ignore(_aside: SetAside, _peer: str) -> None:
    pass
