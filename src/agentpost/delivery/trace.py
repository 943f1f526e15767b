"""What became of an event, or of a conversation, as a timeline: all that this gateway knows.

It has no content, but for the errors of tries that failed, for those who may read them.

Pure over reads of the store. The sender's side comes from the deliveries, the receiver's from inbox and ledger; a local
message has both. All times are those of this gateway's clock, except the sending of what others sent, which is put
between what it answers and its arrival here: a clock elsewhere cannot turn cause and effect around.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.failing import Opens, error_of
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Delivery, has_failed
from agentpost.protocol.envelope import AckEvent, Event, ReplyEvent
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import CorrId, EventId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.interface import Store
from agentpost.store.values import BacklogItem, FailedAttempt, LedgerEntry, LedgerState, Outcome

__all__ = ["Side", "Step", "TraceStep", "trace", "trace_conversation", "trace_event"]


class Side(StrEnum):
    SENDER = "sender"
    RECEIVER = "receiver"


class Step(StrEnum):
    """In the order in which they can follow each other."""

    EMITTED = "emitted"
    ROUTED = "routed"
    RESENT = "resent"
    ACCEPTED = "accepted"
    ENGAGED = "engaged"
    ATTEMPT_FAILED = "attempt_failed"
    READ = "read"
    PROCESSED = "processed"
    REPLIED = "replied"
    FAILED = "failed"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead_lettered"
    INCIDENT = "incident"
    LATE = "late"


class TraceStep(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One thing that happened. `node_id` is where, `agent_id` whom it concerns, `side` who of the two knows it.

    `error` are the words of a try that failed: content, for those who may read the message.
    """

    at_ms: int
    what: Step
    event_id: EventId
    side: Side
    kind: str | None = None
    agent_id: str | None = None
    node_id: str | None = None
    detail: str | None = None
    error: str | None = None


_RANK: Final = {step: rank for rank, step in enumerate(Step)}
_ENDS: Final = {
    DeliveryState.PROCESSED: Step.PROCESSED,
    DeliveryState.REPLIED: Step.REPLIED,
    DeliveryState.DEAD_LETTER: Step.DEAD_LETTERED,
    DeliveryState.INCIDENT: Step.INCIDENT,
}
_OUTCOMES: Final = {
    Outcome.PROCESSED: Step.PROCESSED,
    Outcome.FAILED_TERMINAL: Step.FAILED,
    Outcome.EXPIRED: Step.EXPIRED,
}


def trace(store: Store, what: str, *, sealer: Opens | None = None) -> list[TraceStep]:
    """The timeline of an event id or a corr id; empty if this gateway knows nothing of it.

    With a `sealer` it has the errors of tries that failed.
    """
    if what.startswith("corr_"):
        return trace_conversation(store, CorrId(what), sealer=sealer)
    return trace_event(store, EventId(what), sealer=sealer)


def trace_event(store: Store, event_id: EventId, *, sealer: Opens | None = None) -> list[TraceStep]:
    """One event: as its sender, as its receiver, or both."""
    items = [item for agent in store.local_agents() if (item := store.inbox_item(event_id, agent.agent_id)) is not None]
    return _in_order(store, store.deliveries_of(event_id), items, sealer)


def trace_conversation(store: Store, corr_id: CorrId, *, sealer: Opens | None = None) -> list[TraceStep]:
    """Every event of a conversation that went out from here or came in."""
    return _in_order(store, store.deliveries_by_corr(corr_id), store.inbox_by_corr(corr_id), sealer)


def _in_order(
    store: Store, deliveries: Sequence[Delivery], items: Sequence[BacklogItem], sealer: Opens | None
) -> list[TraceStep]:
    sent = {each.event_id: _sent_here(store, each.event_id) for each in deliveries}
    came = {item.entry.event_id: _read(item.raw) for item in items}
    # From when on an answer can have been sent: once its agent had it, as far as that is known here.
    had_since_ms = {(each.event_id, each.to_agent_id): each.accepted_at_ms or each.emitted_at_ms for each in deliveries}
    steps = [
        _emitted_here(store, delivery, sent[event_id])
        for event_id, delivery in {each.event_id: each for each in reversed(deliveries)}.items()
    ]
    for delivery in deliveries:
        steps.extend(_as_sender(store, delivery))
    for event_id in sent:
        steps.extend(_failed_tries(each, sealer) for each in store.failed_attempts_of(event_id))
    for item in {item.entry.event_id: item for item in reversed(items)}.values():
        event = came[item.entry.event_id]
        if event is not None and event.event_id not in sent:
            steps.append(_emitted_there(event, _sent_at_ms(event, item.entry, had_since_ms)))
    for item in items:
        event = came[item.entry.event_id]
        kind = None if event is None else event.kind.value
        is_told = item.entry.event_id in sent
        steps.extend(replace(step, kind=kind) for step in _as_receiver(store, item.entry, tells_tries=not is_told))
    depths = _depths(came | sent)
    return sorted(steps, key=lambda step: _place(step, depths))


def _place(step: TraceStep, depths: Mapping[EventId, int]) -> tuple[int, bool, int, int, str, str]:
    """Where a step stands among those of the same millisecond: causes first, and how a delivery ended last."""
    is_end = step.side is Side.SENDER and _RANK[step.what] > _RANK[Step.READ]
    return step.at_ms, is_end, depths[step.event_id], _RANK[step.what], step.event_id, step.agent_id or ""


