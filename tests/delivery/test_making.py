"""The events with which a gateway answers others."""

import pytest
from msgspec.structs import replace

from agentpost.delivery.making import EventMaker
from agentpost.protocol.ids import ulid_time_ms
from agentpost.protocol.payloads import AckType
from agentpost.testing import FakeClock, SeededChance, a_message
from agentpost.world import IdMaker


@pytest.mark.req("ACK-1", "ENV-1")
def test_acks_that_are_made_together_are_like_those_made_one_by_one() -> None:
    """Each event has an ACK of its own, with an id of its own; they sort in the order in which they were made."""
    clock = FakeClock()
    maker = EventMaker(node_id="node-b", clock=clock, ids=IdMaker(clock, SeededChance(1)))
    events = [a_message(number) for number in range(1, 40)]
    before = maker.new_event_id()
    processed = maker.acks(AckType.PROCESSED)
    together = [processed(event, "bob") for event in events]
    alone = [maker.ack(event, AckType.PROCESSED, agent_id="bob") for event in events]
    assert [replace(each, event_id=before) for each in together] == [replace(each, event_id=before) for each in alone]
    event_ids = [before, *(each.event_id for each in together), *(each.event_id for each in alone)]
    assert event_ids == sorted(set(event_ids))
    assert {ulid_time_ms(event_id) for event_id in event_ids} == {clock.now_ms()}
