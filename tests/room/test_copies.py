"""Copies of what the store decides: cursors and invites, written when they change and by their owner only."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from agentpost.protocol.errors import Code
from agentpost.protocol.ids import InviteId
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.copies import publish_invites
from agentpost.room.document import Room
from agentpost.room.host import RoomHost
from agentpost.room.schema import MAPS
from agentpost.store.values import Invite
from agentpost.testing import START_MS, FakeClock, MemoryStore, SeededChance
from tests.auth.building import an_identity
from tests.room.building import EDGE, OTHER_EDGE, OTHER_SEED, SEED, a_cursor, a_populated_room, bring, visible
from tests.store.building import refused

HOUR_MS = 3_600_000


@pytest.fixture
def room() -> Room:
    return a_populated_room()


def a_stored_invite(number: int = 1, **fields: Any) -> Invite:
    settings: dict[str, Any] = {
        "invite_id": InviteId(f"inv_{number}"),
        "token_hash": number.to_bytes(32, "big"),
        "tier": NodeTier.EDGE,
        "expected_node_id": "new-jane",
        "created_by": "operator",
        "created_at_ms": START_MS,
        "expires_at_ms": START_MS + 900_000,
    }
    return Invite(**settings | fields)


@pytest.mark.req("CUR-5", "ROOM-3")
@pytest.mark.parametrize("stranger", [SEED, OTHER_SEED, OTHER_EDGE])
def test_a_cursor_is_its_consumers(room: Room, stranger: str) -> None:
    """Nobody else writes it, not even the source, and a record for one pair does not stand at another."""
    before = visible(room)
    with refused(Code.WRITE_DENIED):
        bring(room, stranger, "delivery.cursors", f"{EDGE}/{SEED}", a_cursor(EDGE, SEED))
    with refused(Code.WRITE_DENIED):
        bring(room, EDGE, "delivery.cursors", f"{EDGE}/{SEED}", a_cursor(EDGE, OTHER_SEED))
    with refused(Code.WRITE_DENIED):
        bring(room, EDGE, "delivery.cursors", f"{EDGE}/{SEED}", a_cursor(stranger, SEED))
    assert visible(room) == before
    bring(room, EDGE, "delivery.cursors", f"{EDGE}/{SEED}", a_cursor(EDGE, SEED))


@pytest.mark.req("CUR-5")
@pytest.mark.parametrize("field", ["lastSeq", "updatedAt", "status", "leaseExpiresAt", "epoch"])
def test_a_cursor_without_one_of_its_fields_is_refused(room: Room, field: str) -> None:
    """Each of the five is there, or the record is none."""
    record = {name: value for name, value in a_cursor(EDGE, SEED).items() if name != field}
    with refused(Code.INVALID_FIELD):
        bring(room, EDGE, "delivery.cursors", f"{EDGE}/{SEED}", record)


@pytest.mark.req("ROOM-2", "AUTH-2")
def test_an_invite_in_the_room_has_neither_token_nor_hash(room: Room) -> None:
    """It says for whom, as what, until when, by whom and how it stands."""
    invite = a_stored_invite(token_hash=b"\xaa" * 32, public_key="k" * 43, tailnet_name="mbp-jane.tail1234.ts.net")
    assert publish_invites(room, [invite], now_ms=START_MS) == 1
    record = room.record("invites", "inv_1")
    assert record is not None
    assert {name: value for name, value in record.items() if name not in ("rev", "sig", "signedBy")} == {
        "tier": "edge",
        "expectedNodeId": "new-jane",
        "expiresAt": START_MS + 900_000,
        "createdBy": SEED,
        "createdAt": START_MS,
        "status": "open",
    }
    document = room.update_since()
    for hidden in (b"\xaa" * 32, (b"\xaa" * 32).hex().encode(), b"k" * 43, b"tail1234"):
        assert hidden not in document


@pytest.mark.req("ROOM-2")
@pytest.mark.parametrize(
    ("became", "now_ms", "status"),
    [
        ({"consumed_at_ms": START_MS + 5, "consumed_by": "new-jane"}, START_MS + 6, "used"),
        ({"consumed_at_ms": START_MS + 5, "consumed_by": "new-jane"}, START_MS + HOUR_MS, "used"),
        ({"revoked_at_ms": START_MS + 5}, START_MS + HOUR_MS, "withdrawn"),
        ({}, START_MS + 900_000, "expired"),
    ],
)
def test_the_room_hears_what_became_of_an_invite(room: Room, became: dict[str, Any], now_ms: int, status: str) -> None:
    """Used, withdrawn or expired; told once, and nothing is told while it is open."""
    assert publish_invites(room, [a_stored_invite()], now_ms=START_MS) == 1
    assert publish_invites(room, [a_stored_invite()], now_ms=START_MS + 899_999) == 0
    invite = a_stored_invite(**became)
    assert publish_invites(room, [invite], now_ms=now_ms) == 1
    assert publish_invites(room, [invite], now_ms=now_ms + 1) == 0
    record = room.record("invites", "inv_1")
    assert record is not None
    assert record["status"] == status
    assert (record.get("usedBy"), record.get("usedAt")) == (invite.consumed_by, invite.consumed_at_ms)


def test_invites_that_were_over_before_they_were_shown_stay_out(room: Room) -> None:
    """The room is no archive."""
    over = [a_stored_invite(1, consumed_at_ms=START_MS), a_stored_invite(2, expires_at_ms=START_MS)]
    assert publish_invites(room, over, now_ms=START_MS) == 0
    assert room.records("invites") == {}


def test_a_full_map_hides_new_invites_and_still_tells_of_the_old(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is kept from joining because there is no place left to show it."""
    monkeypatch.setitem(cast("dict[str, Any]", MAPS), "invites", replace(MAPS["invites"], keys_per_node=2))
    invites = [a_stored_invite(number) for number in range(1, 4)]
    assert publish_invites(room, invites, now_ms=START_MS) == 2
    assert publish_invites(room, invites[::-1], now_ms=START_MS + HOUR_MS) == 2
    assert {key: record["status"] for key, record in room.records("invites").items()} == {
        "inv_1": "expired",
        "inv_2": "expired",
    }


@pytest.mark.req("ROOM-3")
def test_an_invite_is_its_makers(room: Room) -> None:
    """Another gateway neither changes it nor makes one in its name."""
    publish_invites(room, [a_stored_invite()], now_ms=START_MS)
    record = {"tier": "backbone", "expiresAt": START_MS, "createdBy": OTHER_SEED, "status": "open"}
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "invites", "inv_1", record)
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "invites", "inv_2", record | {"createdBy": SEED})
    with refused(Code.INVALID_FIELD):
        bring(room, OTHER_SEED, "invites", "inv_2", record | {"tokenHash": "00"})


async def test_a_running_room_publishes_by_its_own_clock() -> None:
    """What became of an invite is told by the clock of the host, when the caller says."""
    clock, store = FakeClock(), MemoryStore(node_id=SEED, epoch="first")
    host = RoomHost(store, an_identity(1), tier=NodeTier.BACKBONE, clock=clock, chance=SeededChance(1))
    await host.start()
    assert host.publish_invites([a_stored_invite()]) == 1
    clock.advance(HOUR_MS)
    assert host.publish_invites([a_stored_invite()]) == 1
    await host.stop()
    await store.close()
