"""A node that lost its key and was given leave to have another: who believes that, and what becomes of the old one."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agentpost.protocol.errors import Code
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.document import Room
from agentpost.room.keys import make_admission
from agentpost.room.records import sign_record, to_base64, verify_record
from agentpost.testing import START_MS, FakeClock, SeededChance
from tests.room.building import (
    EDGE,
    KEYS,
    OTHER_EDGE,
    OTHER_SEED,
    SEED,
    Link,
    a_hub,
    a_node,
    a_populated_room,
    a_room,
    bring,
    public_key,
    written,
)
from tests.store.building import refused

NEW = Ed25519PrivateKey.from_private_bytes(b"\x77" * 32)
NEW_PUBLIC = NEW.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def a_word(*, by: str = SEED, node_id: str = OTHER_SEED, replaces: tuple[str, ...] = (OTHER_SEED,)) -> dict[str, Any]:
    """A node's word that another has the new key now."""
    return make_admission(
        by=by,
        signing=KEYS[by],
        node_id=node_id,
        public_key=NEW_PUBLIC,
        tier=NodeTier.BACKBONE,
        at_ms=START_MS,
        replaces=[to_base64(public_key(each)) for each in replaces],
    )


def a_new_record(admission: dict[str, Any], *, node_id: str = OTHER_SEED) -> dict[str, Any]:
    fields = {
        "tier": "backbone",
        "status": "online",
        "publicKey": to_base64(NEW_PUBLIC),
        "admission": admission,
        "signedBy": node_id,
        "rev": START_MS + 1_000,
    }
    return sign_record("nodes", node_id, fields, NEW)


def a_room_that_pinned(node_id: str) -> Room:
    """An edge node's room in which another's key is pinned, as that of a seed is."""
    room = a_room(EDGE)
    room.keys.pin(node_id, public_key(node_id), is_backbone=True)
    room.receive(a_populated_room().update_since(), peer=SEED, is_sync=True)
    return room


@pytest.mark.req("ROOM-5", "AUTH-7")
def test_a_backbone_node_replaces_a_key_that_others_have_pinned() -> None:
    """The new key counts from then on, live as well, and also after a restart."""
    room = a_room_that_pinned(OTHER_SEED)
    room.receive(written(room, "nodes", OTHER_SEED, a_new_record(a_word())), peer=SEED)
    assert room.keys.public_key(OTHER_SEED) == NEW_PUBLIC
    assert room.keys.is_backbone(OTHER_SEED)
    again = a_room(EDGE, seed=1)
    again.keys.pin(OTHER_SEED, public_key(OTHER_SEED), is_backbone=True)
    assert again.load([room.update_since()]) == []
    assert again.keys.public_key(OTHER_SEED) == NEW_PUBLIC
    assert again.records("agents") == room.records("agents")


@pytest.mark.req("ROOM-3", "AUTH-7")
@pytest.mark.parametrize(
    "word",
    [
        a_word(replaces=()),
        a_word(replaces=(EDGE,)),
        a_word(by=EDGE),
        a_word(by=OTHER_EDGE),
        a_word(by=OTHER_SEED),
        a_word() | {"replaces": [to_base64(public_key(OTHER_SEED)), to_base64(public_key(EDGE))]},
    ],
)
def test_a_pinned_key_gives_way_to_nothing_else(word: dict[str, Any]) -> None:
    """No word without that key in it, of an edge node, of the node itself, or altered on the way moves a pinned key."""
    room = a_room_that_pinned(OTHER_SEED)
    with refused(Code.WRITE_DENIED):
        room.receive(written(room, "nodes", OTHER_SEED, a_new_record(word)), peer=SEED)
    assert room.keys.public_key(OTHER_SEED) == public_key(OTHER_SEED)


