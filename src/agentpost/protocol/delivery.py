"""One delivery as its sender knows it: the record, and how a signal changes it (ACK-3, ACK-5, RTY-6).

Knows nothing of storage: every store keeps these records and lets `advance` decide.
"""

from typing import Final

from msgspec import Struct, structs

from agentpost.protocol.ids import EventId
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.protocol.machine import walk

__all__ = [
    "CLAIM_LOST",
    "MOVE_REFUSED",
    "REPEATED",
    "RULINGS",
    "SLA_MISSED",
    "TAKEN",
    "Change",
    "Delivery",
    "advance",
    "has_arrived_late",
    "has_failed",
    "is_undelivered",
]

# The reason of a delivery without an outcome in time (ACK-4), and the kind of the incident about it.
SLA_MISSED: Final = IncidentKind.SLA_MISSED

# The reason of a `processed` for the offer of a task that somebody else took: nothing went wrong.
TAKEN: Final = "taken"
# The reason of a `processed` for a dead letter that was sent again although the agent had it: it is not engaged twice.
REPEATED: Final = "repeated"
# The reasons of what a gateway itself says to events about tasks. To say them again would not change its mind.
CLAIM_LOST: Final = "claim_lost"
MOVE_REFUSED: Final = "invalid_transition"
RULINGS: Final = frozenset({CLAIM_LOST, MOVE_REFUSED})
_HARMLESS: Final = (None, TAKEN, REPEATED)

# What a receiver says after the end, in the order in which one says more than the other.
_LATE_WORDS: Final = (
    None,
    DeliverySignal.ACCEPTED,
    DeliverySignal.FAILED_TERMINAL,
    DeliverySignal.PROCESSED,
    DeliverySignal.REPLY,
)


class Delivery(Struct, frozen=True, kw_only=True, gc=False):
    """What became of one event for one recipient.

    `seq` is its latest place in the outbox. `due_at_ms` is when a timer has to look at it again: the next resend
    while unaccepted, the SLA once accepted, nothing once it ended. `corr_id` and `from_agent_id` are those of the
    event, so that nobody has to open it to tell whose it is.

    An end stays an end (RTY-6). `late` is what the receiver said after it, the word that says most, and `late_at_ms`
    when that came. `resent_as` is the event that replaces one that has failed (RTY-7).
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
    resent_as: EventId | None = None
    late: DeliverySignal | None = None
    late_at_ms: int | None = None


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
        return _after_the_end(delivery, change)
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


def _after_the_end(delivery: Delivery, change: Change) -> Delivery:
    """The same delivery in the same state, with what its receiver said too late."""
    answered_by = delivery.answered_by_event_id or change.answered_by_event_id
    match delivery.state:
        case DeliveryState.PROCESSED if not has_failed(delivery):
            # A reply by hand, to what the agent had dealt with in silence.
            return _with_answer(delivery, answered_by)
        case DeliveryState.PROCESSED:
            known = delivery.late or DeliverySignal.FAILED_TERMINAL
        case DeliveryState.DEAD_LETTER | DeliveryState.INCIDENT:
            known = delivery.late
        case _:
            return delivery
    if _LATE_WORDS.index(change.signal) <= _LATE_WORDS.index(known):
        return delivery
    return structs.replace(delivery, late=change.signal, late_at_ms=change.at_ms, answered_by_event_id=answered_by)


def _with_answer(delivery: Delivery, answered_by: EventId | None) -> Delivery:
    if answered_by == delivery.answered_by_event_id:
        return delivery
    return structs.replace(delivery, answered_by_event_id=answered_by)


def has_failed(delivery: Delivery) -> bool:
    """Whether it is over and the agent has not dealt with it. What ended as Processed with a reason was given up."""
    match delivery.state:
        case DeliveryState.PROCESSED:
            return delivery.reason not in _HARMLESS
        case DeliveryState.INCIDENT:
            return delivery.late is DeliverySignal.FAILED_TERMINAL
        case state:
            return state is DeliveryState.DEAD_LETTER


def is_undelivered(delivery: Delivery) -> bool:
    """Whether a person may want to send it again (RTY-7): it has failed, and no gateway has ruled on a task by that."""
    return has_failed(delivery) and delivery.reason not in RULINGS


def has_arrived_late(delivery: Delivery) -> bool:
    """Whether its receiver said after the end that it has it, and not that its agent failed: do not send it again."""
    return delivery.late not in (None, DeliverySignal.FAILED_TERMINAL)
