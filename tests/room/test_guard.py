"""What does not get into the room, however it is wrapped."""

from typing import Any

import pytest
from pycrdt import Array, Doc, Map, Text, XmlFragment

from agentpost.protocol.errors import Code
from agentpost.room.document import Room
from agentpost.room.guard import MAX_UPDATE_BYTES, client_tag
from agentpost.room.records import verify_record
from agentpost.room.wire import ItemId, encode_write, read_update
from agentpost.testing import START_MS
from tests.room.building import (
    EDGE,
    KEYS,
    OTHER_EDGE,
    OTHER_SEED,
    SEED,
    a_node,
    a_populated_room,
    a_room,
    a_statement,
    bring,
    public_key,
    signed,
    visible,
    written,
)
from tests.store.building import refused


@pytest.fixture
def room() -> Room:
    return a_populated_room()


@pytest.mark.req("ROOM-3")
def test_a_forged_signature_is_refused(room: Room) -> None:
    """A record that says it is one node's and was signed by another is not taken, whoever brings it."""
    before = visible(room)
    with refused(Code.WRITE_DENIED) as caught:
        bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": 1}, by=OTHER_EDGE)
    assert caught.value.field == "sig"
    assert visible(room) == before
    bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": 1}, by=OTHER_SEED, peer=OTHER_SEED)
    assert room.record("delivery", EDGE) is None


@pytest.mark.req("ROOM-3")
@pytest.mark.parametrize("change", [{"inboxCursorAcked": 2}, {"rev": START_MS + 9}, {"epoch": "x"}])
def test_a_relay_cannot_alter_a_record(room: Room, change: dict[str, Any]) -> None:
    """What a backbone node passes on with one field changed is not believed, and the original is put back."""
    record = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1})
    room.receive(written(room, "delivery", EDGE, record), peer=EDGE)
    room.receive(written(room, "delivery", EDGE, record | change), peer=OTHER_SEED)
    assert room.record("delivery", EDGE) == record
    assert visible(room)["values"]["delivery"][EDGE] == record
    assert not verify_record("delivery", EDGE, record | change, public_key(EDGE))
    assert verify_record("delivery", EDGE, record, public_key(EDGE))


@pytest.mark.req("ROOM-3")
def test_a_record_counts_for_its_own_key_only(room: Room) -> None:
    """A signed record that is moved to another key of its signer does not verify there."""
    record = signed(EDGE, "agents", "one", {"ownerNodeId": EDGE})
    with refused(Code.WRITE_DENIED):
        room.receive(written(room, "agents", "two", record), peer=EDGE)
    room.receive(written(room, "agents", "one", record), peer=EDGE)


@pytest.mark.req("ROOM-3")
def test_an_old_record_does_not_come_back(room: Room) -> None:
    """What the owner signed before is refused from it, and put right again where a relay brings it."""
    old = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1}, rev=START_MS)
    room.receive(written(room, "delivery", EDGE, old), peer=EDGE)
    bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": 2})
    with refused(Code.WRITE_DENIED) as caught:
        room.receive(written(room, "delivery", EDGE, old), peer=EDGE)
    assert caught.value.field == "rev"
    room.receive(written(room, "delivery", EDGE, old), peer=OTHER_SEED)
    assert room.records("delivery")[EDGE]["inboxCursorAcked"] == 2
    assert visible(room)["values"]["delivery"][EDGE]["inboxCursorAcked"] == 2


@pytest.mark.req("PIPE-6")
@pytest.mark.parametrize("field", ["body", "content", "description", "title", "payload", "result", "message", "note"])
def test_a_payload_is_refused_and_named_as_one(room: Room, field: str) -> None:
    """A field that messages and tasks are made of has no place in any record."""
    before = visible(room)
    with refused(Code.WRITE_DENIED) as caught:
        bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": 1, field: "hello"})
    assert "payload" in caught.value.message
    assert caught.value.field == field
    assert visible(room) == before