@pytest.mark.req("ROOM-3")
def test_nobody_takes_a_nodes_own_key_from_it() -> None:
    """A running node goes on with its key, whatever the room says of it."""
    room = a_room(OTHER_SEED)
    room.receive(a_populated_room().update_since(), peer=SEED, is_sync=True)
    with refused(Code.WRITE_DENIED):
        room.receive(written(room, "nodes", OTHER_SEED, a_new_record(a_word())), peer=SEED)
    assert room.keys.public_key(OTHER_SEED) == public_key(OTHER_SEED)


@pytest.mark.req("ROOM-3", "ROOM-5")
def test_the_old_key_speaks_for_the_past_only() -> None:
    """What it signed before is read by newcomers; what it signs now is not taken, nor its word for somebody new."""
    room = a_populated_room()
    room.receive(written(room, "nodes", OTHER_SEED, a_new_record(a_word())), peer=SEED)
    newcomer = a_room(EDGE)
    newcomer.receive(room.update_since(), peer=SEED, is_sync=True)
    assert newcomer.records("agents") == room.records("agents")
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "delivery", OTHER_SEED, {"inboxCursorAcked": 1})
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_EDGE, "nodes", OTHER_EDGE, a_node(OTHER_EDGE, by=OTHER_SEED))


@pytest.mark.req("ROOM-5")
def test_who_was_admitted_by_the_lost_key_can_replace_it() -> None:
    """The first seed of a mesh is vouched for by the one it admitted itself, and all still trust both."""
    room = a_room_that_pinned(SEED)
    word = a_word(by=OTHER_SEED, node_id=SEED, replaces=(SEED,))
    room.receive(written(room, "nodes", SEED, a_new_record(word, node_id=SEED)), peer=OTHER_SEED)
    assert room.keys.public_key(SEED) == NEW_PUBLIC
    for node_id in (OTHER_SEED, OTHER_EDGE):
        assert room.keys.public_key(node_id) == public_key(node_id)
    assert room.keys.is_backbone(OTHER_SEED)


@pytest.mark.req("ROOM-5")
def test_a_write_that_crossed_with_a_new_key_closes_no_honest_link() -> None:
    """A seed relays what the old key signed to one that has heard of the new: the link lives, and both agree."""
    clock = FakeClock()
    first, second = a_hub(a_populated_room(clock=clock), clock), a_hub(a_room(OTHER_SEED, clock=clock), clock)
    second.room.keys.pin(SEED, public_key(SEED), is_backbone=True)
    link = Link(first, second)
    link.run()
    word = a_word(node_id=OTHER_EDGE, replaces=(OTHER_EDGE,))
    bring(second.room, OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 5})
    first.room.receive(written(first.room, "nodes", OTHER_EDGE, a_new_record(word, node_id=OTHER_EDGE)), peer=SEED)
    link.run()
    assert link.one.refusal is None
    assert link.other.refusal is None
    for name in ("nodes", "delivery"):
        assert first.room.records(name) == second.room.records(name)


@pytest.mark.req("ROOM-5")
def test_a_node_with_a_new_key_signs_its_records_again() -> None:
    """After it has its room back, everything that is its own carries the key that it has now."""
    seed = a_populated_room()
    hub = a_hub(seed)
    room = Room(
        node_id=OTHER_SEED,
        tier=NodeTier.BACKBONE,
        signing=NEW,
        clock=FakeClock(START_MS + 5_000),
        chance=SeededChance(9),
        pinned={SEED: public_key(SEED)},
        backbone=(SEED,),
    )
    record = a_new_record(a_word())
    room.write("nodes", OTHER_SEED, {name: record[name] for name in ("tier", "status", "publicKey", "admission")})
    seed.keys.pin(OTHER_SEED, NEW_PUBLIC, is_backbone=True)
    link = Link(hub, a_hub(room))
    link.run()
    room.sign_anew()
    link.run()
    for each in (seed, room):
        own = each.records("agents")[f"agent-of-{OTHER_SEED}"]
        assert verify_record("agents", f"agent-of-{OTHER_SEED}", own, NEW_PUBLIC)
    assert seed.records("nodes") == room.records("nodes")
