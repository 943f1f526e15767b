"""The mailbox protocol's messages and states (MBX-1, MBX-2): what travels, and how a message's life may go.

Knows nothing of files, sockets or clocks; the four transports and the store share this page. Names on the
wire are snake_case or camelCase, both are read and either is written; times are unix seconds; `attempt`
counts from 0.

    pending ── dequeue ──► in_flight ── ack ──► acked
       ▲                       │
       │                       └── nack, in-flight timeout ──► nacked ── attempt ≥ max ──► dead_letter
       └────────────────────── attempt < max ────────────────────┘
    pending, in_flight ── past its time to live ──► expired

Ids and session names are data: any text that is not empty, NUL and slashes included, and never a path
(MBX-11).
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Self, TypeVar, cast

import msgspec

from agentpost.protocol.backoff import MAILBOX_RETRY, next_delay_seconds
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.machine import Table
from agentpost.protocol.plain import MAX_DEPTH, check_plain

__all__ = [
    "MailboxMessage",
    "DeadLetterEntry",
    "EnqueueAck",
    "MessageSummary",
    "WireCase",
    "decode_message",
    "encode_message",
    "from_wire",
    "restored_message",
    "spelled",
    "to_wire",
    "MAILBOX",
    "MailboxState",
    "MailboxSignal",
    "NackOutcome",
    "nack_outcome",
    "retry_delay_seconds",
    "BASE_BACKOFF_SECONDS",
    "IN_FLIGHT_TIMEOUT_SECONDS",
    "MAX_MESSAGE_BYTES",
    "MAX_RETRIES",
    "PROTOCOL_VERSION",
    "TTL_SECONDS",
]

PROTOCOL_VERSION: Final = "1.0"
BASE_BACKOFF_SECONDS: Final = MAILBOX_RETRY.base_seconds
MAX_RETRIES: Final = MAILBOX_RETRY.max_attempts - 1
IN_FLIGHT_TIMEOUT_SECONDS: Final = 30
TTL_SECONDS: Final = 86_400
MAX_MESSAGE_BYTES: Final = 1024 * 1024


class MailboxState(StrEnum):
    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    ACKED = "acked"
    NACKED = "nacked"
    DEAD_LETTER = "dead_letter"
    EXPIRED = "expired"


class MailboxSignal(StrEnum):
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    IN_FLIGHT_TIMEOUT = "in-flight timeout"
    RETRY = "retry"
    EXHAUSTED = "retries exhausted"
    TTL = "ttl"


_S = MailboxState
_G = MailboxSignal

MAILBOX: Final = Table[MailboxState, MailboxSignal](
    name="mailbox",
    initial=_S.PENDING,
    terminal=frozenset({_S.ACKED, _S.DEAD_LETTER, _S.EXPIRED}),
    arrows=frozenset(
        {
            (_S.PENDING, _S.IN_FLIGHT),
            (_S.PENDING, _S.EXPIRED),
            (_S.IN_FLIGHT, _S.ACKED),
            (_S.IN_FLIGHT, _S.NACKED),
            (_S.IN_FLIGHT, _S.EXPIRED),
            (_S.NACKED, _S.PENDING),
            (_S.NACKED, _S.DEAD_LETTER),
        }
    ),
    signals={
        (_S.PENDING, _G.DEQUEUE): (_S.IN_FLIGHT,),
        (_S.PENDING, _G.TTL): (_S.EXPIRED,),
        (_S.IN_FLIGHT, _G.ACK): (_S.ACKED,),
        (_S.IN_FLIGHT, _G.NACK): (_S.NACKED,),
        # MBX-6: silence is a nack that nobody sent.
        (_S.IN_FLIGHT, _G.IN_FLIGHT_TIMEOUT): (_S.NACKED,),
        (_S.IN_FLIGHT, _G.TTL): (_S.EXPIRED,),
        # A nacked message has no TTL arrow: it is pending again first, and may expire there.
        (_S.NACKED, _G.RETRY): (_S.PENDING,),
        (_S.NACKED, _G.EXHAUSTED): (_S.DEAD_LETTER,),
        # MBX-5: a repeated ack, and a nack that comes too late for a dead letter, change nothing.
        (_S.ACKED, _G.ACK): (),
        (_S.DEAD_LETTER, _G.NACK): (),
    },
)


class NackOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What follows a nack: RETRY after `delay_seconds`, or EXHAUSTED. `attempts` counts deliveries."""

    signal: MailboxSignal
    attempts: int
    delay_seconds: float | None


