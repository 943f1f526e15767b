"""What a gateway shows the others of its mail: how far it has read, and how much waits."""

import pytest

from agentpost.delivery.keeping import CursorCopy, DeliveryCopy
from agentpost.mailing import CursorsInRoom, RoomCopyWriter
from agentpost.protocol.timestamps import format_ms
from agentpost.room.document import Room
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


async def test_a_copy_that_the_room_refuses_stops_nothing(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing rests on the copies: one that cannot be written is a line in the log."""
    own = DeliveryCopy(
        inbox_cursor_acked=0, inbox_cursor_seen=0, latest_seq=0, epoch="é", dead_letter_count=0, incident_count=0
    )
    await RoomCopyWriter(room).publish(own, [])
    assert "refused" in caplog.text
