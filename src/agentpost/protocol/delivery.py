"""One delivery as its sender knows it: the record, and how a signal changes it (ACK-3, ACK-5, RTY-6).

Knows nothing of storage: every store keeps these records and lets `advance` decide.
"""

from typing import Final

from msgspec import Struct, structs

from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.protocol.machine import walk

__all__ = ["TAKEN", "Change", "Delivery", "advance", "has_failed"]

# The reason of a `processed` for the offer of a task that somebody else took: nothing went wrong.
TAKEN: Final = "taken"


class Delivery(Struct, frozen=True, kw_only=True, gc=False):
    """What became of one event for one recipient.

    `seq` is its latest place in the outbox. `due_at_ms` is when a timer has to look at it again: the next resend
    while unaccepted, the SLA once accepted, nothing once it ended. `corr_id` and `from_agent_id` are those of the
    event, so that nobody has to open it to tell whose it is.
    """

    event_id: EventId
    to_agent_id: str
    corr_id: str = ""
    from_agent_id: str = ""
    to_node_id: str | None = None
    route_decision: str = ""
    seq: int = 0
    state: DeliveryState = DeliveryState.EMITTED
    attempts: int = 1
    due_at_ms: int | None = None
    emitted_at_ms: int = 0
    accepted_at_ms: int | None = None
    closed_at_ms: int | None = None
    answered_by_event_id: EventId | None = None
    reason: str | None = None


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """A signal for one delivery, when it came, and what it brought.

    `to_node_id` is set by a resend that goes to another gateway than before, with the decision that led there.
    """

    event_id: EventId
    to_agent_id: str
    signal: DeliverySignal
    at_ms: int
    due_at_ms: int | None = None
    answered_by_event_id: EventId | None = None
    reason: str | None = None
    to_node_id: str | None = None
    route_decision: str | None = None


def advance(delivery: Delivery, change: Change) -> Delivery:
    """The delivery after `change`; the same object if nothing changes. A forbidden move is refused."""
    path = walk(DELIVERY, delivery.state, change.signal)
    if not path:
        return delivery
    state = path[-1]
    ended = state in DELIVERY.terminal
    return structs.replace(
        delivery,
        state=state,
        to_node_id=change.to_node_id or delivery.to_node_id,
        route_decision=change.route_decision or delivery.route_decision,
        attempts=delivery.attempts + (change.signal is DeliverySignal.RESENT),
        # An end needs no timer.
        due_at_ms=None if ended else change.due_at_ms,
        accepted_at_ms=change.at_ms if DeliveryState.ACCEPTED in path else delivery.accepted_at_ms,
        closed_at_ms=change.at_ms if ended else None,
        answered_by_event_id=change.answered_by_event_id or delivery.answered_by_event_id,
        reason=change.reason or delivery.reason,
    )


def has_failed(delivery: Delivery) -> bool:
    """Whether it is over and the agent has not dealt with it. What ended as Processed with a reason was given up."""
    if delivery.state is DeliveryState.PROCESSED:
        return delivery.reason not in (None, TAKEN)
    return delivery.state is DeliveryState.DEAD_LETTER