def nack_outcome(
    attempt: int, max_retries: int = MAX_RETRIES, base_seconds: float = BASE_BACKOFF_SECONDS
) -> NackOutcome:
    """Decide what becomes of a message whose delivery number `attempt` (0 = the first) was nacked.

    Three retries are four deliveries: attempts 0, 1 and 2 are tried again, attempt 3 becomes a dead letter
    with `attempts` 4.
    """
    if attempt >= max_retries:
        return NackOutcome(signal=_G.EXHAUSTED, attempts=attempt + 1, delay_seconds=None)
    delay_seconds = retry_delay_seconds(attempt, base_seconds)
    return NackOutcome(signal=_G.RETRY, attempts=attempt + 1, delay_seconds=delay_seconds)


def retry_delay_seconds(attempt: int, base_seconds: float = BASE_BACKOFF_SECONDS) -> float:
    """The pause after delivery `attempt` (0 = the first) was nacked: base x 2^attempt, at most a day."""
    policy = msgspec.structs.replace(
        MAILBOX_RETRY,
        base_seconds=base_seconds,
        max_delay_seconds=max(base_seconds, MAILBOX_RETRY.max_delay_seconds),
    )
    return next_delay_seconds(policy, attempt=attempt + 1, jitter=0)


class WireCase(StrEnum):
    """How names are written: snake_case, or camelCase for clients in JavaScript."""

    SNAKE = "snake"
    CAMEL = "camel"


_Name = Annotated[str, msgspec.Meta(min_length=1)]
# MB says uint64; we stop at what a signed 64-bit column holds, some 292 billion years ahead.
_UnixSeconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class MailboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `sender` is `from` on the wire; `extra` holds the fields that this version does not know.

    `msg_id` and `created_at` stay the same across retries; `attempt` is counted by the mailbox.
    """

    msg_id: _Name
    sender: _Name = msgspec.field(name="from")
    to: _Name
    payload: str
    created_at: _UnixSeconds
    attempt: _Count
    protocol_version: str | None = None
    # MBX-1: ignored, and not lost on the way through.
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.extra:
            return
        # A field has one value: what this type names itself is never read from the leftovers as well.
        spellings = _spellings(type(self))
        if not spellings.keys().isdisjoint(self.extra):
            kept = {name: value for name, value in self.extra.items() if name not in spellings}
            msgspec.structs.force_setattr(self, "extra", kept)


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message without unknown fields, in snake_case: msgspec reads and writes it without a detour."""

    msg_id: str
    sender: str = msgspec.field(name="from")
    to: str
    payload: str
    created_at: int
    attempt: int
    protocol_version: str | None = None


_PLAIN: Final = msgspec.json.Decoder(_Plain)


class DeadLetterEntry(MailboxMessage, frozen=True, kw_only=True):
    """A message that ran out of retries (MBX-7), with why, when, and after how many deliveries."""

    reason: str
    failed_at: _UnixSeconds
    attempts: _Count

    @classmethod
    def of(
        cls, message: MailboxMessage, *, attempts: int, failed_at: int, reason: str = "max_retries exhausted"
    ) -> Self:
        """The dead letter that `message` becomes."""
        fields = {name: getattr(message, name) for name in MailboxMessage.__struct_fields__}
        return cls(**fields, reason=reason, failed_at=failed_at, attempts=attempts)


