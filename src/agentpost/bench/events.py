"""Events as they are in life: a short message to one agent, about 400 bytes on the wire."""

from agentpost.protocol.envelope import MessageEvent, Trace
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.payloads import Message
from agentpost.protocol.timestamps import format_ms
from agentpost.world import IdMaker, SystemChance, SystemClock

__all__ = ["NODE_ID", "make_events"]

NODE_ID = "bench-node"
_TRACE = Trace(route_decision="owner", routing_policy_version="rpv_1", capability_policy_version="cpv_1")
_PAYLOAD = Message(to_agents=("bench-agent",), subject="Build finished", body="x" * 47)


def make_events(count: int) -> list[MessageEvent]:
    """New events with ids in the order of the list."""
    clock = SystemClock()
    ids = IdMaker(clock, SystemChance())
    created_at = format_ms(clock.now_ms())
    events: list[MessageEvent] = []
    for _ in range(count):
        event_id = ids.make(EventId)
        events.append(
            MessageEvent(
                event_id=event_id,
                source_node_id=NODE_ID,
                source_agent_id="bench-sender",
                corr_id=corr_id_of(event_id),
                created_at=created_at,
                trace=_TRACE,
                payload=_PAYLOAD,
            )
        )
    return events
