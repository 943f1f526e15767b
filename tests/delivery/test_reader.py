"""What a reader takes, and what it refuses: forged events, ACKs and heads, other epochs, gaps."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from agentpost.delivery.frames import Credit, Events, Hello, Ping, Pong, Refused, Subscribe, decode_frame, encode_frame
from agentpost.delivery.link import LinkSession
from agentpost.delivery.policy import DeliveryPolicy, GapPolicy
from agentpost.delivery.reader import Verdict
from agentpost.protocol.codec import encode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import chain_over
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import AckType
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import CHAIN_START, Acceptance, Accepted
from agentpost.testing import MemoryStore, a_message, a_reply, an_ack
from tests.delivery.linking import Node, Pipe, World, a_batch, hand, settle


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.add("node-a", "ada")
    await world.add("node-b", "bob")
    world.room.add_node("node-m", tier=NodeTier.BACKBONE)
    yield world
    await world.close()


async def _take(world: World, batch: Events, *, is_direct: bool = True, at: str = "node-b") -> Verdict:
    return await world.nodes[at].hub.reader(batch.source, is_whole=False).take(batch, is_direct=is_direct)


async def _session(node: Node, peer: str) -> LinkSession:
    session = node.hub.open(peer, on_wake=lambda: None)
    await hand(session, encode_frame(Hello(node=peer, epoch="epoch_1", version="1.0")))
    return session


@pytest.mark.req("ENV-8")
async def test_an_event_of_another_source_is_refused_and_reported(world: World) -> None:
    """An outbox that has somebody else's event in it is refused as it is, and an incident is raised."""
    b = world.nodes["node-b"]
    events = [a_message(1, seq=1), a_message(2, seq=2, source_node_id="node-m")]
    with pytest.raises(Refusal) as refused:
        await _take(world, a_batch(world, "node-a", "node-b", events))
    assert refused.value.code is Code.FOREIGN_SOURCE
    assert b.inbox("bob") == []
    assert b.store.cursor("node-a") is None
    assert b.incidents() == ["foreign_source"]


@pytest.mark.req("PIPE-9")
async def test_a_head_that_the_source_did_not_sign_is_refused(world: World) -> None:
    """Nobody but the owner of an outbox can say where it ends, and nothing signed for one end counts for another."""
    good = a_batch(world, "node-a", "node-b", [a_message(1, seq=1)])
    longer = a_batch(world, "node-a", "node-b", [a_message(1, seq=1), a_message(2, seq=2)])
    for bad in (
        a_batch(world, "node-a", "node-b", [a_message(1, seq=1)], signer="node-m"),
        a_batch(world, "node-a", "node-m", [a_message(1, seq=1)]),
        replace(good, signature=bytes(64)),
        replace(good, head=longer.head, signature=longer.signature),
        replace(good, epoch="epoch_2"),
        replace(good, events=[encode_event(a_message(1, seq=1, body="altered"))]),
        replace(longer, events=longer.events[::-1]),
        replace(longer, events=longer.events[:1]),
        replace(longer, events=[*longer.events, *good.events]),
        replace(good, head=b"\xc1"),
    ):
        with pytest.raises(Refusal):
            await _take(world, bad)
        assert world.nodes["node-b"].store.cursor("node-a") is None
    assert world.nodes["node-b"].incidents() == ["stream_broken"]
    assert await _take(world, longer) is Verdict.TAKEN


@pytest.mark.req("ENV-6")
async def test_what_cannot_be_read_goes_to_quarantine_and_reading_goes_on(world: World) -> None:
    """An event of an unknown kind, and bytes that are no event at all, do not stop those that follow."""
    b = world.nodes["node-b"]
    strange = encode_event(a_message(2, seq=2)).replace(b"message", b"massage", 1)
    two_at_once = encode_event(a_message(3, seq=3)) * 2
    events = [a_message(1, seq=1), strange, two_at_once, b"", a_message(5, seq=5)]
    assert await _take(world, a_batch(world, "node-a", "node-b", events)) is Verdict.TAKEN
    assert b.inbox("bob") == [a_message(1).event_id, a_message(5).event_id]
    assert {entry.code for entry in b.store.quarantined()} == {"unknown_kind", "malformed"}
    assert len(b.store.quarantined()) == 3


