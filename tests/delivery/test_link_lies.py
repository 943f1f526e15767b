"""Links with members that lie, and with honest ones that look as if they did."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.delivery.frames import Events, Hello, Subscribe, decode_frame, encode_frame
from agentpost.delivery.heads import sign_head
from agentpost.protocol.codec import MAX_EVENT_BYTES, encode_event
from agentpost.protocol.envelope import Event, MessageEvent, TaskCreateEvent, Trace
from agentpost.protocol.errors import Refusal
from agentpost.protocol.heads import decode_head
from agentpost.protocol.ids import EventId, TaskId, corr_id_of
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Message, TaskCreate
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import Subscriber
from agentpost.testing import MemoryStore, an_event_id
from tests.delivery.linking import Node, Pipe, World, hand, settle


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path if request.param == "sqlite" else None)
    yield world
    await world.close()


def _says(node: Node, sender: str, to: str, *, event_id: EventId) -> MessageEvent:
    """A message for an agent at node-b, as a gateway that keeps no rules would append it."""
    return MessageEvent(
        event_id=event_id,
        source_node_id=node.node_id,
        source_agent_id=sender,
        to_nodes=("node-b",),
        corr_id=corr_id_of(event_id),
        created_at=format_ms(node.world.clock.now_ms()),
        payload=Message(to_agents=(to,), body="not it"),
    )


def _asks(node: Node, sender: str, to: str, *, event_id: EventId, task_id: TaskId) -> TaskCreateEvent:
    """A task for an agent at node-b."""
    says = _says(node, sender, to, event_id=event_id)
    return TaskCreateEvent(
        event_id=event_id,
        source_node_id=node.node_id,
        source_agent_id=sender,
        to_nodes=says.to_nodes,
        corr_id=says.corr_id,
        created_at=says.created_at,
        payload=TaskCreate(
            task_id=task_id,
            title="a task",
            description="",
            to_agents=(to,),
            requester_agent_id=sender,
        ),
    )


async def _overtaken(a: Node, s: Node, b: Node, *lies: Event) -> None:
    """What node-s says of its own reaches node-b before what node-a has sent through it."""
    up = Pipe(a, s)
    await settle(up)
    await s.store.append(lies)
    down, held = Pipe(s, b), list[bytes]()

    def hold(frame: bytes) -> list[bytes]:
        found = decode_frame(frame)
        if isinstance(found, Events) and found.source == "node-a":
            held.append(frame)
            return []
        return [frame]

    down.right.meddle = hold
    await settle(up, down)
    down.right.meddle = None
    assert held
    down.right.coming += held
    await settle(up, down)


@pytest.mark.req("ENV-1", "PIPE-9", "RTY-3")
@pytest.mark.parametrize("agent", ["bob", "bert"])
async def test_nobody_can_speak_first_under_the_id_of_another(world: World, agent: str) -> None:
    """A gateway that knows the id of a message uses it for one of its own. The message arrives, the other does not."""
    a = await world.add("node-a", "ada")
    s = await world.add("node-s", "sue", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob", "bert")
    event_id = await a.send("bob", text="the real one")
    await _overtaken(a, s, b, _says(s, "sue", agent, event_id=event_id))
    assert a.states(event_id) == {"bob": DeliveryState.ACCEPTED}
    assert [each.source_node_id for each in b.store.backlog("bob")] == ["node-a"]
    assert b.inbox("bert") == []
    assert b.incidents() == ["forged_id"]


@pytest.mark.req("ENV-1", "TASK-5")
async def test_nobody_can_start_a_task_under_the_id_of_another(world: World) -> None:
    """The id of a task can be read by whoever mirrors it. Its requester is not told that it is somebody else's."""
    a = await world.add("node-a", "ada")
    s = await world.add("node-s", "sue", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob")
    offer = _asks(a, "ada", "bob", event_id=a.ids.make(EventId), task_id=a.ids.make(TaskId))
    await a.post(offer)
    await _overtaken(a, s, b, _asks(s, "sue", "bob", event_id=s.ids.make(EventId), task_id=offer.payload.task_id))
    assert a.states(offer.event_id) == {"bob": DeliveryState.ACCEPTED}
    task = b.store.task(offer.payload.task_id)
    assert task is not None
    assert task.requester_node_id == "node-a"
    assert b.incidents() == ["forged_id"]


@pytest.mark.req("PIPE-9", "ACK-2")
@pytest.mark.parametrize("agent", ["bob", "bert"])
async def test_who_speaks_first_under_an_id_of_another_make_is_noticed(world: World, agent: str) -> None:
    """Such an id does not tell whose it is. The sender is not told that its mail was accepted; somebody hears why."""
    a = await world.add("node-a", "ada")
    s = await world.add("node-s", "sue", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob", "bert")
    event_id = await a.send("bob", text="the real one", event_id=an_event_id("of another make"))
    await _overtaken(a, s, b, _says(s, "sue", agent, event_id=event_id))
    assert b.incidents() == ["event_id_taken"]
    assert a.states(event_id) == {"bob": DeliveryState.EMITTED}
    assert len(b.inbox("bob")) == (1 if agent == "bob" else 0)


@pytest.mark.req("ENV-6")
async def test_an_event_whose_answer_would_be_too_large_ends_no_link(world: World) -> None:
    """What an answer repeats is short. Otherwise one event of one member would cut a reader off from its seed."""
    m = await world.add("node-m", "mal")
    s = await world.add("node-s", "sue", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob")
    bare = _says(m, "mal", "bob", event_id=an_event_id("large"))
    room = MAX_EVENT_BYTES - len(encode_event(bare)) - 20
    await m.store.append([replace(bare, trace=Trace(routing_policy_version="v" * room))])
    up = Pipe(m, s)
    await settle(up)
    down = Pipe(s, b)
    await settle(up, down)
    assert down.right.refusal is None
    assert b.inbox("bob") == []
    assert [each.source_node_id for each in b.store.quarantined()] == ["node-m"]


@pytest.mark.req("CUR-6")
async def test_a_seed_notices_an_old_disk(world: World) -> None:
    """A seed reads the whole outbox at once, for itself and for others. It hears of one that ends too early as well."""
    a = await world.add("node-a", "ada")
    b = await world.add("node-b", "bob", tier=NodeTier.BACKBONE)
    for _ in range(3):
        await a.send("bob")
    await settle(pipe := Pipe(a, b))
    pipe.cut()
    old = Node(world, "node-a", MemoryStore(node_id="node-a", epoch="epoch_1"), NodeTier.EDGE)
    await old.send("bob")
    await settle(Pipe(old, b))
    assert "source_regressed" in b.incidents()
    assert old.regressed == [(3, "node-b")]


@pytest.mark.req("CUR-6", "PIPE-9")
async def test_nobody_can_tell_a_healthy_gateway_that_its_database_is_old(world: World) -> None:
    """What counts is its own signature under an end that it does not have, and where nothing was lost there is none."""
    a = await world.add("node-a", "ada")
    b = await world.add("node-b", "bob", tier=NodeTier.BACKBONE)
    pipe = Pipe(a, b)
    for _ in range(3):
        await a.send("bob")
        await settle(pipe)
    pipe.cut()
    keys = {node_id: world.room.identity(node_id).signing for node_id in ("node-a", "node-b")}
    end = b.store.signed_end("node-a")
    assert end is not None
    true_head = decode_head(end.head)
    ahead = replace(true_head, seq=1_000, chain=b"\1" * 32)
    for head, signer in (
        (ahead, "node-b"),
        (replace(ahead, node_id="node-b"), "node-b"),
        (replace(true_head, chain=b"\1" * 32), "node-b"),
        # What this node did sign: an earlier end, and the last one of an earlier life.
        (true_head, "node-a"),
        (replace(ahead, epoch="epoch_0"), "node-a"),
    ):
        session = a.hub.open("node-b", on_wake=lambda: None)
        await hand(session, encode_frame(Hello(node="node-b", epoch="epoch_1", version="1.0")))
        raw, signature = sign_head(head, keys[signer])
        wish = Subscribe(
            source="node-a", epoch="epoch_1", after_seq=1_000, after_chain=b"\1" * 32, head=raw, signature=signature
        )
        with suppress(Refusal):
            await hand(session, encode_frame(wish))
        session.close()
    assert a.regressed == []
    event_id = await a.send("bob")
    await settle(Pipe(a, b))
    assert b.inbox("bob")[-1] == event_id


@pytest.mark.req("PIPE-9", "CUR-3")
async def test_a_mirror_that_lost_something_is_no_liar(world: World) -> None:
    """Its source pruned while it was cut off, so it began anew. The reader is told of a gap, and the link stays up."""
    a = await world.add("node-a", "ada")
    s = await world.add("node-s", "sue", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob")

    async def say(at: int) -> None:
        await a.store.append([_says(a, "ada", "bob", event_id=an_event_id(f"m{at}"))])  # nobody waits for its ACK
        a.wakeups.outbox_grew()

    up, down = Pipe(a, s), Pipe(s, b)
    await say(0)
    await settle(up, down)
    assert len(b.inbox("bob")) == 1
    up.cut()
    for at in range(1, 5):
        await say(at)
    world.clock.advance(400_000)  # the seed's lease is over
    now_ms = world.clock.now_ms()
    another = Subscriber(
        consumer_node_id="node-x",
        epoch="epoch_1",
        last_seq=5,
        updated_at_ms=now_ms,
        lease_expires_at_ms=now_ms + 300_000,
    )
    await a.store.note_subscriber(another)
    assert (await a.store.compact(a.store.watermarks(now_ms=now_ms, retention_events=1))).outbox_floor_seq > 2
    await settle(Pipe(a, s), down)
    assert down.right.refusal is None
    assert "stream_broken" not in b.incidents()
