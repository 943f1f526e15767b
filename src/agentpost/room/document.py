"""The room of a gateway: the Yjs document `ansible-control`, read by its records and written under this node's key.

Bytes in, bytes out: knows nothing of sockets and of where it is stored. Listeners are told of every update that was
merged, whoever made it, in the form in which it is stored and passed on.

What is overwritten leaves a mark in a Yjs document for ever, unless the same client wrote the same key right before.
So a key that is written again and again (`MapRules.is_hot`) has a client id of its own: then only its last value takes
space. The ids are new with every start, so that a gateway that lost the end of its log never uses a place twice.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct

from agentpost.protocol.errors import Refusal
from agentpost.protocol.snapshot import NodeTier, RoomSnapshot
from agentpost.room.authority import Change, Crossed
from agentpost.room.crdt import Replica, Touched
from agentpost.room.guard import MAX_UPDATE_BYTES, RELAY_TAG, Checked, RoomGuard, client_tag, in_order
from agentpost.room.keys import RoomKeyBook
from agentpost.room.presence import Presence
from agentpost.room.records import REMOVED, Record, sign_record, verify_record
from agentpost.room.schema import MAPS, check_id, check_record
from agentpost.room.snapshots import SnapshotMaker
from agentpost.room.table import RecordTable
from agentpost.room.wire import ItemId, Write, encode_write, encode_writes
from agentpost.world import Chance, Clock

__all__ = ["Ignored", "Listener", "Room"]

Listener = Callable[[bytes, str], None]
_SIGNATURE: Final = ("signedBy", "rev", "sig")
_MOST_ROUNDS: Final = 16


class Ignored(Struct, frozen=True, kw_only=True):
    """Something in the stored room that was passed over, and why."""

    where: str
    reason: str


class Room:
    """Used by one thread. `pinned` are the keys that this gateway trusts by itself, its own included."""

    def __init__(
        self,
        *,
        node_id: str,
        tier: NodeTier,
        signing: Ed25519PrivateKey,
        clock: Clock,
        chance: Chance,
        pinned: Mapping[str, bytes] | None = None,
        backbone: Collection[str] = (),
        presence: Presence | None = None,
    ) -> None:
        self.node_id = check_id(node_id, field="nodeId")
        self._signing = signing
        self._clock = clock
        self._chance = chance
        self._table = RecordTable()
        self.keys = RoomKeyBook(self._table, own=node_id, pinned=pinned or {}, backbone=backbone)
        public_key = signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.keys.pin(node_id, public_key, is_backbone=tier is NodeTier.BACKBONE)
        self.presence = presence or Presence(clock)
        self._snapshots = SnapshotMaker(self._table, self.keys, self.presence)
        self._document = Replica(is_watched=False)
        self._guard = self._new_guard()
        self._client = self._new_client()
        self._hot_clients: dict[tuple[str, str], int] = {}
        self._listeners: list[Listener] = []

    # Reading

    def snapshot(self) -> RoomSnapshot:
        """The room as the router needs it. The same object until something changes."""
        return self._snapshots.make()

    def record(self, map_name: str, key: str) -> Record | None:
        """A verified record, removed ones included. Not to be altered."""
        return self._table.get(map_name, key)

    def records(self, map_name: str) -> Mapping[str, Record]:
        return self._table.all(map_name)

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
        present = self._table.get(map_name, key)
        record = {name: value for name, value in fields.items() if value is not None and name not in _SIGNATURE}
        if present is not None and present["signedBy"] == self.node_id and _fields_of(present) == record:
            return False
        self._write(map_name, key, record, 0 if present is None else present["rev"])
        return True

    def write_together(self, writes: Sequence[tuple[str, str, Mapping[str, Any]]]) -> bool:
        """Set several records of this node's in one update: nobody sees some of them without the others.

        What stands there already is left out. Not for keys that are written again and again (`MapRules.is_hot`).
        """
        news: list[Write] = []
        for map_name, key, fields in writes:
            present = self._table.get(map_name, key)
            record = {name: value for name, value in fields.items() if value is not None and name not in _SIGNATURE}
            if present is not None and present["signedBy"] == self.node_id and _fields_of(present) == record:
                continue
            signed = self._signed(map_name, key, record, 0 if present is None else present["rev"])
            news.append(Write(map_name, key, self._table.item(map_name, key), signed))
        if news:
            update = encode_writes(ItemId(self._client, self._guard.next_clock(self._client)), news)
            self._merge(self._guard.check(update, peer=self.node_id), self.node_id)
        return bool(news)

    def remove(self, map_name: str, key: str) -> bool:
        """Take a record away: the key stays, and says so."""
        return self._table.get(map_name, key) is not None and self.write(map_name, key, {"status": REMOVED})

    def receive(
        self, update: bytes, *, peer: str, is_sync: bool = False, max_bytes: int = MAX_UPDATE_BYTES
    ) -> list[Change]:
        """Take an update that a peer brought, if the guard lets it pass; a refusal if not, and nothing has happened.

        `is_sync`: it is the answer to what this side has not seen, not a write that is being made.
        """
        checked = self._guard.check(update, peer=peer, is_sync=is_sync, max_bytes=max_bytes)
        self._merge(checked, peer)
        for change in checked.restore:
            # Yjs has picked the older of two writes that did not know of each other. The owner's signature is in the
            # record, so whoever has it can put it back. An edge node leaves that to the seeds, which see the same, but
            # not in the answer to a sync: then it may be the only one who knows better.
            if is_sync or change.record["signedBy"] == self.node_id or self.keys.is_backbone(self.node_id):
                with contextlib.suppress(Crossed):
                    self._put(change.map_name, change.key, change.record, self._relay_client(), is_sync=is_sync)
        return checked.changes

    def adopt(self, touched: Iterable[Touched], *, peer: str, is_past: bool) -> None:
        """Write anew what a peer knows of others, where it is authentic, newer than what is here, and allowed.

        What may be true but cannot be judged here is passed over: whoever could judge it will bring it. A refusal means
        that the peer forged a record, or wrote one that it may not.
        """
        waiting = in_order(touched)
        # A node may be vouched for by another that comes later.
        for _ in range(_MOST_ROUNDS):
            left = [each for each in waiting if not self._adopt(*each, peer=peer, is_past=is_past)]
            if not left or len(left) == len(waiting):
                return
            waiting = left

    def sign_anew(self) -> None:
        """Sign this node's own records with the key that it has now, where another of its keys signed them."""
        public_key = self._signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        own = [(name, key, each) for name, key, each in self._table if each["signedBy"] == self.node_id]
        for map_name, key, record in own:
            if not verify_record(map_name, key, record, public_key):
                self._write(map_name, key, _fields_of(record), record["rev"])

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Be told of every merged update and of who brought it. Gives the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Keeping

    def load(self, updates: Iterable[bytes]) -> list[Ignored]:
        """Take over what was stored here. It is this gateway's own, so rights are not judged again; signatures are."""
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
        return ignored + self._verify_all(items)

    def start_over(self) -> None:
        """Forget the room, to take it anew from a peer: the way out when that peer refuses what stands in this one."""
        self._document = Replica(is_watched=False)
        for map_name, key, _ in list(self._table):
            self._table.put(map_name, key, None)
        self._table.forget_items()
        self._guard = self._new_guard()
        self._client = self._new_client()
        self._hot_clients = {}

    def _verify_all(self, items: Mapping[str, ItemId]) -> list[Ignored]:
        ignored: list[Ignored] = []
        records: list[tuple[str, str, Record]] = []
        for map_name in MAPS:
            for key, value in self._document.values(map_name).items():
                try:
                    record = check_record(map_name, key, value)
                except Refusal as refusal:
                    ignored.append(Ignored(where=f"{map_name}.{key[:80]}", reason=refusal.message))
                    continue
                records.append((map_name, key, record))
                self._table.put_item(map_name, key, items[record["sig"]])
                if map_name == "nodes":
                    # The admissions have to be there before anybody's key can be looked up.
                    self._table.put(map_name, key, record)
        for map_name, key, record in records:
            if not self._is_authentic(map_name, key, record):
                ignored.append(Ignored(where=f"{map_name}.{key[:80]}", reason=f"{record['signedBy']} did not sign it"))
                self._table.put(map_name, key, None)
            else:
                self._table.put(map_name, key, record)
        return ignored

    def _is_authentic(self, map_name: str, key: str, record: Record) -> bool:
        signer = record["signedBy"]
        keys = (self.keys.public_key(signer), *self.keys.former_keys(signer))
        return any(key_ is not None and verify_record(map_name, key, record, key_) for key_ in keys)

    def _adopt(self, map_name: str, key: str, record: Record, *, peer: str, is_past: bool) -> bool:
        """Whether there is nothing more to do for this record."""
        present = self._table.get(map_name, key)
        if present is not None and record["rev"] <= present["rev"]:
            self._take_back_admission(map_name, key, record)
            return True
        try:
            self._guard.judge(map_name, key, record, is_past=is_past)
        except Crossed as crossed:
            if crossed.signer == peer:
                raise
            return False
        self._put(map_name, key, record, self._relay_client(), is_sync=is_past)
        return True

    def _take_back_admission(self, map_name: str, key: str, record: Record) -> None:
        """A node that lost its room finds the word for its key in what others kept of its own record."""
        present = self._table.get(map_name, key) or {}
        if (map_name, key) != ("nodes", self.node_id) or "admission" in present or "admission" not in record:
            return
        own = {name: value for name, value in present.items() if name not in _SIGNATURE}
        public_key = present.get("publicKey")
        if public_key is not None and record["admission"]["publicKey"] == public_key:
            self.write(map_name, key, own | {"admission": record["admission"]})

    def _write(self, map_name: str, key: str, fields: Record, after_rev: int) -> None:
        self._put(map_name, key, self._signed(map_name, key, fields, after_rev), self._client_for(map_name, key))

    def _signed(self, map_name: str, key: str, fields: Record, after_rev: int) -> Record:
        # The time of day, so that a node that lost its disk does not begin below what others know of it.
        record = fields | {"rev": max(self._clock.now_ms(), after_rev + 1), "signedBy": self.node_id}
        return check_record(map_name, key, sign_record(map_name, key, record, self._signing))

    def _put(self, map_name: str, key: str, record: Record, client: int, *, is_sync: bool = False) -> None:
        update = encode_write(
            ItemId(client, self._guard.next_clock(client)),
            root=map_name,
            key=key,
            after=self._table.item(map_name, key),
            value=record,
        )
        # What this node writes passes the same guard: what others would refuse never leaves.
        self._merge(self._guard.check(update, peer=self.node_id, is_sync=is_sync), self.node_id)

    def _merge(self, checked: Checked, origin: str) -> None:
        if not checked.relay:
            return
        self._document.apply(checked.relay)
        for listener in tuple(self._listeners):
            listener(checked.relay, origin)

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
        return RoomGuard(self._table, self.keys, content=lambda: self._document.update_since())


def _fields_of(record: Mapping[str, Any]) -> Record:
    return {name: value for name, value in record.items() if name not in _SIGNATURE}
