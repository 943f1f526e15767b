"""The event envelope: one Struct per kind, all with the same head (ENV-4), and what makes an event valid.

Pure. An event is what its owner appended, byte for byte: a gateway that passes one on passes the bytes on. This
module gives the typed view of those bytes, and makes the bytes of new events.

Reading has a fast way and a careful one. The fast way decodes a whole frame in one call into Structs that know all
their fields. Whatever it does not like goes the careful way, one event at a time: unknown fields are set aside in
`unknown` and written back on encoding (ENV-6), old kind names are read as the new ones, and what is really wrong
becomes a `Refusal` that names the field.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, TypeVar

from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import replace

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import ULID_PATTERN, CorrId, EventId
from agentpost.protocol.payloads import (
    Ack,
    Contract,
    Count,
    DeadLetter,
    EventIdField,
    FromOne,
    Kind,
    Message,
    Name,
    Names,
    PayloadRef,
    PolicyVersion,
    Reply,
    Signal,
    TaskAccept,
    TaskComplete,
    TaskCreate,
    TaskFailed,
    TaskUpdate,
    Time,
    written,
)
from agentpost.protocol.plain import Plain, check_plain
from agentpost.protocol.timestamps import is_timestamp, parse_ms

__all__ = [
    "AckEvent",
    "DeadLetterEvent",
    "Envelope",
    "Event",
    "MessageEvent",
    "ReplyEvent",
    "SignalEvent",
    "TaskAcceptEvent",
    "TaskCompleteEvent",
    "TaskCreateEvent",
    "TaskFailedEvent",
    "TaskUpdateEvent",
    "Trace",
    "check",
    "is_engaged_by",
    "is_expired",
    "resend_of",
]


class Trace(Contract, frozen=True, kw_only=True):
    """How the event came to be routed as it was; `attempt` counts the sends of the same eventId (ENV-5).

    `engaged_by` says which gateway has which recipient, where `toNodes` alone would leave that open. `instead_of` is
    the dead letter that an event says again (RTY-7), or the offer that one for a task nobody has replaces.
    """

    attempt: FromOne = written(1)
    route_decision: str | None = None
    routing_policy_version: PolicyVersion = written("")
    capability_policy_version: PolicyVersion = written("")
    engaged_by: dict[str, str] = {}  # noqa: RUF012 - msgspec gives each Struct a dict of its own
    instead_of: EventIdField | None = None


class Envelope(Contract, frozen=True, kw_only=True, tag_field="kind"):
    """The head that all events share. `seq` is 0 until the owner's outbox gave the event its place."""

    kind: ClassVar[Kind]

    event_id: EventIdField
    seq: Count = 0
    source_node_id: Name
    source_agent_id: Name
    to_agent_id: Name | None = None
    # The gateways that engage its recipients, or have to hear of it: readers get an outbox filtered by this.
    to_nodes: Names = ()
    corr_id: Annotated[CorrId, Meta(max_length=31)] = CorrId("")
    created_at: Time
    expires_at: Time | None = None
    trace: Trace = written(Trace())
    payload_ref: PayloadRef | None = None
    # What other versions of the protocol say in this event and this one does not know. Never on the wire as such.
    unknown: dict[str, Plain] | UnsetType = field(default=UNSET, name="~unknown")


class MessageEvent(Envelope, frozen=True, kw_only=True, tag="message"):
    kind: ClassVar[Kind] = Kind.MESSAGE
    payload: Message


class AckEvent(Envelope, frozen=True, kw_only=True, tag="ack"):
    kind: ClassVar[Kind] = Kind.ACK
    payload: Ack


class ReplyEvent(Envelope, frozen=True, kw_only=True, tag="reply"):
    kind: ClassVar[Kind] = Kind.REPLY
    payload: Reply


class TaskCreateEvent(Envelope, frozen=True, kw_only=True, tag="task_create"):
    kind: ClassVar[Kind] = Kind.TASK_CREATE
    payload: TaskCreate


class TaskAcceptEvent(Envelope, frozen=True, kw_only=True, tag="task_accept"):
    kind: ClassVar[Kind] = Kind.TASK_ACCEPT
    payload: TaskAccept


