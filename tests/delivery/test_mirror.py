"""A backbone gateway between two that never meet: it relays, and cannot alter, reorder or hide."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.delivery.frames import Events, decode_frame, encode_frame
from agentpost.delivery.heads import sign_head
from agentpost.delivery.mirror import MirrorKeeper
from agentpost.delivery.reader import Verdict
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.envelope import resend_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import decode_head
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import MirrorBatch
from agentpost.testing import MemoryStore
from tests.delivery.linking import Meddle, Node, Pipe, World, a_batch, settle


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path if request.param == "sqlite" else None)
    yield world
    await world.close()


async def _three(world: World) -> tuple[Node, Node, Node]:
    return (
        await world.add("node-a", "ada"),
        await world.add("seed", "sam", tier=NodeTier.BACKBONE),
        await world.add("node-b", "bob"),
    )


@pytest.mark.req("PIPE-9", "ACK-3")
async def test_two_laptops_that_never_meet_talk_through_a_seed(world: World) -> None:
    """Mail, `accepted` and `processed` go through the seed, whether both are connected or one after the other."""
    a, seed, b = await _three(world)
    event_id = await a.send("bob")
    pipe = Pipe(a, seed)
    await settle(pipe)
    pipe.cut()
    assert seed.inbox("sam") == []
    pipe = Pipe(b, seed)
    await settle(pipe)
    assert b.inbox("bob") == [event_id]
    await b.process("bob")
    await settle(pipe)
    pipe.cut()
    assert a.states(event_id) == {"bob": DeliveryState.EMITTED}
    await settle(Pipe(a, seed))
    assert a.states(event_id) == {"bob": DeliveryState.PROCESSED}
    assert a.incidents() == b.incidents() == seed.incidents() == []


@pytest.mark.req("PIPE-9")
async def test_mail_flows_while_all_are_connected(world: World) -> None:
    """A mirror that grows wakes the readers that it grew for."""
    a, seed, b = await _three(world)
    pipes = Pipe(a, seed), Pipe(b, seed)
    await settle(*pipes)
    sent = [await a.send("bob", "sam") for _ in range(3)]
    await settle(*pipes)
    assert b.inbox("bob") == seed.inbox("sam") == sent
    assert a.states(sent[0]) == {"bob": DeliveryState.ACCEPTED, "sam": DeliveryState.ACCEPTED}


@pytest.mark.req("PIPE-9", "CUR-1")
async def test_a_direct_link_is_better_than_a_mirror_and_nothing_comes_twice(world: World) -> None:
    """When a link comes or goes, reading goes on elsewhere from the cursor."""
    a, seed, b = await _three(world)
    through_seed = Pipe(a, seed), Pipe(b, seed)
    await settle(*through_seed)
    sent = [await a.send("bob")]
    await settle(*through_seed)
    direct = Pipe(b, a)
    await settle(direct, *through_seed)
    sent.append(await a.send("bob"))
    await settle(direct)
    assert b.inbox("bob") == sent
    direct.cut()
    sent.append(await a.send("bob"))
    await settle(*through_seed)
    assert b.inbox("bob") == sent
    assert b.incidents() == []


@pytest.mark.req("PIPE-9")
async def test_a_mirror_can_be_read_from_another_mirror(world: World) -> None:
    """Two laptops at two seeds: the second seed gets the outbox from the first."""
    a, seed, b = await _three(world)
    other = await world.add("other-seed", tier=NodeTier.BACKBONE)
    pipes = Pipe(a, seed), Pipe(seed, other), Pipe(b, other)
    await settle(*pipes)
    event_id = await a.send("bob")
    await settle(*pipes)
    assert b.inbox("bob") == [event_id]
    assert a.states(event_id) == {"bob": DeliveryState.ACCEPTED}


def _altered(batch: Events) -> Events:
    event = decode_event(batch.events[0])
    return replace(batch, events=[encode_event(replace(event, source_agent_id="eve")), *batch.events[1:]])


def _reordered(batch: Events) -> Events:
    return replace(batch, events=batch.events[::-1])


def _hidden(batch: Events) -> Events:
    return replace(batch, events=batch.events[:1])


def _hidden_to_the_end(batch: Events) -> Events:
    return replace(batch, events=[])


def _repeated(batch: Events) -> Events:
    return replace(batch, events=[*batch.events, batch.events[-1]])


@pytest.mark.req("PIPE-9")
@pytest.mark.parametrize("meddle", [_altered, _reordered, _hidden, _hidden_to_the_end, _repeated])
async def test_a_mirror_that_meddles_is_caught(world: World, meddle: Callable[[Events], Events]) -> None:
    """What the seed hands over is not what the owner signed: nothing is accepted, and the session with it ends."""
    a, seed, b = await _three(world)
    for number in range(2):
        await a.send("bob", text=str(number))
    await settle(Pipe(a, seed))
    pipe = Pipe(b, seed)

    def meddling(frame: bytes) -> list[bytes]:
        read = decode_frame(frame)
        is_of_a = isinstance(read, Events) and read.source == "node-a"
        return [encode_frame(meddle(read))] if is_of_a and isinstance(read, Events) else [frame]

    pipe.left.meddle = meddling
    await settle(pipe)
    assert pipe.left.refusal is not None
    assert b.inbox("bob") == []
    assert b.store.cursor("node-a") is None
    assert b.incidents() == ["stream_broken"]
    # On the next link the seed is not asked for this outbox for a while; its own goes on.
    pipe = Pipe(b, seed)
    await seed.send("bob", sender="sam")
    await settle(pipe)
    assert pipe.left.refusal is None
    assert len(b.inbox("bob")) == 1
    world.clock.advance(300_000)
    await b.hub.tick()
    await settle(pipe)
    assert len(b.inbox("bob")) == 3


@pytest.mark.req("PIPE-9")
async def test_an_event_that_was_hidden_shows_with_the_next_one(world: World) -> None:
    """A seed that holds back everything is only slow; one that goes on after a hole is caught."""
    a, seed, b = await _three(world)
    from_a, to_b = Pipe(a, seed), Pipe(b, seed)
    await settle(from_a, to_b)
    held: list[bytes] = []

    def hold_first(frame: bytes) -> list[bytes]:
        read = decode_frame(frame)
        if not (isinstance(read, Events) and read.source == "node-a"):
            return [frame]
        if not held:
            held.append(frame)
            return []
        # The seed claims that what it gives now is all there is since the reader's cursor.
        return [encode_frame(replace(read, after_seq=0))]

    to_b.left.meddle = hold_first
    await a.send("bob")
    await settle(from_a, to_b)
    assert b.incidents() == []
    await a.send("bob")
    await settle(from_a, to_b)
    assert b.inbox("bob") == []
    assert b.incidents() == ["stream_broken"]


@pytest.mark.req("ENV-8", "PIPE-9")
async def test_a_mirror_keeps_only_what_its_owner_signed(world: World) -> None:
    """Foreign events, heads by others, and heads without the marks of the readers never get into a mirror."""
    a, seed, _ = await _three(world)
    await a.send("bob")
    (event,) = (decode_event(stored.raw) for stored in a.store.read_outbox(0).events)
    keeper = seed.hub.reader("node-a", is_whole=True)
    good = replace(a_batch(world, "node-a", "node-b", [event]), whole=True)
    for bad in (
        a_batch(world, "node-a", "node-b", [event], signer="seed"),
        a_batch(world, "node-a", "node-c", [event]),
        a_batch(world, "node-a", "node-b", [replace(event, source_node_id="node-b")]),
        a_batch(world, "node-a", "node-b", [replace(event, seq=7)]),
        replace(good, events=[encode_event(replace(event, source_agent_id="eve"))]),
        replace(good, events=[]),
        replace(good, before_chain=bytes(32), events=[b"x"]),
    ):
        with pytest.raises(Refusal):
            await keeper.take(replace(bad, whole=True), is_direct=True)
        assert keeper.position() is None
    assert seed.incidents() == ["mirror_broken"]
    assert await keeper.take(good, is_direct=True) is Verdict.TAKEN
    assert await keeper.take(good, is_direct=True) is Verdict.KNOWN


@pytest.mark.req("CUR-6", "PIPE-9")
async def test_a_mirror_follows_its_source_into_a_new_epoch(world: World) -> None:
    """What the old life of the source left in the mirror is dropped; readers behind it follow."""
    _, seed, b = await _three(world)
    event_ids = []
    for epoch in ("epoch_1", "epoch_2"):
        source = _reborn(world, epoch)
        event_ids.append(await source.send("bob", text=epoch))
        pipes = Pipe(source, seed), Pipe(b, seed)
        await settle(*pipes)
        for pipe in pipes:
            pipe.cut()
    position = seed.store.mirror_position("node-a")
    assert position is not None
    assert position.epoch == "epoch_2"
    assert b.inbox("bob") == event_ids
    assert b.incidents() == seed.incidents() == ["epoch_changed"]


def _reborn(world: World, epoch: str) -> Node:
    node = Node(world, "node-a", MemoryStore(node_id="node-a", epoch=epoch), NodeTier.EDGE)
    # Another life makes other ids.
    world.nodes[f"node-a {epoch}"] = node
    return node


@pytest.mark.req("PIPE-7", "PIPE-9")
async def test_a_mirror_begins_with_what_its_source_has_left(world: World) -> None:
    """A seed that comes late, or was away while its source pruned, mirrors what is there, and readers get on."""
    a, seed, b = await _three(world)
    sent = [await a.send("bob") for _ in range(3)]
    direct = Pipe(a, b)
    await settle(direct)
    world.clock.advance(10_000)
    await direct.right.session.tick()
    await settle(direct)
    direct.cut()
    await a.store.compact(a.store.watermarks(now_ms=world.clock.now_ms(), retention_events=1))
    assert a.store.read_outbox(0).floor_seq == 2
    pipes = Pipe(a, seed), Pipe(b, seed)
    await settle(*pipes)
    sent.append(await a.send("bob"))
    await settle(*pipes)
    assert b.inbox("bob") == sent
    position = seed.store.mirror_position("node-a")
    assert position is not None
    assert position.floor_seq == 2
    assert b.incidents() == seed.incidents() == []


async def test_the_store_refuses_a_mirror_with_a_hole(world: World) -> None:
    """Whatever the links do, a mirror never has a hole."""
    _, seed, _ = await _three(world)
    batch = MirrorBatch(
        source_node_id="node-a",
        epoch="epoch_1",
        after_seq=0,
        through_seq=1,
        events=(),
        head=b"",
        signature=b"",
        at_ms=0,
    )
    with pytest.raises(Refusal) as refused:
        await seed.store.keep_mirror(batch)
    assert refused.value.code is Code.SEQUENCE_GAP


@pytest.mark.req("PIPE-9")
async def test_the_first_event_of_a_mirror_that_begins_late_is_checked_too(world: World) -> None:
    """What was before is gone, and still nobody but its owner can say what the first event is that is left."""
    a, seed, _ = await _three(world)
    await a.send("bob")
    await a.send("bob")
    first, second = a.store.read_outbox(0).events
    keeper = seed.hub.reader("node-a", is_whole=True)
    batch = a_batch(world, "node-a", "node-b", [second.raw], after_seq=1, chain=first.chain)
    good = replace(batch, whole=True, before_chain=first.chain)
    altered = encode_event(replace(decode_event(second.raw), source_agent_id="eve"))
    with pytest.raises(Refusal) as refused:
        await keeper.take(replace(good, events=[altered]), is_direct=False)
    assert refused.value.code is Code.CONFLICT
    assert await keeper.take(good, is_direct=False) is Verdict.TAKEN


def _false_marks(world: World, source: str) -> Meddle:
    """The source signs heads that say something else of its readers' streams than what it wrote to them."""

    def lie(frame: bytes) -> list[bytes]:
        read = decode_frame(frame)
        if not (isinstance(read, Events) and read.source == source):
            return [frame]
        head = decode_head(read.head)
        streams = {node_id: replace(mark, chain=bytes(32)) for node_id, mark in head.streams.items()}
        raw, signature = sign_head(replace(head, streams=streams), world.room.identity(source).signing)
        return [encode_frame(replace(read, head=raw, signature=signature))]

    return lie


