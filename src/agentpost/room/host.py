"""The room of a running gateway: brought back from the disk, kept there, and told to the peers that are connected.

Knows nothing of sockets: the edges open sessions on `hub` and carry their frames.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from agentpost.protocol.errors import Refusal
from agentpost.protocol.snapshot import NodeStatus, NodeTier
from agentpost.room.awareness import Awareness
from agentpost.room.copies import publish_invites
from agentpost.room.document import Room
from agentpost.room.journal import RoomJournal
from agentpost.room.keys import make_admission
from agentpost.room.records import from_base64, is_removed, to_base64
from agentpost.room.sync import RoomHub
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.store.values import Invite, KnownNode, Note
from agentpost.tasks import TaskOwner
from agentpost.world import Chance, Clock

__all__ = ["RoomHost"]

_log = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = "1.1"
_BEAT_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 5.0
_MOST_FORMER_KEYS: Final = 16
# Where the word that others gave for this node's key is kept beside the room.
_COLLECTION: Final = "room"
_ADMISSION: Final = "admission"


class RoomHost:
    """Owns the room, its journal and its heartbeat. `start` it once, `stop` it once."""

    def __init__(self, store: Store, identity: Identity, *, tier: NodeTier, clock: Clock, chance: Chance) -> None:
        self._store = store
        self._identity = identity
        self._tier = tier
        self._endpoint: str | None = None
        self._clock = clock
        known = [node for node in store.known_nodes() if node.signing_public and node.revoked_at_ms is None]
        self.room = Room(
            node_id=store.node_id,
            tier=tier,
            signing=identity.signing,
            clock=clock,
            chance=chance,
            pinned={node.node_id: from_base64(node.signing_public or "") for node in known},
            backbone=[node.node_id for node in known if node.tier is NodeTier.BACKBONE],
        )
        kept = store.note(_COLLECTION, _ADMISSION)
        self._admission: dict[str, Any] | None = None if kept is None else msgspec.json.decode(kept.value or b"null")
        self._noted = asyncio.Event()
        self._journal = RoomJournal(self.room, store, on_note=self._noted.set)
        awareness = Awareness(
            node_id=store.node_id,
            client=int.from_bytes(chance.entropy(4), "big"),
            keys=self.room.keys,
            presence=self.room.presence,
            clock=clock,
        )
        self.hub = RoomHub(self.room, awareness, clock=clock)
        self._tasks = TaskOwner("room")

    async def start(self) -> None:
        """Bring the room back and say that this node is there."""
        for ignored in self._journal.load():
            _log.warning("the stored room has something that is passed over: %s: %s", ignored.where, ignored.reason)
        self.register(status=NodeStatus.ONLINE)
        await self._flush()
        self.hub.beat()
        self._tasks.spawn(self._beat(), name="heartbeat")
        self._tasks.spawn(self._keep(), name="journal")

    def register(self, *, status: NodeStatus, admission: dict[str, Any] | None = None) -> None:
        """Write this node's own record, if it says something new. What it said before stays where nothing is given."""
        present = self.room.record("nodes", self.room.node_id) or {}
        said: dict[str, Any] = {
            "tier": self._tier.value,
            "status": status.value,
            "protocolVersion": PROTOCOL_VERSION,
            "publicKey": self._identity.signing_public,
            "sealingKey": self._identity.sealing_public,
            "endpointWs": self._endpoint or present.get("endpointWs"),
            "outbox": f"pipe:{self.room.node_id}:out",
            "admission": admission or present.get("admission") or self._kept_admission(),
        }
        self.room.write("nodes", self.room.node_id, said)

    def announce(self, url: str) -> None:
        """Tell the room where this node can be reached, so that others find it when their seeds are gone."""
        self._endpoint = url.replace("http", "ws", 1)
        self.register(status=NodeStatus.ONLINE)

    def known_node(self, node_id: str) -> KnownNode | None:
        """A node as this gateway knows it: from its own joins, or by the word of other backbone nodes in the room."""
        stored = self._store.known_node(node_id)
        if self._tier is not NodeTier.BACKBONE or node_id == self.room.node_id:
            return stored
        revocation = self.room.record("coordination", f"revoked:{node_id}")
        if stored is not None and stored.revoked_at_ms is not None:
            if revocation is None or not is_removed(revocation) or revocation["rev"] < stored.revoked_at_ms:
                return stored
            # Revoked here and let in again elsewhere, later.
            stored = None
        key = self.room.keys.public_key(node_id)
        if stored is None or (key is not None and stored.signing_public not in (None, to_base64(key))):
            stored = self._vouched(node_id, key) or stored
        if stored is not None and revocation is not None and not is_removed(revocation):
            return replace(stored, revoked_at_ms=revocation["rev"])
        return stored

    def _vouched(self, node_id: str, key: bytes | None) -> KnownNode | None:
        record = self.room.record("nodes", node_id) or {}
        admission = record.get("admission")
        if key is None or admission is None or is_removed(record):
            return None
        return KnownNode(
            node_id=node_id,
            signing_public=to_base64(key),
            sealing_public=record.get("sealingKey"),
            tier=NodeTier(admission["tier"]),
            admitted_by=admission["by"],
            pinned_at_ms=admission["at"] if isinstance(admission["at"], int) else 0,
        )

    def pin(self, node: KnownNode) -> None:
        """Trust the key that a node proved here."""
        if node.signing_public is not None and node.revoked_at_ms is None:
            key = from_base64(node.signing_public)
            self.room.keys.pin(node.node_id, key, is_backbone=node.tier is NodeTier.BACKBONE)

    def vouch(self, node: KnownNode) -> dict[str, Any] | None:
        """This node's word for another's key, if its word counts: that of a backbone node does."""
        if self._tier is not NodeTier.BACKBONE or node.signing_public is None:
            return None
        return make_admission(
            by=self.room.node_id,
            signing=self._identity.signing,
            node_id=node.node_id,
            public_key=from_base64(node.signing_public),
            tier=node.tier,
            at_ms=node.pinned_at_ms,
            replaces=self._former_keys(node),
        )

    def revoke(self, node_id: str) -> None:
        """Tell everybody that a node's records and states are not taken any more."""
        if self._tier is NodeTier.BACKBONE:
            self.room.write("coordination", f"revoked:{node_id}", {"at": self._clock.now_ms()})

    def readmit(self, node_id: str) -> None:
        """Withdraw a revocation: the node was invited again."""
        if self._tier is NodeTier.BACKBONE and self.room.keys.is_revoked(node_id):
            self.room.remove("coordination", f"revoked:{node_id}")

    def publish_invites(self, invites: Iterable[Invite]) -> int:
        """Show this node's open invites in the room, and what became of those that were shown."""
        return publish_invites(self.room, invites, now_ms=self._clock.now_ms())

    async def stop(self) -> None:
        """Say goodbye, and leave nothing that is not on the disk."""
        self.register(status=NodeStatus.OFFLINE)
        self.hub.farewell()
        await self._tasks.close()
        await self._flush()

    def _kept_admission(self) -> dict[str, Any] | None:
        """The word for this node that stood in a room that is lost, once it is known here whose word that is.

        Said without it, the record could win over the one that others still have, and whoever has not pinned the key
        would let this node in no more.
        """
        kept, keys = self._admission, self.room.keys
        if kept is None or keys.is_revoked(kept["by"]):
            return None
        is_mine = (kept["publicKey"], kept["tier"]) == (self._identity.signing_public, self._tier.value)
        return kept if is_mine and keys.is_vouched_now(self.room.node_id, kept) else None

    def _own_admission(self) -> dict[str, Any] | None:
        return (self.room.record("nodes", self.room.node_id) or {}).get("admission")

    async def _flush(self) -> None:
        """Make the room durable, and beside it what has to outlive the room."""
        await self._journal.flush()
        admission = self._own_admission()
        if admission is not None and admission != self._admission:
            value, at_ms = msgspec.json.encode(admission), self._clock.now_ms()
            await self._store.put_notes([Note(collection=_COLLECTION, key=_ADMISSION, value=value, at_ms=at_ms)])
            self._admission = admission

    def _former_keys(self, node: KnownNode) -> list[str]:
        """The keys that the room has known the node by, without the one it has now."""
        record = self.room.record("nodes", node.node_id) or {}
        known = [record.get("publicKey"), *record.get("admission", {}).get("replaces", ())]
        return [key for key in known if key not in (None, node.signing_public)][:_MOST_FORMER_KEYS]

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            self.hub.beat()

    async def _keep(self) -> None:
        while True:
            await self._noted.wait()
            self._noted.clear()
            try:
                if self._own_admission() is None and self._kept_admission() is not None:
                    # The room has come back from others.
                    self.register(status=NodeStatus.ONLINE)
                await self._flush()
            except Refusal as refusal:
                _log.error("the room could not be stored: %s", refusal.message)
                await asyncio.sleep(_RETRY_SECONDS)
                self._noted.set()
