"""What became of a message that was sent from here, for each of its recipients, with the words of their replies."""

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.failing import FORGOTTEN_MS, FailedTry, failed_try_of
from agentpost.delivery.sealing import MOST_ANSWER_BYTES, Sealer
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Delivery, has_failed
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.store.interface import Store
from agentpost.store.values import FailedAttempt

__all__ = ["SentMessage", "SentTo", "sent_message"]


class SentTo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What became of a message for one recipient. `answer` is the body of its reply.

    Many large replies are not told at once: `answer_left_out` is one to be read in the inbox of who asked.

    `has_failed` says of one that is over that the agent has not dealt with it; `reason` says why. `resent_as` is the
    message that an operator sent instead of one that has failed.

    `failing` is the last try of the agent that failed, while it is tried and when it was given up. `held_by` is an
    earlier message of the same sender that the agent fails with: this one waits behind it, for as long as that one is
    tried. `late` is what the recipient's gateway said after the end: a dead letter that arrived after all.
    """

    to_agent_id: str
    to_node_id: str | None
    state: DeliveryState
    is_over: bool
    attempts: int
    has_failed: bool = False
    reason: str | None = None
    answered_by_event_id: EventId | None = None
    answer: str | None = None
    answer_left_out: bool = False
    resent_as: EventId | None = None
    failing: FailedTry | None = None
    held_by: EventId | None = None
    late: DeliverySignal | None = None
    late_at_ms: int | None = None


class SentMessage(Struct, frozen=True, kw_only=True, rename="camel"):
    event_id: EventId
    deliveries: list[SentTo]

    @property
    def is_over(self) -> bool:
        return all(delivery.is_over for delivery in self.deliveries)


def sent_message(store: Store, sealer: Sealer, event_id: EventId, *, now_ms: int) -> SentMessage:
    found = store.deliveries_of(event_id)
    if not found:
        raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} was not sent from this gateway", field="eventId")
    failed = {each.to_agent_id: each for each in store.failed_attempts_of(event_id)}
    told: list[SentTo] = []
    room = MOST_ANSWER_BYTES
    for delivery in found:
        sent = _sent_to(store, sealer, delivery, has_room=room > 0)
        told.append(_with_trouble(sent, store, sealer, delivery, failed.get(delivery.to_agent_id), now_ms))
        room -= len(sent.answer or "")
    return SentMessage(event_id=event_id, deliveries=told)


def _sent_to(store: Store, sealer: Sealer, delivery: Delivery, *, has_room: bool) -> SentTo:
    answered_by = delivery.answered_by_event_id
    return SentTo(
        to_agent_id=delivery.to_agent_id,
        to_node_id=delivery.to_node_id,
        state=delivery.state,
        is_over=delivery.state in DELIVERY.terminal,
        has_failed=has_failed(delivery),
        attempts=delivery.attempts,
        reason=delivery.reason,
        answered_by_event_id=answered_by,
        answer=_answer(store, sealer, delivery) if answered_by and has_room else None,
        answer_left_out=answered_by is not None and not has_room,
        resent_as=delivery.resent_as,
        late=delivery.late,
        late_at_ms=delivery.late_at_ms,
    )


def _with_trouble(
    sent: SentTo, store: Store, sealer: Sealer, delivery: Delivery, failed: FailedAttempt | None, now_ms: int
) -> SentTo:
    """The same with what the agent's gateway says of tries that failed, as long as that matters."""
    is_dealt_with = sent.is_over and not sent.has_failed and sent.state is not DeliveryState.INCIDENT
    if failed is not None and not is_dealt_with:
        return replace(sent, failing=failed_try_of(failed, sealer))
    if delivery.state is DeliveryState.ACCEPTED:
        return replace(sent, held_by=store.failing_before(delivery, after_ms=now_ms - FORGOTTEN_MS))
    return sent


def _answer(store: Store, sealer: Sealer, delivery: Delivery) -> str | None:
    """The words of a reply, if it is here: it came for the agent that asked."""
    if delivery.answered_by_event_id is None:
        return None
    item = store.inbox_item(delivery.answered_by_event_id, delivery.from_agent_id)
    if item is None:
        return None
    try:
        return sealer.open(decode_event(item.raw)).body
    except Refusal:
        return None
