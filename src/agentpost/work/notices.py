"""Messages of the post itself about work: to whoever can do something about it. Appends nothing by itself.

They come from the postmaster, so nobody answers them; what they ask for is said with `task update`.
"""

from agentpost.delivery.engine import Engine
from agentpost.delivery.policy import ack_due_at_ms
from agentpost.delivery.ports import Content
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event, MessageEvent, Trace
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import CorrId, corr_id_of
from agentpost.protocol.payloads import Message, Priority
from agentpost.protocol.timestamps import format_ms

__all__ = ["Notices"]


class Notices:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def make(
        self, to_agent_id: str, content: Content, *, corr_id: CorrId | None = None
    ) -> tuple[Event, Delivery] | None:
        """A message for one agent, wherever it lives; None if nobody could open it there."""
        engine = self._engine
        agent = engine.room.snapshot().agents.get(to_agent_id)
        node_id = None if agent is None else agent.owner_node_id
        if node_id is None:
            return None
        now_ms = engine.clock.now_ms()
        event_id = engine.maker.new_event_id()
        try:
            sealed = engine.sealer.seal(content, event_id=event_id, to_nodes=(node_id,))
        except Refusal:
            return None
        event = MessageEvent(
            event_id=event_id,
            source_node_id=engine.maker.node_id,
            source_agent_id=POSTMASTER,
            to_nodes=(node_id,),
            corr_id=corr_id_of(event_id) if corr_id is None else corr_id,
            created_at=format_ms(now_ms),
            trace=Trace(route_decision="report"),
            payload=Message(to_agents=(to_agent_id,), priority=Priority.HIGH, sealed=sealed),
        )
        delivery = Delivery(
            event_id=event_id,
            to_agent_id=to_agent_id,
            corr_id=event.corr_id,
            from_agent_id=POSTMASTER,
            to_node_id=node_id,
            route_decision="report",
            due_at_ms=ack_due_at_ms(event, now_ms=now_ms, policy=engine.policy),
            emitted_at_ms=now_ms,
        )
        return event, delivery
