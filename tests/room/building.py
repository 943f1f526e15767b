"""What the tests of the room are made of: three nodes with keys, their rooms, and ways to write what one must not."""

from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pycrdt import Doc, Map

from agentpost.protocol.snapshot import NodeTier
from agentpost.room.awareness import Awareness
from agentpost.room.document import Room
from agentpost.room.members import Root, statement_key
from agentpost.room.records import sign_record, to_base64
from agentpost.room.sync import RoomHub, RoomSession
from agentpost.room.wire import ItemId, encode_write
from agentpost.testing import START_MS, FakeClock, SeededChance

SEED: Final = "vps-jane"
OTHER_SEED: Final = "lab-jane"
EDGE: Final = "mbp-jane"
OTHER_EDGE: Final = "pi-jane"
TIERS: Final = {
    SEED: NodeTier.BACKBONE,
    OTHER_SEED: NodeTier.BACKBONE,
    EDGE: NodeTier.EDGE,
    OTHER_EDGE: NodeTier.EDGE,
}
KEYS: Final = {name: Ed25519PrivateKey.from_private_bytes(bytes([place + 1]) * 32) for place, name in enumerate(TIERS)}


def public_key(node_id: str) -> bytes:
    return KEYS[node_id].public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def text_key(node_id: str) -> str:
    return to_base64(public_key(node_id))


# The first seed began the mesh.
ROOT: Final = Root(SEED, text_key(SEED))


def a_room(node_id: str = SEED, *, clock: FakeClock | None = None, seed: int = 0) -> Room:
    """The room of a node that knows its mesh's root, and nothing else yet."""
    return Room(
        node_id=node_id,
        tier=TIERS[node_id],
        signing=KEYS[node_id],
        clock=clock or FakeClock(),
        chance=SeededChance(list(TIERS).index(node_id) + 100 * seed),
        root=ROOT,
    )


def a_node(node_id: str, **fields: Any) -> dict[str, Any]:
    """The record of a node."""
    return {
        "tier": TIERS[node_id].value,
        "status": "online",
        "endpointWs": f"ws://{node_id}:7801",
        "publicKey": to_base64(public_key(node_id)),
    } | fields


def admit_all(room: Room, *node_ids: str) -> None:
    """Let the first seed's room, whose own word that is, take nodes in."""
    for node_id in node_ids or TIERS:
        if node_id != SEED:
            room.admit(node_id, text_key(node_id), TIERS[node_id])


def a_statement(
    node_id: str,
    *,
    by: str = SEED,
    act: str = "admit",
    key: str | None = None,
    tier: NodeTier | None = None,
    **more: Any,
) -> tuple[str, dict[str, Any]]:
    """The key and the fields of a backbone node's word about another."""
    said: dict[str, Any] = {"nodeId": node_id, "act": act, "at": START_MS} | more
    if act == "admit":
        said |= {"publicKey": key or text_key(node_id), "tier": (tier or TIERS[node_id]).value}
    return statement_key(by, f"{next(_references):024x}"), said


def revoke(room: Room, node_id: str, *, by: str, peer: str | None = None) -> None:
    """Let a node say in a room that another is revoked, with all that it has seen there."""
    named = room._table.members.next_statement(by, node_id)  # pyright: ignore[reportPrivateUsage]
    key, said = a_statement(node_id, by=by, act="revoke")
    bring(room, by, "coordination", key, said | named, peer=peer)


_references = iter(range(1, 1 << 32))


def a_cursor(consumer: str, source: str, **fields: Any) -> dict[str, Any]:
    return {
        "consumerNodeId": consumer,
        "sourceNodeId": source,
        "lastSeq": 1842,
        "updatedAt": "2026-02-25T16:32:00.000Z",
        "status": "active",
        "leaseExpiresAt": "2026-02-25T16:37:00.000Z",
        "epoch": "epoch-1",
    } | fields


def a_capability(capability_id: str, *, agent: str, node: str, **fields: Any) -> dict[str, Any]:
    skill = {"name": "skill", "version": "1.3.0", "path": "/skills/skill"}
    return {
        "capabilityId": capability_id,
        "name": "Filesystem Diff Apply",
        "version": "1.3.0",
        "status": "active",
        "ownerAgentId": agent,
        "ownerNodeId": node,
        "delegationSkillRef": skill,
        "executorSkillRef": skill,
        "contractSchemaRef": "schema://ansible/cap/1.3.0",
        "defaultEtaSeconds": 900,
        "publishedAt": "2026-02-25T16:30:00.000Z",
        "publishedByAgentId": agent,
    } | fields


