"""ACKs that nobody has any more: pruned before their reader came. What was accepted is not given up for that."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.delivery.frames import Events, decode_frame
from agentpost.delivery.ports import Content, Engagement
from agentpost.delivery.publish import SendRequest
from agentpost.protocol.envelope import SignalEvent
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import AckType
from agentpost.store.values import Outcome, Settlement, Subscriber
from tests.work.meshing import Mesh, Node


@pytest.fixture(params=["memory", "sqlite"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mesh]:
    tmp_path.chmod(0o700)  # noqa: ASYNC240 - nothing else runs yet
    mesh = Mesh(tmp_path if request.param == "sqlite" else None)
    yield mesh
    await mesh.close()


async def _work(_: Engagement) -> None:
    return None


async def _send(mesh: Mesh, *, to: str) -> EventId:
    """A message whose answers are pruned at the receiver, and so never read."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    receipt = await a.engine.publisher.send(
        SendRequest(source_agent_id="ada", to_agents=(to,), content=Content(body="check the notes"))
    )
    mesh.pipes["node-a", "node-b"].left.meddle = lambda frame: (
        [] if isinstance(decode_frame(frame), Events) else [frame]
    )
    await mesh.rest()
    mesh.cut("node-b")
    now_ms = mesh.clock.now_ms()
    # Another reader has everything; node-a was away for longer than its lease.
    for node_id, lease_ms in (("node-a", 0), ("node-c", 300_000)):
        await b.store.note_subscriber(
            Subscriber(
                consumer_node_id=node_id,
                epoch="epoch_1",
                last_seq=b.store.head().seq if lease_ms else 0,
                updated_at_ms=now_ms,
                lease_expires_at_ms=now_ms + lease_ms,
            )
        )
    await b.store.compact(b.store.watermarks(now_ms=now_ms, retention_events=0))
    assert b.store.read_outbox(0).floor_seq == b.store.head().seq > 0
    mesh.mend("node-b")
    await mesh.rest()
    return receipt.event_id


async def _pass(mesh: Mesh, *, seconds: int) -> None:
    for _ in range(seconds // 10):
        mesh.clock.advance(10_000)
        for node_id in mesh.nodes:
            mesh.room.set_online(node_id)
        for pipe in mesh.pipes.values():
            for end in pipe.ends:
                await end.session.tick()
        await mesh.rest()
        await mesh.nodes["node-a"].engine.retrier.look_around()
        while await mesh.nodes["node-a"].engine.retrier.work():
            await mesh.rest()
        await mesh.rest()


def _state(node: Node, event_id: EventId) -> DeliveryState:
    (delivery,) = node.store.deliveries_of(event_id)
    return delivery.state


@pytest.mark.req("ACK-2", "RTY-2", "CUR-4")
async def test_what_was_processed_is_no_dead_letter_although_its_acks_are_gone(mesh: Mesh) -> None:
    """The sender sends it again, hears that it has been dealt with, and the agent is not engaged a second time."""
    a, b = await mesh.add("node-a", "node-b")
    await a.host("ada")
    await b.host("worker", _work)
    event_id = await _send(mesh, to="worker")
    assert len(b.engaged) == 1
    assert _state(a, event_id) is DeliveryState.EMITTED
    await _pass(mesh, seconds=600)
    assert _state(a, event_id) is DeliveryState.PROCESSED
    assert len(b.engaged) == 1
    # Once is enough.
    assert len([event for event in b.outbox() if isinstance(event, SignalEvent)]) == 1


@pytest.mark.req("ACK-2", "RTY-2", "CUR-4")
async def test_what_waits_for_its_agent_is_no_dead_letter_although_its_ack_is_gone(mesh: Mesh) -> None:
    """The sender hears that it was accepted, and then how it ended."""
    a, b = await mesh.add("node-a", "node-b")
    await a.host("ada")
    await b.host("bob")
    event_id = await _send(mesh, to="bob")
    await _pass(mesh, seconds=600)
    assert _state(a, event_id) is DeliveryState.ACCEPTED
    (event,) = b.open_mail("bob")
    ack = b.engine.maker.ack(event, AckType.PROCESSED, agent_id="bob")
    await b.store.settle(
        Settlement(
            event_id=event_id, to_agent_id="bob", outcome=Outcome.PROCESSED, at_ms=mesh.clock.now_ms(), events=(ack,)
        )
    )
    b.engine.wakeups.outbox_grew()
    await mesh.rest()
    assert _state(a, event_id) is DeliveryState.PROCESSED
