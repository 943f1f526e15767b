"""Tells a sender that its mail could not be delivered: an ordinary message in its own inbox. Appends nothing by itself.

The report is written in the transaction that gives the delivery up, so no dead letter goes unreported. A report never
causes another report.
"""

from typing import Final, Protocol

from msgspec import Struct

from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import DeliveryPolicy, ack_due_at_ms
from agentpost.delivery.ports import Content, RoomView
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event, MessageEvent, Trace
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.payloads import Message, Sealed
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.world import Clock

__all__ = ["POSTMASTER", "NonDelivery", "Postmaster", "Seals"]

POSTMASTER: Final = "postmaster"

_WHAT_TO_DO: Final = {
    "max_attempts": "Its gateway is there and does not accept it. Ask its operator, then send it again.",
    "expired": "Its time ran out before anybody took it. Send it again if it still matters, with more time.",
    "no_route": "No gateway hosts this agent. Check its name, or wait until it is back, then send it again.",
}
_IN_GENERAL: Final = "Look at it with `agentpost deadletters show`, then send it again or purge it."


class Seals(Protocol):
    """As much of the sealer as this needs."""

    def seal(self, content: Content, *, event_id: EventId, to_nodes: tuple[str, ...]) -> Sealed: ...


class NonDelivery(Struct, frozen=True, kw_only=True):
    """One event that one recipient will not get."""

    event: Event
    to_agent_id: str
    to_node_id: str | None
    reason: str
    attempts: int


class Postmaster:
    def __init__(
        self, *, store: Store, room: RoomView, maker: EventMaker, sealer: Seals, clock: Clock, policy: DeliveryPolicy
    ) -> None:
        self._store = store
        self._room = room
        self._maker = maker
        self._sealer = sealer
        self._clock = clock
        self._policy = policy

    def report(self, failed: NonDelivery) -> tuple[Event, Delivery] | None:
        """The message that tells the sender, with its delivery; None where there is nobody to tell."""
        sender = failed.event.source_agent_id
        if POSTMASTER in (sender, failed.to_agent_id):
            return None
        node_id = self._home_of(sender)
        if node_id is None:
            return None
        now_ms = self._clock.now_ms()
        event_id = self._maker.new_event_id()
        try:
            sealed = self._sealer.seal(_said(failed), event_id=event_id, to_nodes=(node_id,))
        except Refusal:
            # Without the keys of the sender's new gateway nobody there could open it; the dead letter still stands.
            return None
        event = MessageEvent(
            event_id=event_id,
            source_node_id=self._maker.node_id,
            source_agent_id=POSTMASTER,
            to_nodes=(node_id,),
            corr_id=failed.event.corr_id,
            created_at=format_ms(now_ms),
            trace=Trace(
                route_decision="report",
                routing_policy_version=failed.event.trace.routing_policy_version,
                capability_policy_version=failed.event.trace.capability_policy_version,
            ),
            payload=Message(to_agents=(sender,), sealed=sealed),
        )
        delivery = Delivery(
            event_id=event_id,
            to_agent_id=sender,
            corr_id=event.corr_id,
            from_agent_id=POSTMASTER,
            to_node_id=node_id,
            route_decision="report",
            due_at_ms=ack_due_at_ms(event, now_ms=now_ms, policy=self._policy),
            emitted_at_ms=now_ms,
        )
        return event, delivery

    def _home_of(self, agent_id: str) -> str | None:
        if self._store.local_agent(agent_id) is not None:
            return self._maker.node_id
        agent = self._room.snapshot().agents.get(agent_id)
        return None if agent is None else agent.owner_node_id


def _said(failed: NonDelivery) -> Content:
    what_to_do = _WHAT_TO_DO.get(failed.reason, _IN_GENERAL)
    kind = failed.event.kind.replace("_", " ")
    return Content(
        subject=f"Not delivered to {failed.to_agent_id}: {failed.reason}",
        body=(
            f"Your {kind} {failed.event.event_id} of {failed.event.created_at} could not be delivered to "
            f"{failed.to_agent_id} ({failed.reason}, attempts: {failed.attempts}). {what_to_do}"
        ),
        context={
            "report": "non_delivery",
            "refEventId": failed.event.event_id,
            "refKind": failed.event.kind.value,
            "toAgentId": failed.to_agent_id,
            "toNodeId": failed.to_node_id,
            "reason": failed.reason,
            "attempts": failed.attempts,
        },
    )
