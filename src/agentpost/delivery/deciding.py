"""What to do about a delivery whose timer ran out: a function of what is known, and commands as its answer.

Pure. Time, chance and the room come in as arguments; `retry.py` carries the commands out.
"""

from typing import Final

from msgspec import Struct

from agentpost.delivery.policy import DeliveryPolicy, ack_due_at_ms, in_time
from agentpost.delivery.whereabouts import Place, Whereabouts
from agentpost.protocol.backoff import exhausted, next_delay_seconds
from agentpost.protocol.delivery import SLA_MISSED, Change, Delivery
from agentpost.protocol.envelope import Event, is_expired
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState

__all__ = [
    "NO_ROUTE",
    "OWNER_SILENT",
    "SLA_MISSED",
    "AskReader",
    "AskStatus",
    "Command",
    "GiveUp",
    "Move",
    "RaiseIncident",
    "Resend",
    "Wait",
    "decide",
    "subject_of",
]

# Kinds of incidents.
NO_ROUTE: Final = IncidentKind.NO_ROUTE
OWNER_SILENT: Final = IncidentKind.OWNER_SILENT


class Wait(Struct, frozen=True, kw_only=True):
    """Look again later; the delivery stays as it is and no attempt is spent."""

    delivery: Delivery
    due_at_ms: int


class Move(Struct, frozen=True, kw_only=True):
    """Change the delivery, without an event."""

    change: Change


class Resend(Struct, frozen=True, kw_only=True):
    """Append the event once more for this gateway (ENV-5), with the changes in the same transaction."""

    changes: tuple[Change, ...]
    to_node_id: str
    is_moved: bool = False


class GiveUp(Struct, frozen=True, kw_only=True):
    """End the delivery as a dead letter, which is said in the outbox in the same transaction (RTY-2)."""

    delivery: Delivery
    changes: tuple[Change, ...]
    reason: str


class RaiseIncident(Struct, frozen=True, kw_only=True):
    kind: IncidentKind
    subject: str
    delivery: Delivery


class AskStatus(Struct, frozen=True, kw_only=True):
    """Ask the recipient's gateway what became of an event that it accepted (ACK-4)."""

    delivery: Delivery
    to_node_id: str


class AskReader(Struct, frozen=True, kw_only=True):
    """Ask the recipient's gateway how far it has read, which no link tells."""

    delivery: Delivery
    to_node_id: str


Command = Wait | Move | Resend | GiveUp | RaiseIncident | AskStatus | AskReader


def decide(
    delivery: Delivery,
    *,
    event: Event | None,
    whereabouts: Whereabouts,
    now_ms: int,
    jitter: float,
    policy: DeliveryPolicy,
) -> list[Command]:
    """What the timer of `delivery` leads to; nothing if it has not run out, or if the delivery ended meanwhile.

    `event` is the latest send of it, None if the outbox has it no more. `jitter` is a draw from [0, 1).
    """
    if delivery.state in DELIVERY.terminal or (delivery.due_at_ms is not None and delivery.due_at_ms > now_ms):
        return []
    if delivery.state is DeliveryState.ACCEPTED:
        return _sla_missed(delivery, now_ms)
    if event is not None and is_expired(event, now_ms=now_ms):
        return [_give_up(delivery, "expired", now_ms, DeliverySignal.EXPIRED)]  # ENV-7
    match whereabouts.place:
        case Place.NOWHERE:
            return [
                RaiseIncident(kind=NO_ROUTE, subject=delivery.to_agent_id, delivery=delivery),
                _give_up(delivery, "no_route", now_ms, DeliverySignal.UNROUTABLE),  # ROUTE-3
            ]
        case Place.AWAY | Place.BEHIND:
            # Streams are in order: a second send would only come behind the first.
            return [_wait(delivery, event, now_ms, jitter, policy)]
        case Place.UNHEARD:
            node_id = whereabouts.node_id or ""
            return [
                AskReader(delivery=delivery, to_node_id=node_id),
                _wait(delivery, event, now_ms, jitter, policy),
            ]
        case Place.IN_DOUBT:
            # ROUTE-2: nobody knows whether the silent owner took it, so the mesh waits and says so.
            subject = delivery.to_node_id or delivery.to_agent_id
            return [
                RaiseIncident(kind=OWNER_SILENT, subject=subject, delivery=delivery),
                _wait(delivery, event, now_ms, jitter, policy),
            ]
        case Place.THERE | Place.MOVED:
            return [_try_again(delivery, event, whereabouts, now_ms, jitter, policy)]


