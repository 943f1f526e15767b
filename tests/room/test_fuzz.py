"""Bytes from anywhere: a refusal, or nothing; never an exception of another kind, never a change of the room."""

import contextlib
import os
import random

import pytest

from agentpost.protocol.errors import Refusal
from agentpost.room.sync import step_1, step_2, update_frame
from agentpost.room.wire import read_update
from tests.room.building import EDGE, OTHER_SEED, a_hub, a_populated_room, a_room, signed, visible, written

ROUNDS = 4_000 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))


def mutated(chance: random.Random, data: bytes) -> bytes:
    """The bytes with one to four things wrong."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(5):
            case 0:
                out[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del out[at : at + chance.randint(1, 8)]
            case 2:
                out[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3 if out:
                at = min(at, len(out) - 1)
                out[at] ^= 1 << chance.randrange(8)
            case _:
                start = chance.randrange(len(out) + 1)
                out[at:at] = out[start : start + chance.randint(1, 20)]
    return bytes(out)


@pytest.mark.req("ROOM-3")
def test_mutated_updates_change_nothing() -> None:
    """Thousands of valid updates with a few bytes changed raise only refusals and leave the room as it was."""
    chance = random.Random(3)
    room = a_populated_room()
    record = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1, "epoch": "epoch-1"})
    valid = [written(room, "delivery", EDGE, record), room.update_since()]
    before = visible(room)
    for turn in range(ROUNDS):
        update = mutated(chance, valid[turn % 7 == 0])
        if update in valid:
            continue
        try:
            changes = room.receive(update, peer=chance.choice((EDGE, OTHER_SEED)), is_sync=chance.random() < 0.5)
        except Refusal:
            continue
        # The same record in another envelope is still the same record.
        assert all(change.record == record for change in changes)
        if changes:
            room = a_populated_room()
    after = visible(room)
    assert after["records"] == before["records"]
    assert after["values"] == before["values"]
    assert after["roots"] == before["roots"]


@pytest.mark.req("ROOM-3")
def test_random_bytes_are_never_an_update() -> None:
    """Noise is refused."""
    chance = random.Random(4)
    room = a_populated_room()
    before = visible(room)
    for _ in range(ROUNDS):
        noise = chance.randbytes(chance.randrange(64))
        with contextlib.suppress(Refusal):
            read_update(noise)
        with contextlib.suppress(Refusal):
            assert room.receive(noise, peer=OTHER_SEED) == []
    assert visible(room)["values"] == before["values"]


@pytest.mark.req("ROOM-3")
def test_mutated_frames_end_sessions_and_nothing_else() -> None:
    """Frames of every kind with a few bytes changed raise only refusals."""
    chance = random.Random(5)
    room = a_populated_room()
    hub = a_hub(room)
    hub.beat()
    stranger = a_room(EDGE)
    stranger.write("delivery", EDGE, {"inboxCursorAcked": 1})
    frames = [
        step_1(room.state()),
        step_2(b"\x00\x00"),
        update_frame(stranger.update_since()[:-20]),
        *hub.open(OTHER_SEED).start(),
    ]
    for turn in range(ROUNDS):
        session = hub.open(EDGE)
        try:
            session.receive(mutated(chance, frames[turn % len(frames)]))
        except Refusal:
            assert session.audit is not None
        session.close()
    assert len(hub.sessions) == 1
    assert set(room.records("nodes")) == set(a_populated_room().records("nodes"))
