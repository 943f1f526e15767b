"""What became of a message: the timeline that one gateway can give."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentpost.delivery.trace import Side, Step, trace
from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.store.values import Acceptance, Inbound, Outcome, Settlement
from agentpost.testing import a_reply, an_ack, an_event_id
from tests.delivery.timing import NODE, OTHER, PEER, Desk


async def _take(desk: Desk, event: Event, *, source: str = PEER, agent: str = "ada") -> None:
    """The desk reads one event from a source and accepts it for an agent."""
    cursor = desk.store.cursor(source)
    seq = (cursor.last_seq if cursor else 0) + 1
    event = replace(event, seq=seq)
    acks: dict[str, Event] = {agent: an_ack(event, by_node_id=NODE, by_agent_id=agent)}
    await desk.store.accept(
        Acceptance(
            source_node_id=source,
            source_epoch="b",
            after_seq=seq - 1,
            through_seq=seq,
            events=(Inbound(event=event, raw=encode_event(event), acks=acks),),
            at_ms=desk.clock.now_ms(),
        )
    )


def _told(steps: list[Any]) -> list[tuple[Step, Side, str | None, str | None]]:
    return [(step.what, step.side, step.agent_id, step.node_id) for step in steps]


@pytest.mark.req("ACK-5", "ROUTE-10")
async def test_the_sender_sees_every_recipient() -> None:
    """Routed where, sent how often, accepted when, and how it ended: for each recipient, in order."""
    desk = await Desk().settle_in()
    event = await desk.send(to={"bob": PEER, "carl": OTHER})
    desk.clock.advance(1_000)
    await desk.change(event, DeliverySignal.ACCEPTED)
    desk.clock.advance(1_000)
    await desk.change(event, DeliverySignal.FAILED_TERMINAL, reason="runtime_gone")
    await desk.pass_time(18)
    await desk.pass_time(5)
    steps = trace(desk.store, event.event_id)
    sender = Side.SENDER
    assert _told(steps) == [
        (Step.EMITTED, sender, "ada", NODE),
        (Step.ROUTED, sender, "bob", PEER),
        (Step.ROUTED, sender, "carl", OTHER),
        (Step.RESENT, sender, "carl", NODE),
        (Step.ACCEPTED, sender, "bob", PEER),
        (Step.FAILED, sender, "bob", PEER),
    ]
    assert steps[0].kind == "message"
    assert steps[1].detail == "owner"
    assert steps[-1].detail == "runtime_gone"


@pytest.mark.req("ACK-5")
async def test_the_receiver_sees_engagement_reading_and_outcome() -> None:
    """On the other side: accepted, engaged, read and processed, and who sent it from where."""
    desk = await Desk().settle_in()
    event = replace(await desk.send(), event_id=an_event_id("theirs"), source_node_id=PEER, source_agent_id="bob")
    desk.clock.advance(1_000)
    await _take(desk, event)
    desk.clock.advance(1_000)
    await desk.store.engage(event.event_id, "ada", at_ms=desk.clock.now_ms())
    await desk.store.mark_read(event.event_id, "ada", at_ms=desk.clock.now_ms() + 1)
    settlement = Settlement(
        event_id=event.event_id,
        to_agent_id="ada",
        outcome=Outcome.PROCESSED,
        at_ms=desk.clock.now_ms() + 2,
        events=(),
        error="what the agent said",
    )
    await desk.store.settle(settlement)
    steps = trace(desk.store, event.event_id)
    assert _told(steps) == [
        (Step.EMITTED, Side.SENDER, "bob", PEER),
        (Step.ACCEPTED, Side.RECEIVER, "ada", NODE),
        (Step.ENGAGED, Side.RECEIVER, "ada", NODE),
        (Step.READ, Side.RECEIVER, "ada", NODE),
        (Step.PROCESSED, Side.RECEIVER, "ada", NODE),
    ]
    assert b"what the agent said" not in msgspec.json.encode(steps)


@pytest.mark.req("ACK-5")
async def test_a_conversation_is_told_in_causal_order_whatever_the_clocks_say() -> None:
    """An answer from a gateway whose clock is an hour behind, or ahead, still comes after the question."""
    for skew_ms in (-3_600_000, 3_600_000):
        desk = await Desk().settle_in()
        event = await desk.send()
        desk.clock.advance(2_000)
        reply = a_reply(event, at_ms=desk.clock.now_ms() + skew_ms)
        await _take(desk, reply)
        await desk.change(event, DeliverySignal.REPLY, answered_by_event_id=reply.event_id)
        steps = trace(desk.store, event.corr_id)
        assert [(step.what, step.event_id) for step in steps if step.what is Step.EMITTED] == [
            (Step.EMITTED, event.event_id),
            (Step.EMITTED, reply.event_id),
        ]
        told = [(step.what, step.event_id) for step in steps]
        assert told.index((Step.EMITTED, reply.event_id)) < told.index((Step.ACCEPTED, reply.event_id))
        assert (Step.REPLIED, event.event_id) in told
        assert steps == sorted(steps, key=lambda step: step.at_ms)


async def test_nothing_is_known_of_what_never_was() -> None:
    """An unknown id has an empty timeline."""
    desk = Desk()
    assert trace(desk.store, an_event_id("nothing")) == []
    assert trace(desk.store, "corr_01ARZ3NDEKTSV4RRFFQ69G5FAV") == []
