"""Tells a sender that its mail could not be delivered: an ordinary message in its own inbox. Appends nothing by itself.

The report is written in the transaction that gives the delivery up, so no dead letter goes unreported. A report never
causes another report.
"""

from typing import Final, Protocol

from msgspec import Struct

from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import GATEWAY_SENDER, DeliveryPolicy, ack_due_at_ms
from agentpost.delivery.ports import Content, RoomView
from agentpost.delivery.wording import as_text
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import RULINGS, Delivery
from agentpost.protocol.envelope import AckEvent, Event, MessageEvent, TaskCreateEvent, Trace
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY
from agentpost.protocol.payloads import Message, Sealed
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.store.values import FailureReport
from agentpost.world import Clock

__all__ = ["POSTMASTER", "NonDelivery", "Postmaster", "Seals"]

POSTMASTER: Final = GATEWAY_SENDER

_WHAT_TO_DO: Final = {
    "max_attempts": "Its gateway is there and does not accept it. Ask its operator, then send it again.",
    "expired": "Its time ran out before anybody took it. Send it again if it still matters, with more time.",
    "no_route": "No gateway hosts this agent. Check its name, or wait until it is back, then send it again.",
}
_IN_GENERAL: Final = "Look at it with `agentpost deadletters show`, then send it again or purge it."
# The same for what a gateway accepted for its agent.
_WHAT_BECAME: Final = {
    "expired": "its time ran out before the agent had it",
    "failed": "the agent could not handle it",
    "max_attempts": "the agent failed each time that it got it",
    "no_route": "the agent was removed there before it had it",
    "unreadable": "the agent's gateway could not read what it says",
}


class Seals(Protocol):
    """What tells somebody something needs the sealer for."""

    def seal(self, content: Content, *, event_id: EventId, to_nodes: tuple[str, ...]) -> Sealed: ...


class OpensToo(Seals, Protocol):
    """As much of the sealer as this needs."""

    def open(self, event: Event) -> Content: ...


class NonDelivery(Struct, frozen=True, kw_only=True):
    """One event that one recipient will not get; or that was accepted, and that its agent has not dealt with."""

    event: Event
    to_agent_id: str
    to_node_id: str | None
    reason: str
    attempts: int
    was_accepted: bool = False
    error: str | None = None


class Postmaster:
    def __init__(
        self, *, store: Store, room: RoomView, maker: EventMaker, sealer: OpensToo, clock: Clock, policy: DeliveryPolicy
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

    def report_failure(self, ack: AckEvent, *, is_task_told: bool = False) -> FailureReport | None:
        """The report that an accepted event ended as failed, to be written if that is news; None if there is no need.

        Who asked for a task hears by its `task_failed` that it failed; `is_task_told` says that this has come.
        """
        said, agent_id = ack.payload, ack.payload.acked_by_agent_id
        held = [each for each in self._store.deliveries_of(said.ref_event_id) if each.to_agent_id == agent_id]
        stored = self._store.find_event(said.ref_event_id)
        if stored is None or not held or held[0].state in DELIVERY.terminal or said.reason in RULINGS:
            return None
        event = decode_event(stored.raw)
        if isinstance(event, TaskCreateEvent):
            record = self._store.task(event.payload.task_id)
            if is_task_told or (record is not None and not record.is_open):
                return None
        failed = NonDelivery(
            event=event,
            to_agent_id=agent_id,
            to_node_id=ack.source_node_id,
            reason=said.reason or "failed",
            attempts=said.attempts or 0,
            was_accepted=True,
            error=self._error_of(ack),
        )
        told = self.report(failed)
        if told is None:
            return None
        return FailureReport(event_id=event.event_id, to_agent_id=agent_id, event=told[0], delivery=told[1])

    def _error_of(self, ack: AckEvent) -> str | None:
        try:
            error = self._sealer.open(ack).error_summary
        except Refusal:
            # It was not sealed for this gateway, or altered on the way.
            return None
        return None if error is None else as_text(error)

    def _home_of(self, agent_id: str) -> str | None:
        if self._store.local_agent(agent_id) is not None:
            return self._maker.node_id
        agent = self._room.snapshot().agents.get(agent_id)
        return None if agent is None else agent.owner_node_id


def _said(failed: NonDelivery) -> Content:
    kind = failed.event.kind.replace("_", " ")
    what = f"Your {kind} {failed.event.event_id} of {failed.event.created_at}"
    tries = f"{failed.reason}, attempts: {failed.attempts}"
    if failed.was_accepted:
        became = _WHAT_BECAME.get(failed.reason, "it was given up there")
        error = (
            "" if failed.error is None else f"\n\nThe last error, as the agent's gateway tells it:\n\n{failed.error}"
        )
        subject = f"Not handled by {failed.to_agent_id}: {failed.reason}"
        body = (
            f"{what} was accepted for {failed.to_agent_id} at {failed.to_node_id}, and {became} ({tries}). Send it "
            f"again once the cause is gone: `agentpost deadletters resend {failed.event.event_id}`.{error}"
        )
    else:
        what_to_do = _WHAT_TO_DO.get(failed.reason, _IN_GENERAL)
        subject = f"Not delivered to {failed.to_agent_id}: {failed.reason}"
        body = f"{what} could not be delivered to {failed.to_agent_id} ({tries}). {what_to_do}"
    context = {
        "report": "non_delivery",
        "refEventId": failed.event.event_id,
        "refKind": failed.event.kind.value,
        "toAgentId": failed.to_agent_id,
        "toNodeId": failed.to_node_id,
        "reason": failed.reason,
        "attempts": failed.attempts,
        "wasAccepted": failed.was_accepted,
    }
    return Content(
        subject=subject, body=body, context=context if failed.error is None else context | {"error": failed.error}
    )