@pytest.mark.req("PIPE-9")
async def test_a_seed_that_was_restarted_does_not_keep_a_lie_of_the_source(world: World) -> None:
    """It knows from the heads that it has how the streams of its readers go on, so that nobody blames the seed."""
    a, seed, b = await _three(world)
    first = await a.send("bob")
    pipe = Pipe(a, seed)
    await settle(pipe)
    pipe.cut()
    seed.restart()
    from_a = Pipe(a, seed)
    from_a.right.meddle = _false_marks(world, "node-a")
    await a.send("bob")
    await settle(from_a)
    to_b = Pipe(b, seed)
    await settle(to_b)
    assert b.incidents() == []
    assert to_b.left.refusal is None
    assert b.inbox("bob") == [first]
    assert from_a.right.refusal is not None
    # It reads the outbox for itself as well.
    assert seed.incidents() == ["stream_broken"]


@pytest.mark.req("PIPE-9", "CUR-3")
async def test_a_seed_hands_on_nothing_that_its_reader_would_refuse(world: World) -> None:
    """Where the head that would show a lie of the source is pruned, the reader hears of a gap, and the link stays."""
    a, seed, b = await _three(world)
    sent = [await a.send("bob")]
    pipe = Pipe(a, seed)
    await settle(pipe)
    pipe.cut()
    seed.restart()
    to_b = Pipe(b, seed)
    await settle(to_b)
    await seed.store.prune_mirror("node-a", through_seq=1)
    from_a = Pipe(a, seed)
    from_a.right.meddle = _false_marks(world, "node-a")
    await a.send("bob")
    await settle(from_a, to_b)
    assert b.incidents() == []
    assert to_b.left.refusal is None
    assert b.inbox("bob") == sent
    sent.append(await seed.send("bob", sender="sam"))
    await settle(to_b)
    assert b.inbox("bob") == sent