@pytest.mark.req("PIPE-6")
def test_other_unknown_fields_are_refused_too(room: Room) -> None:
    """A field that the schema does not have is refused, also in a statement about a member."""
    with refused(Code.INVALID_FIELD):
        bring(room, EDGE, "delivery", EDGE, {"favouriteColour": "blue"})
    key, said = a_statement(EDGE, by=OTHER_SEED)
    with refused(Code.INVALID_FIELD):
        bring(room, OTHER_SEED, "coordination", key, said | {"memo": "hello"})


@pytest.mark.req("PIPE-6")
def test_a_payload_in_an_invisible_value_goes_nowhere() -> None:
    """A value that loses against a concurrent one is refused like one that wins, and goes nowhere."""
    room = a_populated_room()
    record = {"signedBy": EDGE, "body": "a secret"}
    # Of two that follow the same value, Yjs shows the one of the higher client.
    lost = encode_write(ItemId(1, 0), root="agents", key=f"agent-of-{SEED}", after=None, value=record)
    bring(room, SEED, "agents", f"agent-of-{SEED}", {"ownerNodeId": SEED, "role": "worker"})
    relayed: list[bytes] = []
    room.subscribe(lambda update, _origin: relayed.append(update))
    before = visible(room)["records"]
    with refused(Code.WRITE_DENIED):
        room.receive(lost, peer=EDGE)
    assert relayed == []
    assert visible(room)["records"] == before
    assert b"secret" not in room.update_since()


@pytest.mark.req("ROOM-3")
def test_a_foreign_write_is_refused_whether_it_is_seen_or_not() -> None:
    """Which of two concurrent values Yjs shows is chance; who may write a key is not."""
    room = a_populated_room()
    before = room.update_since()
    for client in (1, 2**31, 2**52):
        value = {"tier": "edge", "status": "online", "signedBy": EDGE, "rev": 1, "sig": "A" * 86}
        with refused(Code.WRITE_DENIED):
            room.receive(encode_write(ItemId(client, 0), root="nodes", key=SEED, after=None, value=value), peer=EDGE)
    assert room.update_since() == before


@pytest.mark.req("ROOM-3")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"fallbackNodeIds": [f"node-{place}" + "x" * 100 for place in range(60)]}, Code.TOO_LARGE),
        ({"priorityDefault": "x" * 513}, Code.TOO_LARGE),
        ({"priorityDefault": "two words"}, Code.INVALID_FIELD),
        ({"fallbackNodeIds": ["../../etc"]}, Code.INVALID_FIELD),
        ({"failover": "maybe"}, Code.INVALID_FIELD),
        ({"ownerNodeId": 7}, Code.INVALID_FIELD),
    ],
)
def test_a_record_has_the_form_and_size_of_its_map(room: Room, fields: dict[str, Any], code: Code) -> None:
    """Oversized and ill-formed values are refused."""
    with refused(code):
        bring(room, EDGE, "routing", f"agent-of-{EDGE}", fields)


@pytest.mark.req("ROOM-3")
@pytest.mark.parametrize("value", [1.5, float("nan"), 2.0**60, True, "7", -1, None])
def test_a_number_is_a_whole_number(room: Room, value: object) -> None:
    """What two languages would write differently is not signed."""
    record = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1}) | {"inboxCursorAcked": value}
    with refused(Code.INVALID_FIELD):
        room.receive(written(room, "delivery", EDGE, record), peer=EDGE)


def test_floats_of_javascript_are_the_same_record(room: Room) -> None:
    """JavaScript writes every number as a float; the signature covers the number, not its spelling."""
    record = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 12})
    floats = {name: float(value) if isinstance(value, int) else value for name, value in record.items()}
    room.receive(written(room, "delivery", EDGE, floats), peer=EDGE)
    assert room.records("delivery")[EDGE] == record


@pytest.mark.req("ROOM-3")
@pytest.mark.parametrize("key", ["", "../x", "a b", "a/b", "x" * 129, "é", "a\n", "-a", "a\x00"])
def test_a_hostile_key_is_refused(room: Room, key: str) -> None:
    """What names a node or an agent means nothing to a path, a URL or a terminal."""
    with refused(Code.INVALID_FIELD):
        bring(room, EDGE, "agents", key, {"ownerNodeId": EDGE})


