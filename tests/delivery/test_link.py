"""Two gateways and a pipe: mail and ACKs both ways, cuts, repeats, credit, and who may have what."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.delivery.frames import (
    Chunk,
    Credit,
    Events,
    GetChunk,
    Hello,
    Ping,
    Pong,
    Refused,
    Subscribe,
    Unsubscribe,
    decode_frame,
    encode_frame,
)
from agentpost.protocol.delivery import Change
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import CHAIN_START, Acceptance, Accepted, Subscriber
from tests.delivery.linking import Node, Pipe, World, hand, settle


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path if request.param == "sqlite" else None)
    yield world
    await world.close()


async def _two(world: World) -> tuple[Node, Node]:
    return await world.add("node-a", "ada"), await world.add("node-b", "bob", tier=NodeTier.BACKBONE)


@pytest.mark.req("ACK-2", "ACK-3", "PIPE-2")
async def test_mail_and_acks_flow_both_ways_over_one_link(world: World) -> None:
    """Whoever dialled: both outboxes are read over the one link, and each delivery ends."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    there, back = await a.send("bob"), await b.send("ada", sender="bob")
    await settle(pipe)
    assert b.inbox("bob") == [there]
    assert a.inbox("ada") == [back]
    assert a.states(there) == {"bob": DeliveryState.ACCEPTED}
    assert b.states(back) == {"ada": DeliveryState.ACCEPTED}
    await b.process("bob")
    await settle(pipe)
    assert a.states(there) == {"bob": DeliveryState.PROCESSED}
    assert b.woken == ["bob"]


@pytest.mark.req("ACK-1")
async def test_local_mail_takes_the_same_way(world: World) -> None:
    """Mail between two agents of one gateway is accepted and acknowledged like all other mail."""
    a = await world.add("node-a", "ada", "eve")
    event_id = await a.send("eve")
    await a.hub.own.read()
    assert a.inbox("eve") == [event_id]
    assert a.states(event_id) == {"eve": DeliveryState.ACCEPTED}
    await a.process("eve")
    await a.hub.own.read()
    assert a.states(event_id) == {"eve": DeliveryState.PROCESSED}


async def test_local_mail_is_read_when_the_outbox_grows(world: World) -> None:
    """A started hub takes local mail by itself: nobody has to ask."""
    a = await world.add("node-a", "ada", "eve")
    a.hub.start()
    event_id = await a.send("eve")
    for _ in range(1000):
        if a.inbox("eve"):
            break
        await asyncio.sleep(0.005)
    assert a.inbox("eve") == [event_id]