@pytest.mark.req("ACK-1", "PIPE-2")
async def test_an_ack_counts_only_from_the_one_who_was_asked(world: World) -> None:
    """An ACK in the name of another node, or of somebody else's agent, is reported and changes nothing."""
    a = world.nodes["node-a"]
    event_id = await a.send("bob")
    sent = replace(a_message(1), event_id=event_id)
    in_anothers_name = an_ack(sent, by_node_id="node-b", seq=1)
    of_anothers_agent = an_ack(sent, AckType.PROCESSED, by_node_id="node-m", seq=2)
    replied = a_reply(sent, by_node_id="node-m", seq=3)
    forged = [replace(in_anothers_name, source_node_id="node-m"), of_anothers_agent, replied]
    assert await _take(world, a_batch(world, "node-m", "node-a", forged), at="node-a") is Verdict.TAKEN
    assert a.states(event_id) == {"bob": DeliveryState.EMITTED}
    assert a.incidents() == ["forged_ack"]
    good = a_batch(world, "node-b", "node-a", [an_ack(sent, seq=1), a_reply(sent, seq=2)])
    assert await _take(world, good, at="node-a") is Verdict.TAKEN
    assert a.states(event_id) == {"bob": DeliveryState.REPLIED}


@pytest.mark.req("ACK-4")
async def test_an_accepted_delivery_has_until_the_sla_is_over(world: World) -> None:
    """At `accepted` the timer of the delivery is set anew: to when its outcome has to be there."""
    a = world.nodes["node-a"]
    event_id = await a.send("bob")
    ack = an_ack(replace(a_message(1), event_id=event_id), seq=1)
    await _take(world, a_batch(world, "node-b", "node-a", [ack]), at="node-a")
    (delivery,) = a.store.deliveries_of(event_id)
    assert delivery.due_at_ms == world.clock.now_ms() + 86_400_000 + 120_000


@pytest.mark.req("RTY-3")
async def test_a_resend_of_what_was_accepted_is_not_accepted_again(world: World) -> None:
    """The same event at a new place moves the cursor; the agent has it once, and the ACK stands once."""
    b = world.nodes["node-b"]
    first = a_batch(world, "node-a", "node-b", [a_message(1, seq=1)])
    again = a_batch(
        world,
        "node-a",
        "node-b",
        [a_message(1, seq=2, attempt=2)],
        after_seq=1,
        chain=chain_over(bytes(32), first.events),
    )
    assert [await _take(world, batch) for batch in (first, again)] == [Verdict.TAKEN, Verdict.TAKEN]
    assert b.inbox("bob") == [a_message(1).event_id]
    assert b.store.head().seq == 1
    cursor = b.store.cursor("node-a")
    assert cursor is not None
    assert cursor.last_seq == 2


@pytest.mark.req("CUR-6")
async def test_a_source_with_another_epoch_is_reported_and_read_from_its_start(world: World) -> None:
    """What was taken before is known by its id; what is new comes once; the incident says what happened."""
    b = world.nodes["node-b"]
    await _take(world, a_batch(world, "node-a", "node-b", [a_message(1, seq=1), a_message(2, seq=2)]))
    restored = a_batch(world, "node-a", "node-b", [a_message(1, seq=1), a_message(3, seq=2)], epoch="epoch_2")
    assert await _take(world, restored) is Verdict.TAKEN
    assert b.inbox("bob") == [a_message(1).event_id, a_message(2).event_id, a_message(3).event_id]
    assert b.incidents() == ["epoch_changed"]
    # A mirror that has not heard of it yet does not turn the time back.
    old = a_batch(world, "node-a", "node-b", [a_message(1, seq=1)])
    assert await _take(world, old, is_direct=False) is Verdict.STALE


@pytest.mark.req("CUR-6")
async def test_a_source_that_ends_before_what_was_read_is_reported(world: World) -> None:
    """An old disk without a new epoch is noticed at the first subscription; nothing of it is taken."""
    a, b = world.nodes["node-a"], world.nodes["node-b"]
    for _ in range(3):
        await a.send("bob")
    await settle(pipe := Pipe(a, b))
    pipe.cut()
    before = b.inbox("bob")
    world.nodes["node-a"] = old = Node(world, "node-a", MemoryStore(node_id="node-a", epoch="epoch_1"), NodeTier.EDGE)
    await old.send("bob")
    await settle(pipe := Pipe(old, b))
    assert b.inbox("bob") == before
    assert b.incidents() == ["source_regressed"]
    assert old.regressed == [(3, "node-b")]
    assert pipe.left.refusal is not None
    assert pipe.left.refusal.code is Code.EPOCH_MISMATCH