def doc_of(room: Room) -> Any:
    """A plain Yjs client that has synced the room."""
    doc: Any = Doc()
    doc.apply_update(room.update_since())
    return doc


def what(doc: Any, change: Any) -> bytes:
    """The update that a change of a document makes."""
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    change(doc)
    return updates[-1]


FOREIGN = {
    "another root map": lambda doc: doc.get("messages", type=Map).update({"m": {"a": 1}}),
    "a text": lambda doc: doc.get("notes", type=Text).insert(0, "hello"),
    "an array": lambda doc: doc.get("list", type=Array).append(1),
    "XML": lambda doc: doc.get("xml", type=XmlFragment).children.append("hello"),
    "a text in place of a map": lambda doc: doc.get("nodes", type=Text).insert(0, "hello"),
    "an array in place of a map": lambda doc: doc.get("nodes", type=Array).append({"a": 1}),
    "a nested map": lambda doc: doc.get("nodes", type=Map).update({EDGE: Map({"tier": "edge"})}),
    "a nested text": lambda doc: doc.get("nodes", type=Map).update({EDGE: Text("hello")}),
    "a nested array": lambda doc: doc.get("nodes", type=Map).update({EDGE: Array(["hello"])}),
    "a subdocument": lambda doc: doc.get("nodes", type=Map).update({EDGE: Doc()}),
    "a plain string": lambda doc: doc.get("nodes", type=Map).update({EDGE: "hello"}),
    "a list": lambda doc: doc.get("nodes", type=Map).update({EDGE: ["hello"]}),
    "bytes": lambda doc: doc.get("nodes", type=Map).update({EDGE: b"hello"}),
    "nothing": lambda doc: doc.get("nodes", type=Map).update({EDGE: None}),
    "an unsigned record": lambda doc: doc.get("nodes", type=Map).update({EDGE: a_node(EDGE)}),
    "a deletion": lambda doc: doc.get("nodes", type=Map).pop(EDGE),
}


@pytest.mark.req("ROOM-3", "PIPE-6")
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("peer", [EDGE, OTHER_SEED])
def test_only_plain_records_of_the_known_maps_get_in(room: Room, name: str, peer: str) -> None:
    """Other roots, other types, nesting and deletions are refused and leave no trace, also of a backbone node."""
    before = visible(room)
    update = what(doc_of(room), FOREIGN[name])
    with refused(Code.WRITE_DENIED):
        room.receive(update, peer=peer)
    assert visible(room) == before
    bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": 1})


@pytest.mark.req("ROOM-3")
def test_an_update_that_waits_for_another_is_refused(room: Room) -> None:
    """What builds on a change that has not arrived does not lie in wait inside the document."""
    before = visible(room)
    client = a_room(EDGE)
    updates: list[bytes] = []
    client.subscribe(lambda update, _origin: updates.append(update))
    for acked in (1, 2):
        client.write("delivery", EDGE, {"inboxCursorAcked": acked})
    with refused(Code.SEQUENCE_GAP):
        room.receive(updates[1], peer=EDGE)
    assert visible(room) == before
    for update in updates:
        room.receive(update, peer=EDGE)
    assert room.records("delivery")[EDGE]["inboxCursorAcked"] == 2


@pytest.mark.req("ROOM-3")
def test_writes_that_wait_for_each_other_are_refused(room: Room) -> None:
    """Two values that each claim to follow the other neither hang the guard nor stay in the document."""
    before = visible(room)
    record = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1})
    one = encode_write(ItemId(11, 0), root="delivery", key=EDGE, after=ItemId(12, 0), value=record)
    other = encode_write(ItemId(12, 0), root="delivery", key=EDGE, after=ItemId(11, 0), value=record)
    itself = encode_write(ItemId(11, 0), root="delivery", key=EDGE, after=ItemId(11, 0), value=record)
    for update in (b"\x02" + one[1:-1] + other[1:], itself):
        with refused(Code.SEQUENCE_GAP):
            room.receive(update, peer=EDGE)
    assert visible(room) == before