@pytest.mark.req("RTY-5", "CUR-2")
async def test_local_mail_after_a_full_disk_is_read_once_there_is_space(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more has to be sent for that: what the disk did not take is tried again."""
    a = await world.add("node-a", "ada", "eve")
    accept, refused, taken = a.store.accept, asyncio.Event(), asyncio.Event()

    async def accept_once_there_is_space(batch: Acceptance) -> Accepted:
        if not refused.is_set():
            refused.set()
            raise Refusal(Code.STORAGE_FULL, "the disk is full; nothing was written")
        accepted = await accept(batch)
        taken.set()
        return accepted

    monkeypatch.setattr(a.store, "accept", accept_once_there_is_space)
    event_id = await a.send("eve")
    a.hub.start()
    async with asyncio.timeout(30):
        await taken.wait()
        await a.hub.own.caught_up()
    assert a.inbox("eve") == [event_id]


@pytest.mark.req("CUR-1", "CUR-2", "RTY-3")
async def test_after_a_cut_at_any_frame_nothing_is_lost_and_nothing_comes_twice(world: World) -> None:
    """However many frames get through before the link is cut, the next link goes on from the cursor."""
    a, b = await _two(world)
    sent = [await a.send("bob", text=str(number)) for number in range(5)]
    answered = [await b.send("ada", sender="bob") for _ in range(5)]
    for steps in range(1, 12):
        pipe = Pipe(a, b)
        for _ in range(steps):
            await pipe.step()
        pipe.cut()
        sent.append(await a.send("bob", text=f"after {steps}"))
        b.restart()
        a.restart()
    await settle(Pipe(a, b))
    assert b.inbox("bob") == sent
    assert a.inbox("ada") == answered
    assert {a.states(event_id)["bob"] for event_id in sent} == {DeliveryState.ACCEPTED}
    assert a.incidents() == b.incidents() == []


@pytest.mark.req("RTY-3", "CUR-1")
async def test_frames_that_come_twice_are_taken_once(world: World) -> None:
    """Every batch delivered three times is one batch."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    pipe.right.meddle = lambda frame: [frame] * (3 if isinstance(decode_frame(frame), Events) else 1)
    sent = [await a.send("bob") for _ in range(3)]
    await settle(pipe)
    sent.append(await a.send("bob"))
    await settle(pipe)
    assert b.inbox("bob") == sent
    assert b.incidents() == []
    # Three messages of Ada's, and one ACK for each of them, not more.
    assert b.store.head().seq == len(sent)


@pytest.mark.req("CUR-3")
async def test_a_frame_that_overtakes_another_stops_the_cursor_until_the_gap_is_closed(world: World) -> None:
    """What is missing is asked for again from the cursor on, and then everything is there in order."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await settle(pipe)
    lost: list[bytes] = []

    def lose_one(frame: bytes) -> list[bytes]:
        if isinstance(decode_frame(frame), Events) and not lost:
            lost.append(frame)
            return []
        return [frame]

    pipe.right.meddle = lose_one
    sent = [await a.send("bob")]
    pipe.right.bring(pipe.left.session.frames_to_send())
    sent.append(await a.send("bob"))
    await settle(pipe)
    assert b.inbox("bob") == sent
    pipe.right.coming += lost
    await settle(pipe)
    assert b.inbox("bob") == sent
    assert b.incidents() == []


@pytest.mark.req("CUR-3")
async def test_what_is_missing_is_asked_for_until_it_comes(world: World) -> None:
    """If the answer to the question after a gap is lost as well, the next tick asks again."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await settle(pipe)
    to_lose = [1, 3]
    seen = 0

    def lose(frame: bytes) -> list[bytes]:
        nonlocal seen
        if not isinstance(decode_frame(frame), Events):
            return [frame]
        seen += 1
        return [] if seen in to_lose else [frame]

    pipe.right.meddle = lose
    sent = [await a.send("bob")]
    pipe.right.bring(pipe.left.session.frames_to_send())
    sent.append(await a.send("bob"))
    await settle(pipe)
    assert (seen, b.inbox("bob")) == (3, []), "the first, and what was asked for after the second"
    await pipe.right.session.tick()
    await settle(pipe)
    assert b.inbox("bob") == sent
    assert b.incidents() == []


@pytest.mark.req("CUR-3")
async def test_a_batch_that_was_passed_over_is_missing_until_it_comes(world: World) -> None:
    """A batch overtakes the answer to a question that was asked: that the answer comes does not bring it back."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await settle(pipe)
    sent: list[str] = []
    batches: list[Events] = []
    waiting: list[bytes] = []

    def hold(frame: bytes) -> list[bytes]:
        found = decode_frame(frame)
        if not isinstance(found, Events):
            return [frame]
        batches.append(found)
        waiting.append(frame)
        return []

    async def send_one() -> None:
        sent.append(await a.send("bob"))
        pipe.right.bring(pipe.left.session.frames_to_send())

    pipe.right.meddle = hold
    await send_one()
    await send_one()
    # The second without the first: both are asked for.
    pipe.right.coming.append(waiting.pop())
    await settle(pipe)
    await send_one()
    answer, next_one = waiting[-2:]
    pipe.right.coming += [next_one, answer]
    await settle(pipe)
    assert b.inbox("bob") == sent[:2]
    # As many as may be under way are lost now, so that nothing else comes that would show the gap.
    await send_one()
    assert [(batch.after_seq, batch.through_seq) for batch in batches] == [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4)]
    pipe.right.meddle = lambda frame: [frame]
    await send_one()
    await settle(pipe)
    await pipe.right.session.tick()
    await settle(pipe)
    assert b.inbox("bob") == sent
    assert b.incidents() == []


@pytest.mark.req("CUR-1")
async def test_a_link_on_which_nothing_is_confirmed_is_made_anew(world: World) -> None:
    """All that may be under way is lost, so that nothing shows the gap: the link ends, and the next one brings it."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await settle(pipe)
    pipe.right.meddle = lambda frame: [] if isinstance(decode_frame(frame), Events) else [frame]
    sent: list[str] = []
    for _ in range(3):
        sent.append(await a.send("bob"))
        await settle(pipe)
    for _ in range(7):
        assert pipe.left.session.refusal is None
        world.clock.advance(10_000)
        for end in pipe.ends:
            await end.session.tick()
        await settle(pipe)
    assert pipe.left.session.refusal is not None
    assert pipe.left.session.refusal.code is Code.UNAVAILABLE
    assert b.inbox("bob") == []
    pipe.cut()
    await settle(Pipe(a, b))
    assert b.inbox("bob") == sent
    assert a.incidents() == b.incidents() == []


@pytest.mark.req("CUR-1")
async def test_what_somebody_asks_for_again_has_its_time_anew(world: World) -> None:
    """A reader that stopped reading for a while, and begins where it was, is given as long as any other."""
    a, _ = await _two(world)
    await a.send("bob")
    session = a.hub.open("node-b", on_wake=lambda: None)
    await hand(session, encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))

    async def subscribe() -> None:
        await hand(session, encode_frame(Subscribe(source="node-a", after_seq=0, after_chain=CHAIN_START)))
        assert _events(await hand(session, encode_frame(Credit(source="node-a", through_seq=0, bytes=100_000))))

    await subscribe()
    await session.tick()
    await hand(session, encode_frame(Unsubscribe(source="node-a")))
    for _ in range(10):
        world.clock.advance(10_000)
        await hand(session, encode_frame(Pong()))
        await session.tick()
    await subscribe()
    await session.tick()
    assert session.refusal is None