def subject_of(delivery: Delivery) -> str:
    """How incidents and the audit name one delivery."""
    return f"{delivery.event_id}/{delivery.to_agent_id}"


def _sla_missed(delivery: Delivery, now_ms: int) -> list[Command]:
    commands: list[Command] = [
        RaiseIncident(kind=SLA_MISSED, subject=subject_of(delivery), delivery=delivery),
        Move(change=_change(delivery, DeliverySignal.SLA_TIMEOUT, now_ms, reason=SLA_MISSED.value)),
    ]
    if delivery.to_node_id is not None:
        commands.append(AskStatus(delivery=delivery, to_node_id=delivery.to_node_id))
    return commands


def _try_again(
    delivery: Delivery,
    event: Event | None,
    whereabouts: Whereabouts,
    now_ms: int,
    jitter: float,
    policy: DeliveryPolicy,
) -> Command:
    is_emitted = delivery.state is DeliveryState.EMITTED
    timed_out = (_change(delivery, DeliverySignal.ACK_TIMEOUT, now_ms),) if is_emitted else ()
    if event is None or whereabouts.node_id is None:
        return _give_up(delivery, "event_missing", now_ms, DeliverySignal.EXHAUSTED, first=timed_out)
    if exhausted(policy.resend, delivery.attempts):
        return _give_up(delivery, "max_attempts", now_ms, DeliverySignal.EXHAUSTED, first=timed_out)
    is_moved = whereabouts.place is Place.MOVED
    if is_emitted and not is_moved:
        pause_ms = round(next_delay_seconds(policy.resend, attempt=delivery.attempts, jitter=jitter) * 1000)
        due_at_ms = in_time(event, now_ms + pause_ms, now_ms=now_ms)
        return Move(change=_change(delivery, DeliverySignal.ACK_TIMEOUT, now_ms, due_at_ms=due_at_ms))
    # A gateway that is asked for the first time needs no pause before.
    resent = Change(
        event_id=delivery.event_id,
        to_agent_id=delivery.to_agent_id,
        signal=DeliverySignal.RESENT,
        at_ms=now_ms,
        due_at_ms=ack_due_at_ms(event, now_ms=now_ms, policy=policy),
        to_node_id=whereabouts.node_id,
        route_decision=whereabouts.decision,
    )
    return Resend(changes=(*timed_out, resent), to_node_id=whereabouts.node_id, is_moved=is_moved)


def _wait(delivery: Delivery, event: Event | None, now_ms: int, jitter: float, policy: DeliveryPolicy) -> Wait:
    # Spread over half the time, so that the mail of a gateway that sleeps does not come due all at once.
    pause_ms = round(policy.away_check_seconds * 1000 * (1 - jitter / 2))
    return Wait(delivery=delivery, due_at_ms=in_time(event, now_ms + pause_ms, now_ms=now_ms))


def _give_up(
    delivery: Delivery, reason: str, now_ms: int, signal: DeliverySignal, *, first: tuple[Change, ...] = ()
) -> GiveUp:
    return GiveUp(delivery=delivery, changes=(*first, _change(delivery, signal, now_ms, reason=reason)), reason=reason)


def _change(
    delivery: Delivery,
    signal: DeliverySignal,
    now_ms: int,
    *,
    due_at_ms: int | None = None,
    reason: str | None = None,
) -> Change:
    return Change(
        event_id=delivery.event_id,
        to_agent_id=delivery.to_agent_id,
        signal=signal,
        at_ms=now_ms,
        due_at_ms=due_at_ms,
        reason=reason,
    )