def an_index(capability_id: str, *agents: str) -> dict[str, Any]:
    return {
        "capabilityId": capability_id,
        "eligibleAgentIds": list(agents),
        "policyVersion": "cpv_1",
        "updatedAt": "2026-02-25T16:30:05.000Z",
    }


def a_populated_room(*, clock: FakeClock | None = None) -> Room:
    """The first seed's room with all four nodes in it, and an agent on each."""
    room = a_room(SEED, clock=clock)
    admit_all(room)
    for node_id in TIERS:
        bring(room, node_id, "nodes", node_id, a_node(node_id))
        bring(room, node_id, "agents", f"agent-of-{node_id}", {"ownerNodeId": node_id})
    return room


def signed(
    signer: str, map_name: str, key: str, fields: Mapping[str, Any], *, rev: int = START_MS, by: str | None = None
) -> dict[str, Any]:
    """A record that says it is the signer's, signed by its key or, with `by`, by another's."""
    return sign_record(map_name, key, {**fields, "signedBy": signer, "rev": rev}, KEYS[by or signer])


def written(room: Room, map_name: str, key: str, record: Mapping[str, Any], *, client: int | None = None) -> bytes:
    """The update with which a Yjs client that has seen this room sets a key."""
    return encode_write(
        ItemId(_next_client() if client is None else client, 0),
        root=map_name,
        key=key,
        after=room._table.item(map_name, key),  # pyright: ignore[reportPrivateUsage]
        value=record,
    )


def bring(
    room: Room,
    signer: str,
    map_name: str,
    key: str,
    fields: Mapping[str, Any],
    *,
    peer: str | None = None,
    rev: int | None = None,
    by: str | None = None,
) -> bytes:
    """Let a peer bring a record that the signer wrote with a plain Yjs client; gives the update."""
    if rev is None:
        present = room._table.shown(map_name, key)  # pyright: ignore[reportPrivateUsage]
        rev = START_MS if present is None else int(present["rev"]) + 1
    update = written(room, map_name, key, signed(signer, map_name, key, fields, rev=rev, by=by))
    room.receive(update, peer=peer or signer)
    return update


_clients = iter(range(1_000, 1 << 32))


def _next_client() -> int:
    return next(_clients)


def visible(room: Room) -> dict[str, Any]:
    """All that a room shows. Equal before and after means that nothing happened."""
    doc: Any = Doc()
    doc.apply_update(room.update_since())
    names = sorted({name for name, _, _ in room._table})  # pyright: ignore[reportPrivateUsage]
    return {
        "state": dict(sorted(_clocks(room).items())),
        "records": {name: dict(room.records(name)) for name in names},
        "roots": sorted(doc.keys()),
        "values": {name: doc.get(name, type=Map).to_py() for name in names},
    }


def _clocks(room: Room) -> dict[int, int]:
    return room._document.clocks()  # pyright: ignore[reportPrivateUsage]


def a_hub(room: Room, clock: FakeClock | None = None) -> RoomHub:
    clock = clock or FakeClock()
    awareness = Awareness(
        node_id=room.node_id,
        signing=KEYS[room.node_id],
        keys=room.keys,
        presence=room.presence,
        clock=clock,
    )
    return RoomHub(room, awareness, clock=clock)


class Link:
    """Two hubs with a connection between them, which the other one dialled; frames go across when `run` is called."""

    def __init__(self, one: RoomHub, other: RoomHub) -> None:
        self.one: RoomSession = one.open(other.room.node_id)
        self.other: RoomSession = other.open(one.room.node_id, is_seed=TIERS[one.room.node_id] is NodeTier.BACKBONE)
        self._to_other: list[bytes] = self.one.start()
        self._to_one: list[bytes] = self.other.start()

    def run(self) -> int:
        """Carry frames until there are none; gives how many."""
        carried = 0
        while True:
            self._to_other += self.one.frames_to_send()
            self._to_one += self.other.frames_to_send()
            if not self._to_other and not self._to_one:
                return carried
            carried += len(self._to_other) + len(self._to_one)
            to_other, self._to_other = self._to_other, []
            to_one, self._to_one = self._to_one, []
            for frame in to_other:
                self._to_one += self.other.receive(frame)
            for frame in to_one:
                self._to_other += self.one.receive(frame)

    def cut(self) -> None:
        self.one.close()
        self.other.close()


def run_all(*links: Link) -> None:
    while any([link.run() for link in links]):  # noqa: C419 - each of them, not until the first
        pass
