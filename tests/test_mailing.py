"""What a gateway shows the others of its mail: how far it has read, and how much waits."""

import pytest

from agentpost.delivery.keeping import MOST_AGENTS_TOLD, CursorCopy, DeliveryCopy
from agentpost.mailing import CursorsInRoom, RoomCopyWriter
from agentpost.protocol.snapshot import MOST_WAITING
from agentpost.protocol.timestamps import format_ms
from agentpost.room.document import Room
from agentpost.room.records import canonical
from agentpost.room.schema import MAX_RECORD_BYTES
from agentpost.room.view import RoomView
from agentpost.testing import START_MS
from tests.room.building import EDGE, SEED, a_populated_room


@pytest.fixture
def room() -> Room:
    return a_populated_room()


@pytest.mark.req("CUR-5")
async def test_the_copy_of_a_cursor_stands_in_the_room(room: Room) -> None:
    """It has the fields of CUR-5 under the consumer's key, and the room takes it."""
    copy = CursorCopy(
        consumer_node_id=SEED,
        source_node_id=EDGE,
        last_seq=7,
        updated_at=format_ms(START_MS),
        status="active",
        lease_expires_at=format_ms(START_MS + 300_000),
        epoch="epoch-9",
    )
    await RoomCopyWriter(room).publish(None, [copy])
    record = room.record("delivery.cursors", f"{SEED}/{EDGE}")
    assert record is not None
    assert {name: value for name, value in record.items() if name not in ("rev", "sig", "signedBy")} == {
        "consumerNodeId": SEED,
        "sourceNodeId": EDGE,
        "lastSeq": 7,
        "updatedAt": format_ms(START_MS),
        "status": "active",
        "leaseExpiresAt": format_ms(START_MS + 300_000),
        "epoch": "epoch-9",
    }


@pytest.mark.req("PIPE-7", "PIPE-9")
async def test_a_mirror_hears_from_the_room_how_far_its_readers_are(room: Room) -> None:
    """What a node wrote of its own cursor is read back, by source; others' cursors and other sources are not in it."""
    copy = CursorCopy(
        consumer_node_id=SEED,
        source_node_id=EDGE,
        last_seq=7,
        updated_at=format_ms(START_MS),
        status="active",
        lease_expires_at=format_ms(START_MS + 300_000),
        epoch="epoch-9",
    )
    await RoomCopyWriter(room).publish(None, [copy])
    cursors = CursorsInRoom(room)
    assert list(cursors.of(EDGE)) == [copy]
    assert list(cursors.of(SEED)) == []


async def test_others_see_how_much_waits(room: Room) -> None:
    """The delivery record says how much of the inbox has no outcome yet, and the router reads it."""
    own = DeliveryCopy(
        inbox_cursor_acked=5, inbox_cursor_seen=9, latest_seq=9, epoch="e", dead_letter_count=0, incident_count=0
    )
    await RoomCopyWriter(room).publish(own, [])
    assert RoomView(room).waiting_at(SEED) == 4


@pytest.mark.req("ROOM-4")
async def test_so_many_agents_as_are_told_of_always_have_room(room: Room) -> None:
    """The longest names that there may be, and a node of such a name, make a record that the room takes."""
    own = DeliveryCopy(
        inbox_cursor_acked=10**12,
        inbox_cursor_seen=10**12,
        latest_seq=10**12,
        epoch="epoch_01K3X8Z5W2V7R9T4M6N1P0QABC",
        dead_letter_count=10**6,
        incident_count=1_000,
        last_ack_at=format_ms(START_MS),
        waiting_by_agent={f"{number:0>128}": MOST_WAITING for number in range(MOST_AGENTS_TOLD)},
        agents_waiting=1_000,
    )
    await RoomCopyWriter(room).publish(own, [])
    record = room.record("delivery", SEED)
    assert record is not None
    assert record["waitingByAgent"] == own.waiting_by_agent
    assert len(canonical(record)) - len(SEED) + 128 <= MAX_RECORD_BYTES


async def test_a_copy_that_the_room_refuses_stops_nothing(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing rests on the copies: one that cannot be written is a line in the log."""
    own = DeliveryCopy(
        inbox_cursor_acked=0, inbox_cursor_seen=0, latest_seq=0, epoch="é", dead_letter_count=0, incident_count=0
    )
    await RoomCopyWriter(room).publish(own, [])
    assert "refused" in caplog.text