class EnqueueAck(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an enqueue: `queued` is False where this id was seen before (MBX-3)."""

    msg_id: _Name
    queued: bool
    pending: _Count


class MessageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a peek: everything but the payload."""

    msg_id: _Name
    sender: _Name = msgspec.field(name="from")
    created_at: _UnixSeconds
    attempt: _Count
    state: MailboxState


W = TypeVar("W", MailboxMessage, DeadLetterEntry, EnqueueAck, MessageSummary)


def decode_message(data: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> MailboxMessage:
    """Read one message from JSON; whatever is wrong with it is a `Refusal` that says what."""
    if len(data) > max_bytes:
        raise Refusal(Code.TOO_LARGE, f"{len(data)} bytes are more than the {max_bytes} a message may have")
    try:
        decoded: object = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError:
        raise Refusal(Code.MALFORMED, "the message is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise Refusal(Code.MALFORMED, f"the message is not JSON: {error}") from None
    return from_wire(MailboxMessage, decoded)


def encode_message(message: MailboxMessage, *, case: WireCase = WireCase.SNAKE) -> bytes:
    """Write one message as JSON, unknown fields included, under the names that the reader prefers."""
    if message.extra or case is WireCase.CAMEL:
        return msgspec.json.encode(to_wire(message, case=case))
    plain = _Plain(
        message.msg_id,
        message.sender,
        message.to,
        message.payload,
        message.created_at,
        message.attempt,
        message.protocol_version,
    )
    return msgspec.json.encode(plain)


def restored_message(data: bytes, *, attempt: int) -> MailboxMessage:
    """A message as `encode_message` wrote it in snake_case, at a later attempt. What was checked once is not again."""
    try:
        plain = _PLAIN.decode(data)
    except msgspec.ValidationError:
        return _restored_with_extra(data, attempt)
    return MailboxMessage(
        msg_id=plain.msg_id,
        sender=plain.sender,
        to=plain.to,
        payload=plain.payload,
        created_at=plain.created_at,
        attempt=attempt,
        protocol_version=plain.protocol_version,
    )


def _restored_with_extra(data: bytes, attempt: int) -> MailboxMessage:
    fields: dict[str, Any] = msgspec.json.decode(data)
    known = {name: fields.pop(name) for name in _wire_names(MailboxMessage).values() if name in fields}
    known["attempt"] = attempt
    known["extra"] = fields
    return msgspec.convert(known, MailboxMessage)


def from_wire(kind: type[W], wire: object) -> W:
    """Read one of the protocol's values from a decoded JSON object, in either spelling.

    Checks everything that could make a later step stumble: types, ranges, depth, and text that is not
    Unicode. Size is checked where bytes come in.
    """
    if not isinstance(wire, dict):
        raise Refusal(Code.MALFORMED, "expected one JSON object")
    fields = cast("dict[str, Any]", wire)
    check_plain(fields, field="")
    spellings = _spellings(kind)
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in spellings:
            extra[name] = value
        elif known.setdefault(spellings[name], value) != value:
            field = spellings[name]
            raise Refusal(Code.INVALID_FIELD, f"{field} is given twice, with two values", field=field)
    if extra and issubclass(kind, MailboxMessage):
        known["extra"] = extra
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None


def spelled(extra: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of a message's unknown fields that have one of these names, in snake_case or camelCase."""
    either = {spelling: name for name in names for spelling in (_camel(name), name)}
    return {either[name]: value for name, value in extra.items() if name in either}


def to_wire(
    value: MailboxMessage | DeadLetterEntry | EnqueueAck | MessageSummary, *, case: WireCase = WireCase.SNAKE
) -> dict[str, Any]:
    """The JSON object of one of the protocol's values. A field without a value is left out."""
    wire: dict[str, Any] = {}
    for attribute, name in _wire_names(type(value), case).items():
        content = getattr(value, attribute)
        if content is not None:
            wire[name] = content.value if isinstance(content, StrEnum) else content
    if isinstance(value, MailboxMessage):
        wire.update(value.extra)
    return wire


def _camel(snake: str) -> str:
    first, *rest = snake.split("_")
    return first + "".join(word.title() for word in rest)


@cache
def _wire_names(kind: type[msgspec.Struct], case: WireCase = WireCase.SNAKE) -> Mapping[str, str]:
    """Attribute → name on the wire."""
    names = {each.name: each.encode_name for each in msgspec.structs.fields(kind) if each.name != "extra"}
    return {name: _camel(wire) for name, wire in names.items()} if case is WireCase.CAMEL else names


@cache
def _spellings(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """Every spelling that is read → its snake_case."""
    names = _wire_names(kind).values()
    return {spelling: snake for snake in names for spelling in (snake, _camel(snake))}


def _invalid_field(problem: str) -> Refusal:
    path = re.search(r"at `\$\.([^`]+)`$", problem) or re.search(r"required field `([^`]+)`", problem)
    field = None if path is None else path.group(1)
    return Refusal(Code.INVALID_FIELD, problem.replace("`$.", "`"), field=field)


def _too_deep() -> Refusal:
    return Refusal(Code.TOO_DEEP, f"nested deeper than {MAX_DEPTH} levels")
