"""What a source sends to one reader: batches that gather, cursors that move past what is for others, signed marks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.delivery.feed import MirrorFeed, OutboxFeed, SubscriberNotes, WholeFeed, addressed_to
from agentpost.delivery.frames import Credit, Events, Subscribe, decode_frame
from agentpost.delivery.heads import verify_head
from agentpost.protocol.codec import decode_event
from agentpost.protocol.heads import OutboxHead, chain_over
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import CHAIN_START, StreamSlice
from tests.delivery.linking import Node, World

PLENTY = 100_000_000


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path if request.param == "sqlite" else None)
    await world.add("node-a", "ada")
    await world.add("node-b", "bob")
    await world.add("node-c", "cleo", tier=NodeTier.BACKBONE)
    yield world
    await world.close()


def _from_start(source: str = "node-a", *, whole: bool = False, epoch: str | None = None) -> Subscribe:
    return Subscribe(source=source, epoch=epoch, after_seq=0, after_chain=CHAIN_START, whole=whole)


def _outbox_feed(node: Node, wish: Subscribe | None = None) -> OutboxFeed:
    signing = node.world.room.identity(node.node_id).signing
    return OutboxFeed(wish or _from_start(), consumer="node-b", store=node.store, signing=signing)


def _credit(through_seq: int, room_bytes: int = PLENTY) -> Credit:
    return Credit(source="node-a", through_seq=through_seq, bytes=room_bytes)


def _events(frames: list[bytes]) -> list[Events]:
    return [frame for frame in map(decode_frame, frames) if isinstance(frame, Events)]


def _head(world: World, batch: Events) -> OutboxHead:
    key = world.room.signing_key("node-a")
    assert key is not None
    return verify_head(batch.head, batch.signature, key)


@pytest.mark.req("PIPE-9")
async def test_a_reader_gets_its_own_stream_and_the_mark_of_it(world: World) -> None:
    """What is for others is left out, the cursor may pass it, and the head says where the reader's stream ends."""
    a = world.nodes["node-a"]
    mine = [await a.send("bob"), await a.send("bob", "cleo")]
    await a.send("cleo")
    feed = _outbox_feed(a)
    feed.grant(_credit(0))
    (batch,) = _events(feed.frames())
    assert [decode_event(raw).event_id for raw in batch.events] == mine
    assert (batch.after_seq, batch.through_seq) == (0, 3)
    head = _head(world, batch)
    assert list(head.streams) == ["node-b"]
    assert head.streams["node-b"].seq == 2
    assert head.streams["node-b"].chain == chain_over(CHAIN_START, batch.events)


async def test_small_appends_gather_while_batches_are_under_way(world: World) -> None:
    """A reader that is slower than the writer gets few large batches, not many small ones."""
    a = world.nodes["node-a"]
    feed = _outbox_feed(a)
    feed.grant(_credit(0))
    sent: list[Events] = []
    for _ in range(20):
        await a.send("bob")
        feed.wake()
        sent += _events(feed.frames())
    assert [len(batch.events) for batch in sent] == [1, 1]
    feed.grant(_credit(sent[-1].through_seq))
    (rest,) = _events(feed.frames())
    assert len(rest.events) == 18


async def test_a_crowd_is_sent_in_two_batches(world: World) -> None:
    """The reader can take one half while the source goes on; a backlog comes in batches as large as they may be."""
    a = world.nodes["node-a"]
    stored = a.store.find_event(await a.send("bob"))
    assert stored is not None
    event = decode_event(stored.raw)
    await a.store.append([event] * 119)
    feed = _outbox_feed(a)
    feed.grant(_credit(0))
    batches = _events(feed.frames())
    assert [(batch.after_seq, batch.through_seq, len(batch.events)) for batch in batches] == [
        (0, 60, 60),
        (60, 120, 60),
    ]
    for batch in batches:
        assert _head(world, batch).streams["node-b"].seq == batch.through_seq
    await a.store.append([event] * 2000)
    feed.wake()
    feed.grant(_credit(120))
    assert [len(batch.events) for batch in _events(feed.frames())] == [1024, 488]