@pytest.mark.req("PIPE-1")
async def test_a_reader_that_confirms_is_not_left_however_long_it_is_quiet(world: World) -> None:
    """With nothing under way, or with something new confirmed each time, a link lasts."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    for turn in range(20):
        if turn % 3:
            await a.send("bob")
        await settle(pipe)
        world.clock.advance(25_000)
        for end in pipe.ends:
            await end.session.tick()
        await settle(pipe)
    assert pipe.left.session.refusal is pipe.right.session.refusal is None


@pytest.mark.req("PIPE-1", "CUR-1")
async def test_a_reader_that_is_never_done_and_gets_on_is_not_left(world: World) -> None:
    """On a busy link something is always under way. What counts is that the reader confirms more and more."""
    a, _ = await _two(world)
    session = a.hub.open("node-b", on_wake=lambda: None)
    await hand(session, encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
    await hand(session, encode_frame(Subscribe(source="node-a", after_seq=0, after_chain=CHAIN_START)))
    await hand(session, encode_frame(Credit(source="node-a", through_seq=0, bytes=1_000_000)))
    for seq in range(1, 12):
        await a.send("bob")
        assert len(_events(session.frames_to_send())) == 1
        await hand(session, encode_frame(Credit(source="node-a", through_seq=seq - 1, bytes=1_000_000)))
        world.clock.advance(20_000)
        await hand(session, encode_frame(Pong()))
        await session.tick()
        assert session.refusal is None


@pytest.mark.req("PIPE-1")
async def test_a_reader_that_gives_no_credit_stops_the_feed(world: World) -> None:
    """No more is under way than the reader has room for, however much there is to send."""
    a, _ = await _two(world)
    for number in range(200):
        await a.send("bob", text=str(number) + "x" * 10_000)
    session = a.hub.open("node-b", on_wake=lambda: None)
    await hand(session, encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
    await hand(session, encode_frame(Subscribe(source="node-a", after_seq=0, after_chain=CHAIN_START)))
    assert _events(session.frames_to_send()) == []
    first = _events(await hand(session, encode_frame(Credit(source="node-a", through_seq=0, bytes=100_000))))
    assert 0 < sum(len(raw) for batch in first for raw in batch.events) < 120_000
    a.wakeups.outbox_grew()
    assert _events(session.frames_to_send()) == []
    more = _events(
        await hand(session, encode_frame(Credit(source="node-a", through_seq=first[-1].through_seq, bytes=100_000)))
    )
    assert more[0].after_seq == first[-1].through_seq
    stop = await hand(session, encode_frame(Credit(source="node-a", through_seq=more[-1].through_seq, bytes=0)))
    assert _events(stop) == []


@pytest.mark.req("CUR-3", "PIPE-7")
@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_reader_is_told_that_what_comes_next_was_pruned_meanwhile(world: World, *, is_whole: bool) -> None:
    """Its lease ran out while it read, say: it hears of a gap, and is not handed what it would take for a forgery."""
    a, _ = await _two(world)
    for number in range(4):
        await a.send("bob", text=str(number) + "x" * 10_000)
    session = a.hub.open("node-b", on_wake=lambda: None)
    await hand(session, encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
    wish = Subscribe(source="node-a", after_seq=0, after_chain=CHAIN_START, whole=is_whole)
    await hand(session, encode_frame(wish))

    async def grant(through_seq: int) -> list[bytes]:
        credit = Credit(source="node-a", through_seq=through_seq, bytes=10_000, whole=is_whole)
        return await hand(session, encode_frame(credit))

    (first,) = _events(await grant(0))
    assert first.through_seq < 3
    for event in a.store.deliveries_in((DeliveryState.EMITTED,)):
        change = Change(
            event_id=event.event_id, to_agent_id="bob", signal=DeliverySignal.PROCESSED, at_ms=world.clock.now_ms()
        )
        await a.store.append([], changes=[change])
    now_ms = world.clock.now_ms() + 3_600_000
    other = Subscriber(
        consumer_node_id="node-c", epoch="epoch_1", last_seq=3, updated_at_ms=now_ms, lease_expires_at_ms=now_ms + 1
    )
    await a.store.note_subscriber(other)
    await a.store.compact(a.store.watermarks(now_ms=now_ms, retention_events=0))
    assert a.store.read_outbox(0).floor_seq == 3
    answers = [decode_frame(frame) for frame in await grant(first.through_seq)]
    assert [answer.code for answer in answers if isinstance(answer, Refused)] == ["sequence_gap"]
    assert not [answer for answer in answers if isinstance(answer, Events)]


async def test_credit_for_all_that_a_feed_may_send_is_in_a_hurry(world: World) -> None:
    """The credit for one batch waits for the answers to it; for two it goes at once, since a third waits for it."""
    a, b = await _two(world)
    source, hurries = a.hub.open("node-b", on_wake=lambda: None), list[bool]()
    reader = b.hub.open("node-a", on_wake=lambda: hurries.append(True), on_wake_soon=lambda: hurries.append(False))
    await source.take(encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
    await reader.take(encode_frame(Hello(node="node-a", epoch="epoch_1", version="1.0")))
    for frame in reader.frames_to_send():
        await source.take(frame)
    source.frames_to_send()
    for is_in_hurry in (False, True):
        hurries.clear()
        await a.send("bob")
        a.wakeups.outbox_grew()
        (batch,) = [frame for frame in source.frames_to_send() if isinstance(decode_frame(frame), Events)]
        await reader.take(batch)
        async with asyncio.timeout(30):
            while not hurries:  # noqa: ASYNC110 - the disk has no event for this
                await asyncio.sleep(0.001)
        assert (True in hurries) is is_in_hurry
    credit = [frame for frame in map(decode_frame, reader.frames_to_send()) if isinstance(frame, Credit)]
    assert [(each.source, each.through_seq) for each in credit] == [("node-a", 2)]


async def test_credit_wakes_only_a_feed_that_has_something_to_send(world: World) -> None:
    """Who has sent everything does nothing about it when that has arrived."""
    a, _ = await _two(world)
    woken: list[None] = []
    session = a.hub.open("node-b", on_wake=lambda: woken.append(None))
    await session.take(encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
    await session.take(encode_frame(Subscribe(source="node-a", after_seq=0, after_chain=CHAIN_START)))
    await session.take(encode_frame(Credit(source="node-a", through_seq=0, bytes=100_000)))
    for seq in (1, 2, 3):
        await a.send("bob")
        a.wakeups.outbox_grew()
        assert len(_events(session.frames_to_send())) == (seq != 3)
    woken.clear()
    await session.take(encode_frame(Credit(source="node-a", through_seq=1, bytes=100_000)))
    assert len(woken) == 1, "the third message waited for it"
    assert len(_events(session.frames_to_send())) == 1
    await session.take(encode_frame(Credit(source="node-a", through_seq=2, bytes=100_000)))
    assert _events(session.frames_to_send()) == []
    woken.clear()
    await session.take(encode_frame(Credit(source="node-a", through_seq=3, bytes=100_000)))
    assert woken == []


@pytest.mark.req("CUR-5")
async def test_who_reads_is_noted_with_a_lease(world: World) -> None:
    """The owner of an outbox knows how far each reader has it on its disk, and until when that counts."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await a.send("bob")
    await settle(pipe)
    await a.send("bob")
    await settle(pipe)
    world.clock.advance(10_000)
    await pipe.right.session.tick()
    await settle(pipe)
    (noted,) = a.store.subscribers()
    assert (noted.consumer_node_id, noted.epoch, noted.last_seq) == ("node-b", "epoch_1", 2)
    assert noted.lease_expires_at_ms == world.clock.now_ms() + 300_000


