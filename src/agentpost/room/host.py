"""The room of a running gateway: brought back from the disk, kept there, and told to the peers that are connected.

Knows nothing of sockets: the edges open sessions on `hub` and carry their frames.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.snapshot import ROOM_VERSION, NodeStatus, NodeTier
from agentpost.room.awareness import Awareness
from agentpost.room.copies import publish_invites
from agentpost.room.document import Room
from agentpost.room.guard import SetAside
from agentpost.room.journal import RoomJournal
from agentpost.room.members import Member, Root
from agentpost.room.records import Record
from agentpost.room.sync import RoomHub
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.store.values import Incident, Invite, KnownNode, Note
from agentpost.tasks import TaskOwner
from agentpost.world import Chance, Clock

__all__ = ["RoomHost"]

_log = logging.getLogger(__name__)

_BEAT_SECONDS: Final = 10.0
_GOODBYE_SECONDS: Final = 1.0
_GOODBYE_STEP_SECONDS: Final = 0.02
_RETRY_SECONDS: Final = 5.0
# An honest node is refused once for what another took meanwhile. One that is refused again and again has another fault.
_START_OVER_AGAIN_MS: Final = 60_000
_TOLD_AGAIN_MS: Final = 3_600_000
_MOST_TOLD_ASIDE: Final = 128
_LONGEST_REASON: Final = 300
# Where the root of the mesh is kept beside the room.
_COLLECTION: Final = "room"
_ROOT: Final = "root"


class _KeptRoot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    node_id: str
    public_key: str


class RoomHost:
    """Owns the room, its journal and its heartbeat. `start` it once, `stop` it once."""

    def __init__(self, store: Store, identity: Identity, *, tier: NodeTier, clock: Clock, chance: Chance) -> None:
        self._store = store
        self._identity = identity
        self._tier = tier
        self._endpoint: str | None = None
        self._clock = clock
        self.room = Room(
            node_id=store.node_id,
            tier=tier,
            signing=identity.signing,
            clock=clock,
            chance=chance,
            root=self._load_root(),
        )
        self.room.on_aside = self._note_aside
        self._noted = asyncio.Event()
        self._journal = RoomJournal(self.room, store, on_note=self._noted.set)
        awareness = Awareness(
            node_id=store.node_id,
            signing=identity.signing,
            keys=self.room.keys,
            presence=self.room.presence,
            clock=clock,
        )
        self.hub = RoomHub(self.room, awareness, clock=clock)
        self._tasks = TaskOwner("room")
        # The seeds that say that they have revoked this gateway; one that lets it in again takes that back.
        self.refused_by: set[str] = set()
        # What of this node's own is to be written again, after the room was taken anew.
        self._own: list[tuple[str, str, Record]] = []
        self._started_over_ms: int | None = None
        self._is_leaving = False
        # When it was said last that a signer's record is not believed.
        self._told_aside_ms: dict[str, int] = {}
        self._left_over: frozenset[tuple[str, str]] = frozenset()

    async def start(self) -> None:
        """Bring the room back and say that this node is there."""
        for ignored in self._journal.load():
            _log.warning("the stored room has something that is passed over: %s: %s", ignored.where, ignored.reason)
        self._state_again()
        self.register(status=NodeStatus.ONLINE)
        await self._journal.flush()
        self.hub.beat()
        self._tasks.spawn(self._beat(), name="heartbeat")
        self._tasks.spawn(self._keep(), name="journal")

    def register(self, *, status: NodeStatus) -> None:
        """Write this node's own record, if it says something new."""
        present = self.room.record("nodes", self.room.node_id) or {}
        said: dict[str, Any] = {
            "tier": self._tier.value,
            "status": status.value,
            "protocolVersion": ROOM_VERSION,
            "publicKey": self._identity.signing_public,
            "sealingKey": self._identity.sealing_public,
            "endpointWs": self._endpoint or present.get("endpointWs"),
            "outbox": f"pipe:{self.room.node_id}:out",
        }
        self.room.write("nodes", self.room.node_id, said)

    def announce(self, url: str) -> None:
        """Tell the room where this node can be reached, so that others find it when their seeds are gone."""
        self._endpoint = url.replace("http", "ws", 1)
        self.register(status=NodeStatus.ONLINE)

    # Members

    def known_node(self, node_id: str) -> KnownNode | None:
        """A node as this gateway knows it: from its own joins, or by the statements in the room."""
        stored = self._store.known_node(node_id)
        if self._tier is not NodeTier.BACKBONE or node_id == self.room.node_id:
            return stored
        member = self.room.keys.member(node_id)
        if member is None or _is_outdated(member, stored):
            return stored
        return KnownNode(
            node_id=node_id,
            # One that was revoked before it ever came has no key.
            signing_public=member.public_key or None,
            sealing_public=self._sealing_key(node_id, stored, member),
            tier=member.tier,
            admitted_by=member.said_by,
            pinned_at_ms=member.said_at_ms if stored is None else stored.pinned_at_ms,
            revoked_at_ms=member.said_at_ms if member.is_revoked else None,
        )

    def _sealing_key(self, node_id: str, stored: KnownNode | None, member: Member) -> str | None:
        if stored is not None and stored.signing_public == member.public_key:
            return stored.sealing_public
        return (self.room.record("nodes", node_id) or {}).get("sealingKey")

    def known_key(self, node_id: str) -> str | None:
        """The key that a node must prove: the room's word, or, while there is no room, what was pinned at the join."""
        member, stored = self.room.keys.member(node_id), self._store.known_node(node_id)
        pinned = None if stored is None or stored.revoked_at_ms is not None else stored.signing_public
        if member is None or (member.said_at_ms == 0 and pinned is not None):
            # Of the root nothing is said before the room is here; it may have another key by now.
            return pinned
        return member.public_key

    def admit(self, node: KnownNode) -> None:
        """Say in the room that a node is a member, with the key that it proved here."""
        if self._may_state() and node.signing_public is not None and node.revoked_at_ms is None:
            self.room.admit(node.node_id, node.signing_public, node.tier)

    def revoke(self, node_id: str) -> None:
        """Say in the room that a node is no member any more, and write over what it left."""
        if self._may_state() and self.room.revoke(node_id):
            left = frozenset(place for place in self.room.left_over() if self.room.set_aside()[place].signer == node_id)
            self.room.heal(left)

    def _may_state(self) -> bool:
        return self.room.keys.is_backbone(self.room.node_id)

    def _state_again(self) -> None:
        """Say what the store has and the room has not: a stop came between the two, or the room is lost."""
        if not self._may_state():
            return
        for node in self._store.known_nodes():
            member = self.room.keys.member(node.node_id)
            is_own = node.admitted_by == self.room.node_id and node.node_id != self.room.node_id
            if is_own and node.revoked_at_ms is None and member is None:
                self.admit(node)
            elif member is not None and not member.is_revoked and member.said_at_ms < (node.revoked_at_ms or 0):
                self.room.revoke(node.node_id)

    # The root of the mesh

    def find_root(self) -> tuple[str, str]:
        """The node that began the mesh, and the key that it had then."""
        return self.room.root.node_id, self.room.root.public_key

    async def join_mesh(self, root: Root, *, is_alone: bool) -> bool:
        """Take the root of the mesh that this gateway joins. Whether it is another than before.

        A gateway that has members of its own, or is in touch with its mesh, does not change: two meshes do not become
        one. `is_alone`: it has no connection to any other gateway now.
        """
        if root == self.room.root:
            return False
        members = self.room.keys.others()
        if members and (self._tier is NodeTier.BACKBONE or not is_alone):
            raise Refusal(
                Code.CONFLICT,
                f"this gateway is in the mesh that {self.room.root.node_id} began, with {_some(members)}; "
                f"the other one was begun by {root.node_id}, and two meshes do not become one",
                hint="Let the gateways of one mesh join the other with new homes: `agentpost up --home …`, then join.",
            )
        value = msgspec.json.encode(_KeptRoot(node_id=root.node_id, public_key=root.public_key))
        await self._store.put_notes([Note(collection=_COLLECTION, key=_ROOT, value=value, at_ms=self._clock.now_ms())])
        if members:
            self._own = self.room.start_over(root)
            self._journal.store_anew()
        else:
            self.room.set_root(root)
        return True

    def _load_root(self) -> Root | None:
        kept = self._store.note(_COLLECTION, _ROOT)
        if kept is None or kept.value is None:
            return None
        root = msgspec.json.decode(kept.value, type=_KeptRoot)
        return Root(root.node_id, root.public_key)

    # What was refused

    def start_over(self) -> bool:
        """Forget the room, to take it anew from a seed that refuses what stands in this one (ROOM-5).

        False if that was done only just now: then it is no help. The connections end, and come again.
        """
        now_ms = self._clock.monotonic_ms()
        is_again = self._started_over_ms is not None and now_ms < self._started_over_ms + _START_OVER_AGAIN_MS
        if is_again or self._tier is NodeTier.BACKBONE:
            return False
        self._started_over_ms = now_ms
        self._own = self.room.start_over()
        self._journal.store_anew()
        for session in self.hub.sessions:
            session.close()
        return True

    def bring_back(self) -> None:
        """Write again what is this node's own, once the room is here. What another owns by now stays the other's."""
        own, self._own = self._own, []
        for map_name, key, record in own:
            fields = {name: value for name, value in record.items() if name not in ("rev", "signedBy", "sig")}
            try:
                self.room.write(map_name, key, fields)
            except Refusal as refusal:
                _log.warning("%s.%s could not be written again: %s", map_name, key, refusal.message)
        self.register(status=NodeStatus.ONLINE)

    def _note_aside(self, aside: SetAside, peer: str) -> None:
        signer, now_ms = aside.signer or "?", self._clock.now_ms()
        if now_ms < self._told_aside_ms.get(signer, -_TOLD_AGAIN_MS) + _TOLD_AGAIN_MS or peer == self.room.node_id:
            return
        if len(self._told_aside_ms) >= _MOST_TOLD_ASIDE:
            recent = {name: at_ms for name, at_ms in self._told_aside_ms.items() if now_ms < at_ms + _TOLD_AGAIN_MS}
            self._told_aside_ms = recent
            if len(recent) >= _MOST_TOLD_ASIDE:
                return  # a relay that makes up signers; enough has been said
        self._told_aside_ms[signer] = now_ms
        detail: dict[str, str | int | bool | None] = {
            "where": f"{aside.map_name}.{aside.key}"[:_LONGEST_REASON],
            "reason": aside.reason[:_LONGEST_REASON],
            "broughtBy": peer,
        }
        incident = Incident(kind=IncidentKind.RECORD_SET_ASIDE, subject=signer, at_ms=now_ms, detail=detail)
        self._tasks.spawn(self._raise(incident), name="incident")

    async def _raise(self, incident: Incident) -> None:
        await self._store.raise_incident(incident)

    # Keeping

    def publish_invites(self, invites: Iterable[Invite]) -> int:
        """Show this node's open invites in the room, and what became of those that were shown."""
        return publish_invites(self.room, invites, now_ms=self._clock.now_ms())

    async def say_goodbye(self) -> None:
        """Tell the peers that this gateway leaves, while they are connected: nobody else can say it."""
        self._is_leaving = True
        self.register(status=NodeStatus.OFFLINE)
        self.hub.farewell()
        for _ in range(round(_GOODBYE_SECONDS / _GOODBYE_STEP_SECONDS)):
            if not any(session.has_frames for session in self.hub.sessions):
                break
            await asyncio.sleep(_GOODBYE_STEP_SECONDS)
        # What was taken from a session goes to its socket with the next turns of the loop.
        await asyncio.sleep(_GOODBYE_STEP_SECONDS)

    async def stop(self) -> None:
        """Say goodbye, and leave nothing that is not on the disk."""
        await self.say_goodbye()
        await self._tasks.close()
        await self._journal.flush()

    def _heal(self) -> None:
        """Write over what revoked nodes and strangers left, slowly, and by one gateway at a time."""
        room, presence = self.room, self.room.presence
        left, before = room.left_over(), self._left_over
        self._left_over = left
        online = (
            node_id
            for node_id in room.records("nodes")
            if room.keys.is_backbone(node_id) and presence.status_of(node_id) is NodeStatus.ONLINE
        )
        if left & before and min(online, default=None) == room.node_id:
            room.heal(left & before)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            if self._is_leaving:
                return
            self.hub.beat()
            try:
                self._heal()
            except Refusal as refusal:
                _log.warning("what others left in the room could not be written over: %s", refusal.message)

    async def _keep(self) -> None:
        while True:
            await self._noted.wait()
            self._noted.clear()
            try:
                await self._journal.flush()
            except Refusal as refusal:
                _log.error("the room could not be stored: %s", refusal.message)
                await asyncio.sleep(_RETRY_SECONDS)
                self._noted.set()


def _is_outdated(member: Member, stored: KnownNode | None) -> bool:
    """Whether what was decided here is later than what the room says: the room hears of it in a moment."""
    if stored is None:
        return False
    if stored.revoked_at_ms is not None:
        return member.said_at_ms < stored.revoked_at_ms
    return member.is_revoked and member.said_at_ms < stored.pinned_at_ms


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