class TaskUpdateEvent(Envelope, frozen=True, kw_only=True, tag="task_update"):
    kind: ClassVar[Kind] = Kind.TASK_UPDATE
    payload: TaskUpdate


class TaskCompleteEvent(Envelope, frozen=True, kw_only=True, tag="task_complete"):
    kind: ClassVar[Kind] = Kind.TASK_COMPLETE
    payload: TaskComplete


class TaskFailedEvent(Envelope, frozen=True, kw_only=True, tag="task_failed"):
    kind: ClassVar[Kind] = Kind.TASK_FAILED
    payload: TaskFailed


class SignalEvent(Envelope, frozen=True, kw_only=True, tag="signal"):
    kind: ClassVar[Kind] = Kind.SIGNAL
    payload: Signal


class DeadLetterEvent(Envelope, frozen=True, kw_only=True, tag="dead_letter"):
    kind: ClassVar[Kind] = Kind.DEAD_LETTER
    payload: DeadLetter


Event = (
    MessageEvent
    | AckEvent
    | ReplyEvent
    | TaskCreateEvent
    | TaskAcceptEvent
    | TaskUpdateEvent
    | TaskCompleteEvent
    | TaskFailedEvent
    | SignalEvent
    | DeadLetterEvent
)

AnyEvent = TypeVar("AnyEvent", bound=Envelope)


def resend_of(event: AnyEvent) -> AnyEvent:
    """The same event for another try: same id, next attempt (ENV-5), and no place in the outbox yet."""
    return replace(event, seq=0, trace=replace(event.trace, attempt=event.trace.attempt + 1))


def is_engaged_by(event: Envelope, *, agent_id: str, node_id: str) -> bool:
    """Whether this gateway, which the event is for, has to engage this recipient (ROUTE-1).

    Another gateway that the event is for may have the same agent, as its owner or to stand in for it.
    """
    engaged_by = event.trace.engaged_by
    return not engaged_by or engaged_by.get(agent_id) == node_id


def is_expired(event: Envelope, *, now_ms: int) -> bool:
    """Whether the event came too late to be given to an agent (ENV-7)."""
    return event.expires_at is not None and parse_ms(event.expires_at, field="expiresAt") <= now_ms


# One match over both ids is half the price of two; lengths are known by then.
_IDS_MATCH: Final = re.compile(f"evt_{ULID_PATTERN}corr_{ULID_PATTERN}").fullmatch
_EVENT_ID_MATCH: Final = re.compile(f"evt_{ULID_PATTERN}").fullmatch
_TASK_ID_MATCH: Final = re.compile(f"tsk_{ULID_PATTERN}").fullmatch
_SHA256_MATCH: Final = re.compile("[0-9a-f]{64}").fullmatch


def check(event: Event) -> None:
    """Refuse an event whose fields have the right types and the wrong meaning. The message names the field.

    This is the rest of validation after decoding, and all of it for an event that was built in this process.
    """
    if not _IDS_MATCH(event.event_id + event.corr_id):
        _refuse_ids(event)
    if not is_timestamp(event.created_at):
        raise _not_a_time("createdAt")
    if event.expires_at is not None and not is_timestamp(event.expires_at):
        raise _not_a_time("expiresAt")
    if event.unknown is not UNSET:
        check_plain(event.unknown, field="")
    if event.payload_ref is not None and not _SHA256_MATCH(event.payload_ref.sha256):
        raise _refuse("payloadRef.sha256", "must be 64 lowercase hex digits")
    _CHECKS[type(event)](event)


def _check_message(event: MessageEvent) -> None:
    if event.trace.instead_of is not None:
        _check_event_id(event.trace.instead_of, "trace.insteadOf")
    if event.payload.context is not None:
        check_plain(event.payload.context, field="payload.context")


def _check_ack(event: AckEvent) -> None:
    ack = event.payload
    if not _EVENT_ID_MATCH(ack.ref_event_id):
        _check_event_id(ack.ref_event_id, "payload.refEventId")
    # Mostly the time at which it was made, which was looked at.
    if ack.acked_at != event.created_at or ack.eta_at is not None:
        _check_times(ackedAt=ack.acked_at, etaAt=ack.eta_at)