@pytest.mark.req("CUR-6")
async def test_an_old_database_that_has_grown_is_noticed_all_the_same(world: World) -> None:
    """It may have said more since than was lost: what it signed at that place before is not what stands there now."""
    a, b = world.nodes["node-a"], world.nodes["node-b"]
    for _ in range(3):
        await a.send("bob")
    await settle(pipe := Pipe(a, b))
    pipe.cut()
    world.nodes["node-a"] = old = Node(world, "node-a", MemoryStore(node_id="node-a", epoch="epoch_1"), NodeTier.EDGE)
    for _ in range(5):
        await old.send("bob", text="of another life")
    before = b.inbox("bob")
    await settle(pipe := Pipe(old, b))
    assert old.regressed == [(3, "node-b")]
    assert b.inbox("bob") == before
    assert b.incidents() == ["source_regressed"]
    # In a new epoch all of it is read, and the case is closed.
    anew = Node(world, "node-a", MemoryStore(node_id="node-a", epoch="epoch_2"), NodeTier.EDGE)
    said = [await anew.send("bob", text="of a third life") for _ in range(2)]
    await settle(Pipe(anew, b))
    assert b.inbox("bob") == [*before, *said]
    assert b.incidents() == ["epoch_changed"]


@pytest.mark.req("CUR-3")
async def test_a_gap_that_nobody_closes_is_reported_after_thirty_seconds(world: World) -> None:
    """The cursor stands still at a gap; when the time is over, somebody is told."""
    b = world.nodes["node-b"]
    session = await _session(b, "node-a")
    session.frames_to_send()
    batch = a_batch(world, "node-a", "node-b", [a_message(5, seq=5)], after_seq=4)
    asked = await hand(session, encode_frame(batch))
    assert [type(decode_frame(frame)) for frame in asked] == [Subscribe, Credit]
    # It is asked for once, however many frames come after the gap.
    assert await hand(session, encode_frame(batch)) == []
    world.clock.advance(29_999)
    await session.tick()
    assert b.incidents() == []
    world.clock.advance(1)
    await b.hub.tick()
    assert b.incidents() == ["gap"]
    assert b.store.cursor("node-a") is None


@pytest.mark.req("CUR-4")
async def test_what_the_source_has_pruned_is_passed_over_after_the_incident(world: World) -> None:
    """When nobody has what is missing, the reader waits, tells somebody, and goes on with what the source has."""
    a, b = world.nodes["node-a"], world.nodes["node-b"]
    session = await _session(b, "node-a")
    refused = Refused(code="sequence_gap", message="pruned", source="node-a")
    await hand(session, encode_frame(refused))
    session.frames_to_send()
    world.clock.advance(20_000)
    await session.tick()
    assert Subscribe not in [type(decode_frame(frame)) for frame in session.frames_to_send()]
    world.clock.advance(10_000)
    await b.hub.tick()
    assert b.incidents() == ["gap"]
    (wish, _) = [decode_frame(frame) for frame in session.frames_to_send()]
    assert isinstance(wish, Subscribe)
    assert wish.skip
    for _ in range(3):
        await a.send("bob")
    source = await _session(a, "node-b")
    await hand(source, encode_frame(replace(wish, after_chain=b"\1" * 32)))
    (answer,) = await hand(source, encode_frame(Credit(source="node-a", through_seq=0, bytes=10_000)))
    await hand(session, answer)
    assert len(b.inbox("bob")) == 3
    (tombstone,) = [entry for entry in b.store.audit_log() if entry.action == "cursor.tombstone"]
    assert (tombstone.subject, tombstone.detail) == ("node-a", {"afterSeq": 0, "beforeSeq": 1})


@pytest.mark.req("CUR-4")
async def test_a_gateway_that_is_told_to_wait_waits(world: World) -> None:
    """With the policy `wait` the incident is all that happens: the cursor stands until an operator decides."""
    b = world.nodes["node-b"]
    b.restart(DeliveryPolicy(gap_policy=GapPolicy.WAIT, gap_timeout_seconds=5))
    session = await _session(b, "node-a")
    await hand(session, encode_frame(Refused(code="sequence_gap", message="pruned", source="node-a")))
    session.frames_to_send()
    world.clock.advance(5_000)
    await b.hub.tick()
    assert b.incidents() == ["gap"]
    assert Subscribe not in [type(decode_frame(frame)) for frame in session.frames_to_send()]


