"""A node that lost its key and was given leave to have another: who believes that, and what becomes of the old one."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agentpost.protocol.errors import Code
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.document import Room
from agentpost.room.records import sign_record, to_base64, verify_record
from agentpost.testing import START_MS, FakeClock, SeededChance
from tests.room.building import (
    EDGE,
    OTHER_EDGE,
    OTHER_SEED,
    ROOT,
    SEED,
    TIERS,
    Link,
    a_hub,
    a_node,
    a_populated_room,
    a_room,
    a_statement,
    bring,
    run_all,
    text_key,
    written,
)
from tests.store.building import refused

NEW = Ed25519PrivateKey.from_private_bytes(b"\x77" * 32)
NEW_PUBLIC = NEW.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
NEW_TEXT = to_base64(NEW_PUBLIC)


def a_room_with_the_new_key(node_id: str) -> Room:
    return Room(
        node_id=node_id,
        tier=TIERS[node_id],
        signing=NEW,
        clock=FakeClock(START_MS + 5_000),
        chance=SeededChance(9),
        root=ROOT,
    )


@pytest.mark.req("ROOM-5", "AUTH-7")
def test_a_backbone_node_replaces_a_key_for_everybody() -> None:
    """The new key counts from then on, live, for newcomers, and after a restart."""
    room = a_populated_room()
    reader = a_room(EDGE)
    reader.receive(room.update_since(), peer=SEED, is_sync=True)
    room.subscribe(lambda update, _origin: reader.receive(update, peer=SEED) and None)
    room.admit(OTHER_SEED, NEW_TEXT, NodeTier.BACKBONE)
    newcomer = a_room(OTHER_EDGE)
    newcomer.receive(room.update_since(), peer=SEED, is_sync=True)
    again = a_room(EDGE, seed=1)
    again.load([reader.update_since()])
    for each in (room, reader, newcomer, again):
        assert each.keys.public_key(OTHER_SEED) == NEW_PUBLIC
        assert each.keys.is_backbone(OTHER_SEED)
        assert each.records("agents") == room.records("agents")


@pytest.mark.req("ROOM-3", "AUTH-7")
def test_a_key_gives_way_to_nothing_else() -> None:
    """Neither to the word of an edge node or of the node itself, nor to a record that names another key."""
    room = a_populated_room()
    for by in (EDGE, OTHER_SEED):
        key, said = a_statement(OTHER_SEED, by=by, key=NEW_TEXT)
        with refused(Code.WRITE_DENIED):
            bring(room, by, "coordination", key, said)
    record = a_node(OTHER_SEED, publicKey=NEW_TEXT) | {"signedBy": OTHER_SEED, "rev": START_MS + 9}
    with refused(Code.WRITE_DENIED):
        room.receive(written(room, "nodes", OTHER_SEED, sign_record("nodes", OTHER_SEED, record, NEW)), peer=OTHER_SEED)
    assert room.keys.public_key(OTHER_SEED) != NEW_PUBLIC


@pytest.mark.req("ROOM-3", "ROOM-5")
def test_the_old_key_signs_nothing_any_more() -> None:
    """Neither a record nor an admission; what it said of others before stays."""
    room = a_populated_room()
    key, said = a_statement("friend-jane", by=OTHER_SEED, key=text_key(EDGE), tier=NodeTier.EDGE)
    bring(room, OTHER_SEED, "coordination", key, said)
    room.admit(OTHER_SEED, NEW_TEXT, NodeTier.BACKBONE)
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "delivery", OTHER_SEED, {"inboxCursorAcked": 1})
    key, said = a_statement("foe-jane", by=OTHER_SEED, key=text_key(EDGE), tier=NodeTier.EDGE)
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "coordination", key, said)
    assert room.keys.is_member("friend-jane")
    assert not room.keys.is_member("foe-jane")


@pytest.mark.req("ROOM-5")
def test_who_was_admitted_by_the_lost_key_can_replace_it() -> None:
    """The first seed of a mesh is let in again by the one that it admitted itself, and all others stay members."""
    room = a_populated_room()
    other = a_room(OTHER_SEED)
    other.receive(room.update_since(), peer=SEED, is_sync=True)
    other.admit(SEED, NEW_TEXT, NodeTier.BACKBONE)
    assert other.keys.public_key(SEED) == NEW_PUBLIC
    for node_id in (OTHER_SEED, OTHER_EDGE, EDGE):
        assert other.keys.is_member(node_id)
    assert other.keys.is_backbone(OTHER_SEED)


@pytest.mark.req("ROOM-5")
def test_a_write_that_crossed_with_a_new_key_closes_no_honest_link() -> None:
    """A seed relays what the old key signed to one that has heard of the new: the link lives, and both agree."""
    clock = FakeClock()
    first, second = a_hub(a_populated_room(clock=clock), clock), a_hub(a_room(OTHER_SEED, clock=clock), clock)
    link = Link(first, second)
    link.run()
    bring(second.room, OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 5})
    first.room.admit(OTHER_EDGE, NEW_TEXT, NodeTier.EDGE)
    link.run()
    assert link.one.refusal is None
    assert link.other.refusal is None
    for name in ("nodes", "delivery"):
        assert first.room.records(name) == second.room.records(name)


@pytest.mark.req("ROOM-5")
def test_a_node_with_a_new_key_signs_its_records_again() -> None:
    """After it has its room back, everything that is its own carries the key that it has now."""
    seed = a_hub(a_populated_room())
    reader = a_hub(a_room(EDGE))
    room = a_room_with_the_new_key(OTHER_SEED)
    room.write("nodes", OTHER_SEED, a_node(OTHER_SEED, publicKey=NEW_TEXT))
    seed.room.admit(OTHER_SEED, NEW_TEXT, NodeTier.BACKBONE)
    links = [Link(seed, a_hub(room)), Link(seed, reader)]
    run_all(*links)
    assert f"agent-of-{OTHER_SEED}" not in room.records("agents")
    room.sign_anew()
    run_all(*links)
    for each in (seed.room, room, reader.room):
        own = each.records("agents")[f"agent-of-{OTHER_SEED}"]
        assert verify_record("agents", f"agent-of-{OTHER_SEED}", own, NEW_PUBLIC)
        assert each.records("nodes")[OTHER_SEED]["publicKey"] == NEW_TEXT
    assert seed.room.records("nodes") == room.records("nodes")
