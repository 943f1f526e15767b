"""When a sender may believe that a gateway let a message pass: not before all of that gateway's answers are here."""

import pytest

from agentpost.delivery.frames import Events, Ping, decode_frame
from agentpost.protocol.lifecycle import DeliveryState
from tests.delivery.linking import Pipe, World, hand, settle


def _is_events(frame: bytes) -> bool:
    return isinstance(decode_frame(frame), Events)


@pytest.mark.req("ROUTE-2")
async def test_a_cursor_that_is_heard_of_before_the_acceptance_proves_nothing() -> None:
    """A gateway took a message and its `accepted` is still on its way: nobody concludes that it did not take it."""
    world = World()
    sender, taker = await world.add("node-a", "ada"), await world.add("node-b", "bob")
    pipe = Pipe(sender, taker)
    await settle(pipe)
    # One-way loss: what node-b says in its outbox does not come through, and everything else does.
    pipe.left.meddle = lambda frame: [] if _is_events(frame) else [frame]
    event_id = await sender.send("bob")
    await settle(pipe)
    await pipe.right.session.tick()
    await settle(pipe)
    (delivery,) = sender.store.deliveries_of(event_id)
    assert (delivery.state, taker.inbox("bob")) == (DeliveryState.EMITTED, [event_id])
    assert sender.hub.read_through()["node-b"] < delivery.seq
    # Once the link carries both ways again, the acceptance comes, and only then does the cursor count.
    pipe.cut()
    pipe = Pipe(sender, taker)
    await settle(pipe)
    await pipe.right.session.tick()
    await settle(pipe)
    assert sender.states(event_id) == {"bob": DeliveryState.ACCEPTED}
    assert sender.hub.read_through()["node-b"] >= delivery.seq
    await world.close()


@pytest.mark.req("ROUTE-2")
async def test_a_gateway_that_has_read_beyond_a_message_and_says_nothing_let_it_pass() -> None:
    """An agent that was not there when the message came did not get it, and the mail may follow the agent."""
    world = World()
    sender, other = await world.add("node-a", "ada"), await world.add("node-b")
    world.room.add_agent("bob", "node-b")
    pipe = Pipe(sender, other)
    event_id = await sender.send("bob")
    await settle(pipe)
    (delivery,) = sender.store.deliveries_of(event_id)
    assert sender.hub.read_through()["node-b"] == 0
    await pipe.right.session.tick()
    await settle(pipe)
    assert sender.hub.read_through()["node-b"] >= delivery.seq
    pipe.cut()
    assert "node-b" not in sender.hub.read_through()
    await world.close()


async def test_what_another_life_of_a_gateway_has_read_says_nothing_of_this_one() -> None:
    """A ping is about the outbox that the peer knows: after a disk was lost, that is another one."""
    world = World()
    sender, taker = await world.add("node-a", "ada"), await world.add("node-b", "bob")
    pipe = Pipe(sender, taker)
    await sender.send("bob")
    await settle(pipe)
    pipe.cut()
    reborn = await world.add("node-a", "ada", epoch="epoch_2")
    pipe = Pipe(reborn, taker)
    await hand(pipe.right.session, pipe.right.coming.pop(0))
    await pipe.right.session.tick()
    sent = [decode_frame(frame) for frame in pipe.right.session.frames_to_send()]
    assert Ping() in sent
    await world.close()