@pytest.mark.req("PIPE-9")
async def test_readers_that_do_not_exist_fill_no_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source can name others with every event. The seed forgets them, and still tells a lie from the truth."""
    monkeypatch.setattr("agentpost.delivery.mirror._MOST_MARKS", 3)
    a, seed, b = await _three(world)
    from_a = Pipe(a, seed)
    sent = [await a.send("bob")]
    for number in range(10):
        world.room.add_agent("nobody", f"nowhere-{number}")
        await a.send("nobody")
        await settle(from_a)
    keeper = seed.hub.reader("node-a", is_whole=True)
    assert isinstance(keeper, MirrorKeeper)
    assert len(keeper._marks) <= 3
    sent.append(await a.send("bob"))
    await settle(from_a)
    assert (from_a.right.refusal, seed.incidents()) == (None, [])
    for number in range(10, 13):
        world.room.add_agent("nobody", f"nowhere-{number}")
        await a.send("nobody")
    await settle(from_a)
    from_a.right.meddle = _false_marks(world, "node-a")
    await a.send("bob")
    await settle(from_a)
    assert seed.incidents() == ["stream_broken"]
    await settle(Pipe(b, seed))
    assert b.inbox("bob") == sent
    # Somebody who joins under such a name has its mail.
    late = await world.add("nowhere-4", "nobody")
    await settle(Pipe(late, seed))
    assert len(late.inbox("nobody")) == 1


async def _left_behind(world: World) -> tuple[Node, Node, Node]:
    """A seed, another that was cut off while the first one pruned, and the reader bob, who has all but the last."""
    a, seed, b = await _three(world)
    other = await world.add("other-seed", tier=NodeTier.BACKBONE)
    between, from_a = Pipe(seed, other), Pipe(a, seed)
    await a.send("bob")
    await settle(from_a, between)
    between.cut()
    await a.send("sam")
    await settle(from_a)
    await seed.store.prune_mirror("node-a", through_seq=2)
    await a.send("bob")
    await settle(from_a)
    from_a.cut()
    return seed, other, b


@pytest.mark.req("PIPE-9")
async def test_a_seed_that_was_left_behind_begins_anew_at_another(world: World) -> None:
    """Nobody has what comes next, and nobody waits for what it has: it goes on with what the other seed still has."""
    seed, other, b = await _left_behind(world)
    early = Pipe(b, other)
    await settle(early)
    assert len(b.inbox("bob")) == 1
    await settle(Pipe(other, seed), early)
    await b.hub.tick()
    await settle(early)
    position = other.store.mirror_position("node-a")
    assert position is not None
    assert (position.floor_seq, position.last_seq) == (2, 3)
    assert len(b.inbox("bob")) == 2
    assert b.incidents() == other.incidents() == []


@pytest.mark.req("PIPE-9")
async def test_a_seed_keeps_what_a_reader_waits_for_even_if_it_was_left_behind(world: World) -> None:
    """Whatever another seed says: it begins anew only when the reader has come for its mail."""
    seed, other, b = await _left_behind(world)
    between = Pipe(other, seed)
    await settle(between)
    to_b = Pipe(b, other)
    await settle(between, to_b)
    assert len(b.inbox("bob")) == 1
    world.clock.advance(300_000)
    await other.hub.tick()
    await settle(between, to_b)
    assert len(b.inbox("bob")) == 2
    assert b.incidents() == other.incidents() == []


@pytest.mark.req("PIPE-9")
async def test_a_seed_that_was_left_behind_holds_up_nobody_who_has_another(world: World) -> None:
    """It waits for a reader that never comes; one that is linked to a seed with more reads from that one."""
    a, seed, b = await _three(world)
    other = await world.add("other-seed", tier=NodeTier.BACKBONE)
    await world.add("node-n", "nick")
    between, from_a = Pipe(seed, other), Pipe(a, seed)
    await a.send("nick")
    await settle(from_a, between)
    between.cut()
    await a.send("sam")
    await settle(from_a)
    await seed.store.prune_mirror("node-a", through_seq=2)
    mail = await a.send("bob")
    await settle(from_a)
    from_a.cut()
    await settle(to_other := Pipe(b, other))
    pipes = Pipe(other, seed), to_other, Pipe(b, seed)
    await settle(*pipes)
    await _wait(world, 610, *pipes)
    assert b.inbox("bob") == [mail]
    position = other.store.mirror_position("node-a")
    assert position is not None
    assert position.last_seq == 1, "node-n may only be asleep"
    assert b.incidents() == other.incidents() == seed.incidents() == []


@pytest.mark.req("PIPE-9", "ROOM-6")
async def test_a_seed_that_was_left_behind_does_not_wait_for_who_was_revoked(world: World) -> None:
    """A reader that never comes back holds it up until an operator revokes it; then it begins anew by itself."""
    seed, other, b = await _left_behind(world)
    between = Pipe(other, seed)
    await settle(between)

    async def look_again() -> tuple[int, int]:
        world.clock.advance(300_000)
        await other.hub.tick()
        await settle(between)
        position = other.store.mirror_position("node-a")
        assert position is not None
        return position.floor_seq, position.last_seq

    assert await look_again() == (0, 1), "bob's gateway may only be asleep"
    world.room.revoke(b.node_id)
    assert await look_again() == (2, 3)


@pytest.mark.req("PIPE-9")
async def test_a_seed_does_not_blame_another_for_what_a_source_signed(world: World) -> None:
    """One that has seen less of the outbox cannot tell that its source lies. The link between the two stays."""
    a, seed, _ = await _three(world)
    other = await world.add("other-seed", "otto", tier=NodeTier.BACKBONE)
    await a.send("bob")
    pipes = Pipe(a, other), Pipe(a, seed)
    await settle(*pipes)
    for pipe in pipes:
        pipe.cut()
    await seed.store.prune_mirror("node-a", through_seq=1)
    seed.restart()
    from_a = Pipe(a, seed)
    from_a.right.meddle = _false_marks(world, "node-a")
    await a.send("bob")
    await settle(from_a)
    between = Pipe(other, seed)
    await settle(between)
    assert between.left.refusal is None
    assert other.incidents() == ["mirror_broken"]
    event_id = await seed.send("otto", sender="sam")
    await settle(between)
    assert other.inbox("otto") == [event_id]


async def _wait(world: World, seconds: int, *pipes: Pipe) -> None:
    for _ in range(seconds // 10):
        world.clock.advance(10_000)
        for pipe in pipes:
            for end in pipe.ends:
                await end.session.tick()
        await settle(*pipes)


@pytest.mark.req("CUR-4", "PIPE-9")
async def test_a_reader_that_has_only_a_seed_gets_beyond_what_nobody_has_any_more(world: World) -> None:
    """Seed and reader were away while the source pruned: the reader tells of the gap, and its mail goes on."""
    a, seed, b = await _three(world)
    c = await world.add("node-c", "carl")
    answered = await b.send("ada", sender="bob")
    from_a, to_b = Pipe(a, seed), Pipe(b, seed)
    await settle(from_a, to_b)
    to_b.cut()
    # Bob's gateway misses this answer, and the seed that has it loses it.
    await a.process("ada")
    await settle(from_a)
    from_a.cut()
    for _ in range(3):
        await a.send("carl")
    await settle(direct := Pipe(a, c))
    await _wait(world, 310, direct)
    await a.store.compact(a.store.watermarks(now_ms=world.clock.now_ms(), retention_events=0))
    assert a.store.read_outbox(0).floor_seq == 5
    mail = await a.send("bob")
    await settle(from_a := Pipe(a, seed))
    await settle(to_b := Pipe(b, seed))
    assert b.inbox("bob") == []
    await _wait(world, 60, from_a, to_b)
    assert b.incidents() == ["gap"]
    assert [entry.action for entry in b.store.audit_log()] == ["cursor.tombstone"]
    # What could not be checked was not taken: it is sent again like all mail that nobody accepts.
    stored = a.store.find_event(mail)
    assert stored is not None
    await a.store.append([resend_of(decode_event(stored.raw))])
    a.wakeups.outbox_grew()
    later = await a.send("bob")
    await settle(from_a, to_b)
    assert b.inbox("bob") == [mail, later]
    assert (b.hub.sessions[0].refusal, seed.incidents()) == (None, [])
    assert b.states(answered) == {"ada": DeliveryState.ACCEPTED}