@pytest.mark.req("ROOM-3")
def test_a_deletion_of_what_has_not_come_is_refused(room: Room) -> None:
    """Nobody can delete the next write of another node before it is made."""
    deletion = b"\x00\x01" + b"\x85\x80\x80\x80\x10" + b"\x01\x00\x05"
    assert read_update(deletion).deletions[0].length == 5
    with refused(Code.SEQUENCE_GAP):
        room.receive(deletion, peer=EDGE)


@pytest.mark.req("ROOM-3")
def test_nobody_takes_the_next_place_of_another_client(room: Room) -> None:
    """A write under another node's client id would silence that node's next write, so it is refused."""
    record = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1})
    theirs = client_tag(OTHER_EDGE) << 32 | 5
    with refused(Code.WRITE_DENIED):
        room.receive(written(room, "delivery", EDGE, record, client=theirs), peer=EDGE)
    bring_client = 4_000_000_001
    other = signed(OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 1})
    room.receive(written(room, "delivery", OTHER_EDGE, other, client=bring_client), peer=OTHER_EDGE)
    stolen = encode_write(ItemId(bring_client, 1), root="delivery", key=EDGE, after=None, value=record)
    with refused(Code.WRITE_DENIED):
        room.receive(stolen, peer=EDGE)


def test_a_node_has_a_bounded_number_of_records(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that keeps inventing agents is stopped."""
    from msgspec.structs import replace

    from agentpost.room import schema

    monkeypatch.setitem(schema.MAPS, "agents", replace(schema.MAPS["agents"], keys_per_node=3))  # type: ignore[arg-type]
    bring(room, EDGE, "agents", "two", {"ownerNodeId": EDGE})
    bring(room, EDGE, "agents", "three", {"ownerNodeId": EDGE})
    with refused(Code.TOO_LARGE):
        bring(room, EDGE, "agents", "four", {"ownerNodeId": EDGE})


@pytest.mark.req("ROOM-3")
def test_an_update_has_a_size(room: Room) -> None:
    """More than 256 KiB at once are refused before anything reads them."""
    with refused(Code.TOO_LARGE):
        room.receive(bytes(MAX_UPDATE_BYTES + 1), peer=EDGE)


def test_an_empty_update_is_nothing(room: Room) -> None:
    """A client with nothing to say may say so."""
    assert room.receive(b"\x00\x00", peer=EDGE) == []


def test_two_writers_who_did_not_know_of_each_other_end_with_the_same_record() -> None:
    """Of two concurrent writes that are both believed, the one that Yjs picks stands on every side."""
    for low_client in (10, 4_000_000_000):
        room = a_populated_room()
        newer = signed(SEED, "coordination", "coordinator", {"value": SEED}, rev=START_MS + 10)
        older = signed(OTHER_SEED, "coordination", "coordinator", {"value": OTHER_SEED}, rev=START_MS + 5)
        one = encode_write(ItemId(low_client, 0), root="coordination", key="coordinator", after=None, value=newer)
        other = encode_write(ItemId(2_000_000_000, 0), root="coordination", key="coordinator", after=None, value=older)
        reader = a_room(OTHER_EDGE)
        reader.receive(room.update_since(), peer=SEED, is_sync=True)
        room.subscribe(lambda update, _origin, reader=reader: reader.receive(update, peer=SEED) and None)
        room.receive(one, peer=SEED)
        room.receive(other, peer=OTHER_SEED)
        seen = doc_of(room).get("coordination", type=Map).to_py()["coordinator"]
        assert seen["value"] == (OTHER_SEED if low_client == 10 else SEED)
        for each in (room, reader):
            assert each.records("coordination")["coordinator"]["value"] == seen["value"]


def test_the_keys_of_the_tests_are_what_they_seem() -> None:
    """Each node signs with a key of its own."""
    assert len({public_key(node_id) for node_id in KEYS}) == len(KEYS)