async def test_a_reader_whose_chain_does_not_fit_is_told_so(world: World) -> None:
    """The source itself sees that it has pruned what the reader misses, and says so instead of sending."""
    a = world.nodes["node-a"]
    await a.send("bob")
    source = await _session(a, "node-b")
    wish = Subscribe(source="node-a", epoch="epoch_1", after_seq=0, after_chain=b"\1" * 32)
    await hand(source, encode_frame(wish))
    (answer,) = await hand(source, encode_frame(Credit(source="node-a", through_seq=0, bytes=10_000)))
    refused = decode_frame(answer)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.source) == ("sequence_gap", "node-a")


async def test_events_wait_for_the_disk_in_a_lane_and_hold_up_nothing_else(world: World) -> None:
    """An edge hands a batch over and goes on at once; the batch is taken all the same, and room for more is given."""
    b = world.nodes["node-b"]
    session = await _session(b, "node-a")
    session.frames_to_send()
    await session.take(encode_frame(a_batch(world, "node-a", "node-b", [a_message(1, seq=1)])))
    await session.take(encode_frame(Ping()))
    assert b.inbox("bob") == []
    await session.drained()
    assert b.inbox("bob") == [a_message(1).event_id]
    answers = {type(decode_frame(frame)) for frame in session.frames_to_send()}
    assert Pong in answers
    assert answers <= {Credit, Pong}


async def test_a_peer_that_sends_more_than_it_was_asked_for_is_cut_off(world: World) -> None:
    """What waits in a lane is bounded by the credit."""
    b = world.nodes["node-b"]
    session = await _session(b, "node-a")
    batch = a_batch(world, "node-a", "node-b", [a_message(1, seq=1, body="x" * 900_000)])
    frame = encode_frame(batch)

    async def flood() -> None:
        for _ in range(20):
            await session.take(frame)

    with pytest.raises(Refusal) as refused:
        await flood()
    assert refused.value.code is Code.RATE_LIMITED
    assert session.is_closed


@pytest.mark.req("PIPE-1")
async def test_a_lane_that_never_runs_empty_takes_any_amount(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the disk leaves room for more: a peer that keeps to its credit can send without an end."""
    b = world.nodes["node-b"]
    session = await _session(b, "node-a")
    accept, gate = b.store.accept, asyncio.Semaphore(0)

    async def accept_when_told(batch: Acceptance) -> Accepted:
        await gate.acquire()
        return await accept(batch)

    monkeypatch.setattr(b.store, "accept", accept_when_told)
    chain = CHAIN_START
    for seq in range(1, 21):
        batch = a_batch(
            world, "node-a", "node-b", [a_message(seq, seq=seq, body="x" * 900_000)], after_seq=seq - 1, chain=chain
        )
        chain = chain_over(chain, batch.events)
        # The next one is here before the one before is on the disk.
        await session.take(encode_frame(batch))
        if seq > 1:
            gate.release()
            async with asyncio.timeout(30):
                while len(b.inbox("bob")) < seq - 1:  # noqa: ASYNC110 - the store has no event for this
                    await asyncio.sleep(0)
    gate.release()
    await session.drained()
    assert session.refusal is None
    assert len(b.inbox("bob")) == 20


@pytest.mark.req("PIPE-1")
async def test_a_peer_that_repeats_what_is_here_is_cut_off_in_the_end(world: World) -> None:
    """A batch that brings nothing counts against its sender, however well it is signed; a tick begins anew."""
    b = world.nodes["node-b"]
    session = await _session(b, "node-a")
    batch = encode_frame(a_batch(world, "node-a", "node-b", [a_message(1, seq=1, body="x" * 800_000)]))

    async def repeat(times: int) -> None:
        for _ in range(times):
            await hand(session, batch)

    for _ in range(3):
        # Together they would be too many.
        await repeat(50)
        await session.tick()
    with pytest.raises(Refusal) as refused:
        await repeat(200)
    assert refused.value.code is Code.RATE_LIMITED
    assert b.inbox("bob") == [a_message(1).event_id]


@pytest.mark.req("PIPE-1")
async def test_a_peer_that_sends_an_outbox_that_it_was_not_asked_for_is_cut_off(world: World) -> None:
    """What nobody asked this peer for is not taken, whoever signed it."""
    b = world.nodes["node-b"]
    session = await _session(b, "node-a")
    unasked = a_batch(world, "node-m", "node-b", [a_message(1, seq=1, source_node_id="node-m")])
    with pytest.raises(Refusal) as refused:
        await session.take(encode_frame(unasked))
    assert refused.value.code is Code.FOREIGN_SOURCE
    assert session.is_closed
    assert b.store.cursor("node-m") is None