def _check_reply(event: ReplyEvent) -> None:
    _check_event_id(event.payload.ref_event_id, "payload.refEventId")
    if event.trace.instead_of is not None:
        _check_event_id(event.trace.instead_of, "trace.insteadOf")
    check_plain(event.payload.context, field="payload.context")


def _check_task_create(event: TaskCreateEvent) -> None:
    create = event.payload
    _check_task_id(create.task_id)
    _check_times(deadlineAt=create.deadline_at, requiredBy=create.required_by)
    check_plain(create.context, field="payload.context")
    _check_content(event, title=create.title, description=create.description)  # TASK-1


def _check_task_accept(event: TaskAcceptEvent) -> None:
    accept = event.payload
    _check_move(event)
    _check_times(etaAt=accept.eta_at)
    if accept.eta_at is None and accept.eta_seconds is None:
        raise _refuse("payload.etaAt", "or payload.etaSeconds is required")  # TASK-2


def _check_task_update(event: TaskUpdateEvent) -> None:
    _check_move(event)
    _check_times(revisedEtaAt=event.payload.revised_eta_at)


def _check_task_complete(event: TaskCompleteEvent) -> None:
    complete = event.payload
    _check_move(event)
    _check_times(completedAt=complete.completed_at, installedAt=complete.installed_at)
    check_plain(complete.output, field="payload.output")
    _check_content(event, resultSummary=complete.result_summary)  # TASK-4


def _check_task_failed(event: TaskFailedEvent) -> None:
    _check_move(event)
    _check_times(failedAt=event.payload.failed_at)
    _check_content(event, errorSummary=event.payload.error_summary)  # TASK-4


def _check_signal(event: SignalEvent) -> None:
    if event.payload.ref_event_id is not None:
        _check_event_id(event.payload.ref_event_id, "payload.refEventId")
    check_plain(event.payload.details, field="payload.details")


def _check_dead_letter(event: DeadLetterEvent) -> None:
    _check_event_id(event.payload.ref_event_id, "payload.refEventId")
    _check_times(deadLetteredAt=event.payload.dead_lettered_at)


# A look-up by class costs a tenth of a chain of patterns, and this runs once for every event that is read.
_CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    MessageEvent: _check_message,
    AckEvent: _check_ack,
    ReplyEvent: _check_reply,
    TaskCreateEvent: _check_task_create,
    TaskAcceptEvent: _check_task_accept,
    TaskUpdateEvent: _check_task_update,
    TaskCompleteEvent: _check_task_complete,
    TaskFailedEvent: _check_task_failed,
    SignalEvent: _check_signal,
    DeadLetterEvent: _check_dead_letter,
}


def _check_event_id(event_id: EventId, name: str) -> None:
    if not _EVENT_ID_MATCH(event_id):
        raise _refuse(name, "must be evt_ and a ULID")


def _check_move(event: TaskAcceptEvent | TaskUpdateEvent | TaskCompleteEvent | TaskFailedEvent) -> None:
    _check_task_id(event.payload.task_id)
    if event.trace.instead_of is not None:
        _check_event_id(event.trace.instead_of, "trace.insteadOf")


def _check_task_id(task_id: str) -> None:
    if not _TASK_ID_MATCH(task_id):
        raise _refuse("payload.taskId", "must be tsk_ and a ULID")


def _check_times(**times: str | None) -> None:
    for name, value in times.items():
        if value is not None and not is_timestamp(value):
            raise _not_a_time(f"payload.{name}")


def _check_content(event: TaskCreateEvent | TaskCompleteEvent | TaskFailedEvent, **content: str | None) -> None:
    """Refuse an event that lacks what its contract has it say: in the clear, sealed, or behind the payloadRef."""
    if event.payload.sealed is None and event.payload_ref is None:
        for name, text in content.items():
            if text is None:
                raise _refuse(f"payload.{name}", "is required")


def _refuse_ids(event: Event) -> None:
    _check_event_id(event.event_id, "eventId")
    raise _refuse("corrId", "must be corr_ and a ULID")


def _refuse(name: str, problem: str) -> Refusal:
    return Refusal(Code.INVALID_FIELD, f"{name} {problem}", field=name)


def _not_a_time(name: str) -> Refusal:
    return _refuse(name, "must be a time like 2026-02-25T16:22:10.123Z, in UTC")