def _depths(events: Mapping[EventId, Event | None]) -> dict[EventId, int]:
    """How many events each one answers, directly or not."""
    depths: dict[EventId, int] = {}
    for event_id in events:
        chain: list[EventId] = []
        at: EventId | None = event_id
        while at is not None and at in events and at not in depths and at not in chain:
            chain.append(at)
            at = _answers(events[at])
        depth = depths.get(at, -1) if at is not None else -1
        for each in reversed(chain):
            depth += 1
            depths[each] = depth
    return depths


def _answers(event: Event | None) -> EventId | None:
    return event.payload.ref_event_id if isinstance(event, AckEvent | ReplyEvent) else None


def _sent_here(store: Store, event_id: EventId) -> Event | None:
    stored = store.find_event(event_id)
    return None if stored is None else _read(stored.raw)


def _emitted_here(store: Store, delivery: Delivery, event: Event | None) -> TraceStep:
    return TraceStep(
        at_ms=delivery.emitted_at_ms,
        what=Step.EMITTED,
        event_id=delivery.event_id,
        side=Side.SENDER,
        kind=None if event is None else event.kind.value,
        agent_id=delivery.from_agent_id or None,
        node_id=store.node_id,
    )


def _emitted_there(event: Event, at_ms: int) -> TraceStep:
    return TraceStep(
        at_ms=at_ms,
        what=Step.EMITTED,
        event_id=event.event_id,
        side=Side.SENDER,
        kind=event.kind.value,
        agent_id=event.source_agent_id,
        node_id=event.source_node_id,
        detail=event.trace.route_decision,
    )


def _as_sender(store: Store, delivery: Delivery) -> list[TraceStep]:
    def step(at_ms: int, what: Step, detail: str | None = None, node_id: str | None = delivery.to_node_id) -> TraceStep:
        return TraceStep(
            at_ms=at_ms,
            what=what,
            event_id=delivery.event_id,
            side=Side.SENDER,
            agent_id=delivery.to_agent_id,
            node_id=node_id,
            detail=detail,
        )

    steps = [step(delivery.emitted_at_ms, Step.ROUTED, delivery.route_decision or None)]
    if delivery.attempts > 1:
        # The store keeps how often and where, not when: the step stands where the first of them can have been.
        detail = f"sent {delivery.attempts} times, last at seq {delivery.seq}"
        steps.append(step(delivery.emitted_at_ms, Step.RESENT, detail, store.node_id))
    if delivery.accepted_at_ms is not None:
        steps.append(step(delivery.accepted_at_ms, Step.ACCEPTED))
    if delivery.closed_at_ms is not None:
        what = _ENDS[delivery.state]
        if what is Step.PROCESSED and has_failed(delivery):
            what = Step.FAILED
        steps.append(step(delivery.closed_at_ms, what, delivery.reason or delivery.answered_by_event_id))
    if delivery.late is not None and delivery.late_at_ms is not None:
        steps.append(step(delivery.late_at_ms, Step.LATE, delivery.late.value))
    return steps


def _failed_tries(failed: FailedAttempt, sealer: Opens | None) -> TraceStep:
    """The last try that failed, as the agent's gateway told it."""
    many = f"{failed.attempt} of {failed.most_attempts}"
    following = f"next try at {format_ms(failed.next_at_ms)}" if failed.next_at_ms is not None else "the last one"
    return TraceStep(
        at_ms=failed.at_ms,
        what=Step.ATTEMPT_FAILED,
        event_id=failed.event_id,
        side=Side.SENDER,
        agent_id=failed.to_agent_id,
        detail=f"attempt {many}, {following}",
        error=None if sealer is None else error_of(failed, sealer),
    )


def _as_receiver(store: Store, entry: LedgerEntry, *, tells_tries: bool) -> list[TraceStep]:
    def step(at_ms: int, what: Step, detail: str | None = None) -> TraceStep:
        return TraceStep(
            at_ms=at_ms,
            what=what,
            event_id=entry.event_id,
            side=Side.RECEIVER,
            agent_id=entry.to_agent_id,
            node_id=store.node_id,
            detail=detail,
        )

    steps = [step(entry.accepted_at_ms, Step.ACCEPTED)]
    if entry.engaged_at_ms is not None:
        steps.append(step(entry.engaged_at_ms, Step.ENGAGED, f"attempt {entry.attempts}"))
    if tells_tries and entry.engaged_at_ms and entry.error is not None and entry.state is LedgerState.QUEUED:
        detail = f"attempt {entry.attempts}, next try at {format_ms(entry.due_at_ms)}"
        steps.append(step(entry.engaged_at_ms, Step.ATTEMPT_FAILED, detail))
    if entry.read_at_ms is not None:
        steps.append(step(entry.read_at_ms, Step.READ))
    if entry.settled_at_ms is not None and entry.outcome is not None:
        # The last error stays out of it: it may repeat what the agent said.
        steps.append(step(entry.settled_at_ms, _OUTCOMES[entry.outcome]))
    return steps


def _sent_at_ms(event: Event, entry: LedgerEntry, had_since_ms: Mapping[tuple[EventId, str], int]) -> int:
    said_ms = parse_ms(event.created_at, field="createdAt")
    answered = _answers(event)
    if answered is not None:
        said_ms = max(said_ms, had_since_ms.get((answered, event.source_agent_id), said_ms))
    return min(said_ms, entry.accepted_at_ms)


def _read(raw: bytes) -> Event | None:
    try:
        return decode_event(raw)
    except Refusal:
        return None