@pytest.mark.req("CUR-5", "PIPE-7")
async def test_of_two_feeds_of_one_reader_the_slower_counts(world: World) -> None:
    """A gateway that reads its stream and the whole outbox has read what it has of both; the rest is kept for it."""
    a, _ = await _two(world)
    for _ in range(50):
        await a.send("bob")
    session = a.hub.open("node-b", on_wake=lambda: None)
    await hand(session, encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
    for is_whole in (False, True):
        wish = Subscribe(source="node-a", after_seq=0, after_chain=CHAIN_START, whole=is_whole)
        await hand(session, encode_frame(wish))
        await hand(session, encode_frame(Credit(source="node-a", through_seq=0, bytes=1_000_000, whole=is_whole)))
    for through_seq, is_whole in ((5, False), (50, True)):
        world.clock.advance(2_000)
        credit = Credit(source="node-a", through_seq=through_seq, bytes=1_000_000, whole=is_whole)
        await hand(session, encode_frame(credit))
    world.clock.advance(2_000)
    await hand(session, encode_frame(Ping()))
    (noted,) = a.store.subscribers()
    assert noted.last_seq == 5
    for delivery in a.store.deliveries_in((DeliveryState.EMITTED,)):
        change = Change(event_id=delivery.event_id, to_agent_id="bob", signal=DeliverySignal.PROCESSED, at_ms=0)
        await a.store.append([], changes=[change])
    await a.store.compact(a.store.watermarks(now_ms=world.clock.now_ms(), retention_events=0))
    assert a.store.read_outbox(0).floor_seq == 5


@pytest.mark.req("CUR-5", "PIPE-7")
async def test_a_reader_has_read_no_more_than_it_was_sent(world: World) -> None:
    """What it says beyond that counts for nothing, and nothing is pruned for it."""
    a, _ = await _two(world)
    for _ in range(5):
        await a.send("bob")
    session = a.hub.open("node-b", on_wake=lambda: None)
    await hand(session, encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
    await hand(session, encode_frame(Subscribe(source="node-a", after_seq=0, after_chain=CHAIN_START)))
    await hand(session, encode_frame(Credit(source="node-a", through_seq=4, bytes=0)))
    (noted,) = a.store.subscribers()
    assert noted.last_seq == 0


@pytest.mark.req("CUR-2", "CUR-1")
@pytest.mark.parametrize("tier", list(NodeTier))
async def test_a_batch_that_the_disk_did_not_take_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch, tier: NodeTier
) -> None:
    """A full disk ends the link. The position stands, nothing is confirmed, the next link brings it."""
    a, b = await world.add("node-a", "ada"), await world.add("node-b", "bob", tier=tier)
    sent = [await a.send("bob")]
    pipe = Pipe(a, b)
    await settle(pipe)
    confirmed: list[int] = []

    def listen(frame: bytes) -> list[bytes]:
        if isinstance(found := decode_frame(frame), Credit):
            confirmed.append(found.through_seq)
        return [frame]

    pipe.left.meddle = listen

    async def refuse(_: Acceptance) -> Accepted:
        raise Refusal(Code.STORAGE_FULL, "the disk is full; nothing was written")

    with monkeypatch.context() as full:
        full.setattr(b.store, "accept", refuse)
        sent.append(await a.send("bob"))
        await settle(pipe)
    assert pipe.right.refusal is not None
    assert pipe.right.refusal.code is Code.STORAGE_FULL
    assert confirmed == []
    assert b.inbox("bob") == sent[:1]
    pipe.cut()
    # The same gateway, with what it has in memory.
    sent.append(await a.send("bob"))
    await settle(Pipe(a, b))
    assert b.inbox("bob") == sent
    assert {state for each in sent for state in a.states(each).values()} == {DeliveryState.ACCEPTED}
    assert b.incidents() == []


@pytest.mark.req("PIPE-1")
async def test_the_whole_outbox_is_for_backbone_gateways_only(world: World) -> None:
    """An edge node that asks for more than its own stream is refused, and the link goes on."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await settle(pipe)
    wish = encode_frame(Subscribe(source="node-b", after_seq=0, after_chain=CHAIN_START, whole=True))
    (answer,) = await hand(pipe.right.session, wish)
    refused = decode_frame(answer)
    assert isinstance(refused, Refused)
    assert refused.code == Code.WRITE_DENIED
    await b.send("ada", sender="bob")
    await settle(pipe)
    assert len(a.inbox("ada")) == 1


@pytest.mark.req("ROOM-6")
async def test_a_revoked_node_loses_its_link_at_once(world: World) -> None:
    """When the room says that a node is out, its session ends, and nothing more is read from it or sent to it."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await settle(pipe)
    world.room.revoke("node-b")
    a.hub.room_changed()
    assert pipe.left.session.refusal is not None
    assert pipe.left.session.refusal.code is Code.NODE_REVOKED
    assert a.hub.sessions == ()
    with pytest.raises(Refusal):
        await hand(pipe.left.session, encode_frame(Ping()))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x80",
        encode_frame(Ping()) + b"\x00",
        encode_frame(Hello(node="node-b", epoch="e", version="1.0")),
        encode_frame(Hello(node="node-c", epoch="e", version="1.0")),
        b"\x00" * (4 * 1024 * 1024 + 1),
    ],
)
async def test_a_frame_that_is_none_ends_the_session(frame: bytes) -> None:
    """Whatever cannot be read, or comes where it has no place, is refused and changes nothing."""
    world = World()
    a, _ = await _two(world)
    session = a.hub.open("node-b", on_wake=lambda: None)
    await hand(session, encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
    with pytest.raises(Refusal):
        await hand(session, frame)
    last = decode_frame(session.frames_to_send()[-1])
    assert isinstance(last, Refused)
    assert session.audit is not None
    assert a.hub.sessions == ()


async def test_a_link_begins_with_hello_by_the_one_who_was_let_in() -> None:
    """Nothing is answered before the peer has said who it is, and it must be the one whose ticket was accepted."""
    world = World()
    a, _ = await _two(world)
    for frame in (Ping(), Hello(node="node-c", epoch="e", version="1.0"), Hello(node="node-b", epoch="e", version="2")):
        session = a.hub.open("node-b", on_wake=lambda: None)
        with pytest.raises(Refusal):
            await hand(session, encode_frame(frame))


async def test_a_silent_link_is_asked_and_then_dropped() -> None:
    """A ping every ten seconds; after thirty without a word the link is over."""
    world = World()
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await settle(pipe)
    session = pipe.left.session
    for _ in range(2):
        world.clock.advance(10_000)
        await session.tick()
        assert [type(decode_frame(frame)) for frame in session.frames_to_send()] == [Ping]
    (pong,) = await hand(pipe.right.session, encode_frame(Ping()))
    assert isinstance(decode_frame(pong), Pong)
    await hand(session, pong)
    world.clock.advance(29_999)
    await session.tick()
    assert session.refusal is None
    world.clock.advance(1)
    await session.tick()
    assert session.refusal is not None


@pytest.mark.req("PIPE-5")
async def test_a_chunk_that_is_not_here_is_said_to_be_missing(world: World) -> None:
    """A gateway that does not have a payload says so, and the link goes on."""
    a, b = await _two(world)
    pipe = Pipe(a, b)
    await settle(pipe)
    (answer,) = await hand(pipe.left.session, encode_frame(GetChunk(sha256="0" * 64, part=0)))
    assert decode_frame(answer) == Chunk(sha256="0" * 64, part=0)


def _events(frames: list[bytes]) -> list[Events]:
    return [frame for frame in map(decode_frame, frames) if isinstance(frame, Events)]
