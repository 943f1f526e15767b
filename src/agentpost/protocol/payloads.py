"""What each kind of event says: one frozen Struct per contract (ACK-1, TASK-1..4).

Knows the shape, not the meaning: `envelope.py` decides what is valid, the lifecycles what follows. Fields are
camelCase on the wire. A field marked *content* is what people and agents say to each other: it is sealed for the
recipients' gateways before it enters an outbox (PIPE-4), in which case `sealed` stands in its place, or
`payloadRef` of the envelope points to it. All other fields stay readable for routing, SLAs and the pipeline.
"""

from enum import StrEnum
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, field

from agentpost.protocol.ids import EventId, TaskId

__all__ = [
    "Ack",
    "AckType",
    "DeadLetter",
    "Kind",
    "Message",
    "Payload",
    "PayloadRef",
    "Priority",
    "Reply",
    "Sealed",
    "Signal",
    "SkillRef",
    "TaskAccept",
    "TaskComplete",
    "TaskCreate",
    "TaskFailed",
    "TaskUpdate",
]


class Kind(StrEnum):
    MESSAGE = "message"
    ACK = "ack"
    REPLY = "reply"
    TASK_CREATE = "task_create"
    TASK_ACCEPT = "task_accept"
    TASK_UPDATE = "task_update"
    TASK_COMPLETE = "task_complete"
    TASK_FAILED = "task_failed"
    SIGNAL = "signal"
    DEAD_LETTER = "dead_letter"


class AckType(StrEnum):
    ACCEPTED = "accepted"
    PROCESSED = "processed"
    FAILED_TERMINAL = "failed_terminal"


class Priority(StrEnum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


# Lengths are checked while decoding, in C; forms (an id, a time) by `envelope.check`, one pass over all of them.
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Names = Annotated[tuple[Name, ...], Meta(max_length=1000)]
Code = Annotated[str, Meta(min_length=1, max_length=128)]
# Copied into every answer: what is long here would make answers that are too large to be given.
PolicyVersion = Annotated[str, Meta(max_length=128)]
Time = Annotated[str, Meta(min_length=24, max_length=24)]
EventIdField = Annotated[EventId, Meta(min_length=30, max_length=30)]
TaskIdField = Annotated[TaskId, Meta(min_length=30, max_length=30)]
Seconds = Annotated[int, Meta(ge=0, le=31_536_000)]
Percent = Annotated[int, Meta(ge=0, le=100)]
# Whole numbers stop at what 64 bits with a sign hold: msgpack, SQLite and Parquet all do.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
FromOne = Annotated[int, Meta(ge=1, le=2**63 - 1)]


T = TypeVar("T")


def written(default: T) -> T:
    """A default that is written on the wire too: readers of other makes need not know it. Optionals are left out."""
    return field(default_factory=lambda: default)


# gc=False: these hold no cycles, and millions of them need not be looked at by the collector.
class Contract(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """The base of every contract: immutable, named fields, camelCase on the wire."""


class Sealed(Contract, frozen=True, kw_only=True):
    """Content that only the gateways named in `keys` can open: one content key, wrapped for each of them."""

    suite: Code
    keys: dict[str, bytes]
    nonce: bytes
    ciphertext: bytes


class PayloadRef(Contract, frozen=True, kw_only=True):
    """Content too large for the event (PIPE-5): the address, sha256 of what is stored, is of the encrypted bytes."""

    sha256: Annotated[str, Meta(min_length=64, max_length=64)]
    size_bytes: FromOne
    suite: Code
    keys: dict[str, bytes]


class SkillRef(Contract, frozen=True, kw_only=True):
    """A skill as an event names it. Unlike the room's `snapshot.SkillRef` it is strict, and keeps unknown fields."""

    name: Name
    version: Name
    path: str | None = None


class Message(Contract, frozen=True, kw_only=True):
    to_agents: Names = written(())
    required_capabilities: Names = ()
    priority: Priority = written(Priority.NORMAL)
    expects_reply: bool = written(False)
    subject: str | None = None  # content
    body: str | None = None  # content
    context: Any = None  # content
    sealed: Sealed | None = None


class Reply(Contract, frozen=True, kw_only=True):
    ref_event_id: EventIdField
    subject: str | None = None  # content
    body: str | None = None  # content
    context: Any = None  # content
    sealed: Sealed | None = None


class Ack(Contract, frozen=True, kw_only=True):
    ref_event_id: EventIdField
    ref_kind: Kind
    ack_type: AckType
    acked_by_node_id: Name
    acked_by_agent_id: Name
    acked_at: Time
    eta_at: Time | None = None
    eta_seconds: Seconds | None = None
    reason: Code | None = None
    # How many tries the agent's gateway has made; said with failed_terminal.
    attempts: Count | None = None
    plan_summary: str | None = None  # content
    error_summary: str | None = None  # content
    sealed: Sealed | None = None


class TaskCreate(Contract, frozen=True, kw_only=True):
    task_id: TaskIdField
    to_agents: Names = written(())
    required_capabilities: Names = written(())
    priority: Priority = written(Priority.NORMAL)
    requester_agent_id: Name
    response_required: bool = written(True)
    deadline_at: Time | None = None
    task_type: Code | None = None
    capability_id: Name | None = None
    delegation_skill_ref: SkillRef | None = None
    required_by: Time | None = None
    title: str | None = None  # content
    description: str | None = None  # content
    context: Any = None  # content
    sealed: Sealed | None = None


class TaskAccept(Contract, frozen=True, kw_only=True):
    task_id: TaskIdField
    accepted_by_agent_id: Name
    eta_at: Time | None = None
    eta_seconds: Seconds | None = None
    plan_summary: str | None = None  # content
    sealed: Sealed | None = None


class TaskUpdate(Contract, frozen=True, kw_only=True):
    task_id: TaskIdField
    updated_by_agent_id: Name | None = None
    status: Code = written("in_progress")
    progress: Percent | None = None
    revised_eta_at: Time | None = None
    notify: bool = False
    note: str | None = None  # content
    sealed: Sealed | None = None


class TaskComplete(Contract, frozen=True, kw_only=True):
    task_id: TaskIdField
    completed_by_agent_id: Name
    completed_at: Time
    result_ref: str | None = None
    installed_version: Name | None = None
    installed_at: Time | None = None
    result_summary: str | None = None  # content
    output: Any = None  # content
    sealed: Sealed | None = None


class TaskFailed(Contract, frozen=True, kw_only=True):
    task_id: TaskIdField
    failed_by_agent_id: Name
    failed_at: Time
    failure_class: Code
    error_summary: str | None = None  # content
    sealed: Sealed | None = None


class Signal(Contract, frozen=True, kw_only=True):
    """A hint between gateways: presence, maintenance, a status request, an attempt that failed.

    `details` is never content. The error of an attempt that failed is, so it is only there as `sealed`.
    """

    signal: Code
    ref_event_id: EventIdField | None = None
    details: dict[str, str | int | float | bool | None] = {}
    sealed: Sealed | None = None


class DeadLetter(Contract, frozen=True, kw_only=True):
    ref_event_id: EventIdField
    ref_kind: Kind
    to_agent_id: Name
    reason: Code
    attempts: Count
    dead_lettered_at: Time
    last_error: str | None = None


Payload = Message | Ack | Reply | TaskCreate | TaskAccept | TaskUpdate | TaskComplete | TaskFailed | Signal | DeadLetter
