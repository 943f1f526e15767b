"""An outbox that is read once for two purposes: mail for this gateway, and a mirror for others."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.delivery.frames import Events, Subscribe, decode_frame, encode_frame
from agentpost.protocol.errors import Code
from agentpost.protocol.snapshot import NodeTier
from agentpost.testing import MemoryStore
from tests.delivery.linking import Node, Pipe, World, settle


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path if request.param == "sqlite" else None)
    yield world
    await world.close()


async def _edge_and_seed(world: World) -> tuple[Node, Node]:
    return await world.add("node-a", "ada"), await world.add("node-b", "bob", tier=NodeTier.BACKBONE)


def _record(pipe: Pipe) -> list[Any]:
    """What comes to the seed, and what it asks for, from now on."""
    seen: list[Any] = []

    def look(frame: bytes) -> list[bytes]:
        seen.append(decode_frame(frame))
        return [frame]

    pipe.right.meddle = pipe.left.meddle = look
    return seen


def _positions(node: Node, source: str) -> tuple[int, int]:
    cursor, mirror = node.store.cursor(source), node.store.mirror_position(source)
    return cursor.last_seq if cursor else 0, mirror.last_seq if mirror else 0


@pytest.mark.req("CUR-2", "PIPE-9")
async def test_a_linked_outbox_is_read_once_for_mail_and_mirror(world: World) -> None:
    """A seed with a link to the sender gets every event once: its inbox, its mirror and its cursor move together."""
    a, b = await _edge_and_seed(world)
    await world.add("node-c", "carol")
    pipe = Pipe(a, b)
    seen = _record(pipe)
    sent = [await a.send("bob"), await a.send("carol"), await a.send("bob", "carol")]
    await settle(pipe)
    assert b.inbox("bob") == [sent[0], sent[2]]
    kept, own = b.store.read_mirror("node-a", "node-c", 0), b.store.read_mirror("node-a", "node-b", 0)
    assert kept is not None
    assert len(kept.events) == 2
    assert own is None or not own.events, "what it took nobody asks it for"
    assert _positions(b, "node-a") == (3, 3)
    from_a = [frame for frame in seen if isinstance(frame, Events) and frame.source == "node-a"]
    assert all(frame.whole for frame in from_a)
    assert sum(len(frame.events) for frame in from_a) == 3


@pytest.mark.req("CUR-3", "PIPE-9")
async def test_readers_that_are_not_equally_far_go_by_themselves_until_they_are(world: World) -> None:
    """A mirror that has to catch up does not hold up the mail; once both are equally far, one read serves both."""
    a, b = await _edge_and_seed(world)
    pipe = Pipe(a, b)
    sent = [await a.send("bob") for _ in range(3)]
    await settle(pipe)
    pipe.cut()
    await b.store.restart_mirror("node-a", epoch="epoch_1", at_ms=world.clock.now_ms())
    a.restart()
    b.restart()
    pipe = Pipe(a, b)
    seen = _record(pipe)
    sent.append(await a.send("bob"))
    await settle(pipe)
    asked = {frame.whole for frame in seen if isinstance(frame, Subscribe) and frame.source == "node-a"}
    assert asked == {True, False}
    assert _positions(b, "node-a") == (4, 4)
    await b.hub.tick()
    await settle(pipe)
    seen.clear()
    sent.append(await a.send("bob"))
    await settle(pipe)
    assert [frame.whole for frame in seen if isinstance(frame, Events) and frame.source == "node-a"] == [True]
    assert b.inbox("bob") == sent
    assert _positions(b, "node-a") == (5, 5)
    assert b.incidents() == []


@pytest.mark.req("CUR-6")
async def test_a_source_that_begins_anew_is_read_by_each_for_itself() -> None:
    """When the outbox has another epoch both start from its beginning, somebody is told, and nothing is lost."""
    world = World(None)
    a, b = await _edge_and_seed(world)
    pipe = Pipe(a, b)
    old = await a.send("bob")
    await settle(pipe)
    pipe.cut()
    a.store = MemoryStore(node_id="node-a", epoch="epoch_2")
    a.restart()
    b.restart()
    await a.host("ada")
    new = [await a.send("bob") for _ in range(2)]
    await settle(Pipe(a, b))
    assert b.inbox("bob") == [old, *new]
    assert _positions(b, "node-a") == (2, 2)
    assert b.incidents() == ["epoch_changed"]
    await world.close()


@pytest.mark.req("PIPE-9")
@pytest.mark.parametrize("meddling", ["altered", "left out"])
async def test_what_the_owner_did_not_sign_is_neither_kept_nor_taken(world: World, meddling: str) -> None:
    """An event that was altered or left out on the way ends the link; the mirror, the inbox and the cursor stay."""
    a, b = await _edge_and_seed(world)
    pipe = Pipe(a, b)

    def meddle(frame: bytes) -> list[bytes]:
        found = decode_frame(frame)
        if not isinstance(found, Events) or not found.events:
            return [frame]
        events = [found.events[0].replace(b"hello", b"hallo"), *found.events[1:]]
        return [encode_frame(replace(found, events=events if meddling == "altered" else found.events[1:]))]

    pipe.right.meddle = meddle
    for _ in range(2):
        await a.send("bob")
    await settle(pipe)
    assert pipe.right.refusal is not None
    assert pipe.right.refusal.code is Code.CONFLICT
    assert b.inbox("bob") == []
    assert _positions(b, "node-a") == (0, 0)
    assert b.incidents() == ["stream_broken"]