async def test_a_cursor_is_moved_now_and_then_past_what_is_for_others(world: World) -> None:
    """A reader that has no mail hears of the outbox only once it has grown much."""
    a = world.nodes["node-a"]
    feed = _outbox_feed(a)
    feed.grant(_credit(0))
    event_id = await a.send("cleo")
    assert feed.frames() == []
    stored = a.store.find_event(event_id)
    assert stored is not None
    event = decode_event(stored.raw)
    await a.store.append([event] * 1100)
    feed.wake()
    (batch,) = _events(feed.frames())
    assert (batch.after_seq, batch.through_seq, batch.events) == (0, 1101, [])


@pytest.mark.req("PIPE-9")
async def test_a_mirror_gets_everything_and_the_marks_of_all_who_have_mail_in_it(world: World) -> None:
    """So the mirror can serve each of them with a head that has the reader's mark."""
    a = world.nodes["node-a"]
    await a.send("bob")
    await a.send("cleo")
    await a.send("ada")
    signing = world.room.identity("node-a").signing
    feed = WholeFeed(_from_start(whole=True), consumer="node-c", store=a.store, signing=signing)
    feed.grant(Credit(source="node-a", through_seq=0, bytes=PLENTY, whole=True))
    (batch,) = _events(feed.frames())
    head = _head(world, batch)
    assert len(batch.events) == 3
    assert head.chain == a.store.head().chain == chain_over(CHAIN_START, batch.events)
    assert {node_id: mark.seq for node_id, mark in head.streams.items()} == {"node-b": 1, "node-c": 2}


async def test_a_subscription_of_another_epoch_starts_over(world: World) -> None:
    """The reader knows an earlier life of this outbox: it gets the present one from its start."""
    a = world.nodes["node-a"]
    await a.send("bob")
    feed = _outbox_feed(a, Subscribe(source="node-a", epoch="epoch_0", after_seq=77, after_chain=b"\1" * 32))
    feed.grant(_credit(77))
    (batch,) = _events(feed.frames())
    assert (batch.epoch, batch.after_seq, len(batch.events)) == ("epoch_1", 0, 1)


async def test_a_mirror_that_has_nothing_waits(world: World) -> None:
    """A source that is not mirrored yet is no error: its outbox comes when it comes."""
    feed = MirrorFeed(_from_start(), consumer="node-b", store=world.nodes["node-c"].store)
    feed.grant(_credit(0))
    assert feed.frames() == []


@pytest.mark.req("PIPE-9")
async def test_a_mark_is_never_older_than_the_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory may be a moment behind the file that the events were read from; their marks are not."""
    a = world.nodes["node-a"]
    signing = world.room.identity("node-a").signing
    await a.send("bob")
    newest = a.store.head().seq
    read_stream = a.store.read_stream

    def lagging(consumer: str, after_seq: int, *, may_lag: bool = False, **options: int) -> StreamSlice:
        return read_stream(consumer, newest if may_lag else after_seq, **options)

    monkeypatch.setattr(a.store, "read_stream", lagging)
    feed = WholeFeed(_from_start(whole=True), consumer="node-c", store=a.store, signing=signing)
    feed.grant(_credit(0))
    (batch,) = _events(feed.frames())
    assert _head(world, batch).streams["node-b"].seq == newest


@pytest.mark.req("CUR-5")
async def test_cursors_of_readers_are_written_down_at_most_once_a_second(world: World) -> None:
    """A reader that confirms every batch does not cost a write each time, and its lease is renewed in time."""
    a = world.nodes["node-a"]
    notes = SubscriberNotes(a.store, clock=world.clock, lease_seconds=300)
    for _ in range(5):
        await a.send("bob")

    def noted() -> int:
        (subscriber,) = a.store.subscribers()
        return subscriber.last_seq

    for seq in range(5):
        await notes.note("node-b", seq)
    assert noted() == 0
    world.clock.advance(1_000)
    await notes.note("node-b", 5)
    assert noted() == 5
    before = a.store.subscribers()[0].lease_expires_at_ms
    world.clock.advance(99_999)
    await notes.note("node-b", 5)
    assert a.store.subscribers()[0].lease_expires_at_ms == before
    world.clock.advance(1)
    await notes.note("node-b", 5)
    assert a.store.subscribers()[0].lease_expires_at_ms == world.clock.now_ms() + 300_000


def test_whom_an_event_is_for_is_read_without_reading_the_rest() -> None:
    """Bytes that are no event are for nobody."""
    assert addressed_to(b"\xc1") == ()
    assert addressed_to(b"") == ()
