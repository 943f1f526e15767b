"""Incidents for the operator, and the question of a sender whose SLA was missed."""

import pytest
from msgspec.structs import replace

from agentpost.delivery.incidents import Incidents, StatusDesk, status_request
from agentpost.delivery.making import EventMaker
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event, SignalEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.store.values import Acceptance, Inbound, Incident, LocalAgent, Outcome, Settlement
from agentpost.testing import FakeClock, MemoryStore, SeededChance, an_ack
from agentpost.world import IdMaker
from tests.delivery.timing import NODE, PEER, Desk


class Peer:
    """The gateway that accepted a message of the desk."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.store = MemoryStore(node_id=PEER, epoch="b")
        self.maker = EventMaker(node_id=PEER, clock=clock, ids=IdMaker(clock, SeededChance(9)))
        self.seq = 0

    async def take(self, event: Event, *, source: str = NODE) -> None:
        self.seq += 1
        await self.store.put_agent(LocalAgent(agent_id="bob", runtime="pull", created_at_ms=0))
        event = replace(event, seq=self.seq)
        acks: dict[str, Event] = {"bob": an_ack(event)}
        await self.store.accept(
            Acceptance(
                source_node_id=source,
                source_epoch="first",
                after_seq=self.seq - 1,
                through_seq=self.seq,
                events=(Inbound(event=event, raw=encode_event(event), acks=acks),),
                at_ms=self.clock.now_ms(),
            )
        )

    def desk(self, other: Desk) -> StatusDesk:
        return StatusDesk(store=self.store, maker=self.maker, clock=self.clock, wakeups=other.wakeups)


async def _missed(desk: Desk) -> tuple[Event, SignalEvent]:
    """A message whose SLA ran out, and the question that follows."""
    event = await desk.send()
    await desk.change(event, DeliverySignal.ACCEPTED, due_at_ms=desk.clock.now_ms() + 120_000)
    await desk.pass_time(120)
    (asked,) = [each for each in desk.outbox() if isinstance(each, SignalEvent)]
    return event, asked


def _signals(store: MemoryStore) -> list[SignalEvent]:
    events = [decode_event(row.raw) for row in store.read_outbox(0).events]
    return [event for event in events if isinstance(event, SignalEvent)]


def _own_desk(desk: Desk) -> StatusDesk:
    return StatusDesk(store=desk.store, maker=desk.maker, clock=desk.clock, wakeups=desk.wakeups)


@pytest.mark.req("ACK-4")
async def test_a_gateway_says_how_far_an_event_is() -> None:
    """Asked for an event that it accepted, a gateway answers with state, attempts and times, and no content."""
    desk = await Desk().settle_in()
    peer = Peer(desk.clock)
    event, asked = await _missed(desk)
    await peer.take(event)
    await peer.store.engage(event.event_id, "bob", at_ms=desk.clock.now_ms())
    assert await peer.desk(desk).hear([asked]) == 1
    (answer,) = _signals(peer.store)
    assert (answer.payload.signal, answer.to_nodes, answer.payload.ref_event_id) == ("status", (NODE,), event.event_id)
    assert answer.corr_id == event.corr_id
    assert answer.payload.details["state"] == "engaged"
    assert answer.payload.details["attempts"] == 1
    assert answer.payload.details["engagedAt"] is not None


@pytest.mark.req("ACK-4")
async def test_only_the_sender_of_an_event_is_told() -> None:
    """Somebody else's question about an event is answered as if it were not there; so is one about nothing."""
    desk = await Desk().settle_in()
    peer = Peer(desk.clock)
    event, asked = await _missed(desk)
    await peer.take(event)
    stranger = replace(asked, source_node_id="node-x")
    nothing = replace(asked, payload=replace(asked.payload, details={}))
    other = replace(asked, payload=replace(asked.payload, signal="maintenance"))
    assert await peer.desk(desk).hear([stranger, nothing, other]) == 1
    (answer,) = _signals(peer.store)
    assert answer.payload.details == {"toAgentId": "bob", "requestEventId": asked.event_id, "state": "unknown"}


@pytest.mark.req("ACK-4")
async def test_a_late_outcome_closes_the_incident() -> None:
    """An answer that it is settled after all closes the incident; any other answer is written down."""
    desk = await Desk().settle_in()
    peer = Peer(desk.clock)
    event, asked = await _missed(desk)
    await peer.take(event)
    await peer.desk(desk).hear([asked])
    queued = _signals(peer.store)[-1]
    for _ in range(2):
        await _own_desk(desk).hear([queued])
    assert len(desk.store.incidents()) == 1
    assert [each.action for each in desk.store.audit_log()] == ["delivery.status"]

    await peer.store.engage(event.event_id, "bob", at_ms=desk.clock.now_ms())
    await peer.store.settle(
        Settlement(
            event_id=event.event_id,
            to_agent_id="bob",
            outcome=Outcome.PROCESSED,
            at_ms=desk.clock.now_ms(),
            events=(),
        )
    )
    await peer.desk(desk).hear([asked])
    settled = _signals(peer.store)[-1]
    forged = replace(settled, source_node_id="node-x")
    await _own_desk(desk).hear([forged])
    assert len(desk.store.incidents()) == 1
    await _own_desk(desk).hear([settled])
    assert desk.store.incidents() == []
    assert [each.action for each in desk.store.audit_log()][-1] == "incident.close"


@pytest.mark.req("RTY-3")
async def test_a_repeat_is_answered_after_the_clock_was_set_back() -> None:
    """An ACK was lost and the time of day goes back an hour: the repeat of its message is answered."""
    desk = await Desk().settle_in()
    peer = Peer(desk.clock)
    event = await desk.send()
    await peer.take(event)
    peer.clock.step_back(3_600_000)
    peer.clock.advance(30_000)
    assert await peer.desk(desk).tell([(event, "bob")]) == 1
    (answer,) = _signals(peer.store)
    assert answer.payload.details["state"] == "queued"


async def test_incidents_are_listed_shown_and_closed() -> None:
    """An operator sees what is open with the deliveries it is about, and closes it once; the audit knows who."""
    desk = await Desk().settle_in()
    event, _ = await _missed(desk)
    incidents = Incidents(store=desk.store, clock=desk.clock)
    (incident,) = incidents.list()
    shown = incidents.show(incident.id)
    assert shown.incident == incident
    assert [delivery.event_id for delivery in shown.deliveries] == [event.event_id]
    assert await incidents.close(incident.id, actor="op")
    assert not await incidents.close(incident.id, actor="op")
    assert incidents.list() == []
    assert len(incidents.list(open_only=False)) == 1
    assert [(each.actor, each.action) for each in desk.store.audit_log()] == [("op", "incident.close")]
    with pytest.raises(Refusal) as refused:
        incidents.show(99)
    assert refused.value.code is Code.NOT_FOUND


async def test_an_incident_without_an_event_can_be_shown() -> None:
    """Not every incident is about mail."""
    desk = Desk()
    await desk.store.raise_incident(Incident(kind="gap", subject="node-b", at_ms=1))
    (incident,) = desk.store.incidents()
    assert Incidents(store=desk.store, clock=desk.clock).show(incident.id).deliveries == ()


def test_a_question_can_be_asked_about_an_event_that_was_pruned() -> None:
    """The question needs nothing of the event but its id: the outbox may have let go of it long ago."""
    desk = Desk()
    delivery = Delivery(event_id=desk.maker.new_event_id(), to_agent_id="bob", to_node_id=PEER)
    asked = status_request(desk.maker, delivery, to_node_id=PEER)
    assert asked.payload.ref_event_id == delivery.event_id
