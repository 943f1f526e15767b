"""What may be asked of a mailbox at all: names, sizes, times. Every implementation refuses the rest the same way."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from agentpost.mailbox.interface import MAX_BATCH, MAX_PAGE
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import MAX_MESSAGE_BYTES, MailboxMessage, encode_message, from_wire, to_wire

__all__ = [
    "check_batch",
    "check_extension",
    "check_messages",
    "check_name",
    "check_page",
    "check_wait",
    "checked_reason",
]

MAX_NAME_BYTES: Final = 64 * 1024
MAX_REASON_BYTES: Final = 16 * 1024
MAX_EXTENSION_SECONDS: Final = 86_400


def check_messages(messages: Sequence[MailboxMessage]) -> list[bytes]:
    """Refuse what nobody may enqueue; gives the messages as JSON."""
    check_batch(len(messages))
    bodies: list[bytes] = []
    for message in messages:
        body = _encoded(message)
        for field, name in (("msg_id", message.msg_id), ("from", message.sender), ("to", message.to)):
            check_name(name, field)
        if len(body) > MAX_MESSAGE_BYTES:
            raise Refusal(Code.TOO_LARGE, f"{len(body)} bytes are more than the {MAX_MESSAGE_BYTES} a message may have")
        bodies.append(body)
    return bodies


def _encoded(message: MailboxMessage) -> bytes:
    """The message as JSON. A program may have put anything into it: what the wire would refuse is refused here."""
    try:
        if not message.extra:
            fields = {
                "msg_id": message.msg_id,
                "from": message.sender,
                "to": message.to,
                "payload": message.payload,
                "created_at": message.created_at,
                "attempt": message.attempt,
                "protocol_version": message.protocol_version,
            }
            msgspec.convert(fields, MailboxMessage)
            return encode_message(message)
    except (msgspec.ValidationError, UnicodeEncodeError):
        # The slower way below says what it is.
        pass
    return encode_message(from_wire(MailboxMessage, to_wire(message)))


def check_name(name: str, field: str) -> None:
    """Refuse what is no name: nothing, too much, or text that is not Unicode. Anything else is one (MBX-11)."""
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        raise Refusal(Code.INVALID_FIELD, f"{field} is not Unicode text", field=field) from None
    if not 0 < size <= MAX_NAME_BYTES:
        raise Refusal(Code.INVALID_FIELD, f"{field} must have 1 to {MAX_NAME_BYTES} bytes, not {size}", field=field)


def checked_reason(reason: str) -> str:
    """The reason of a nack; a long one is cut off, because it is kept with the dead letter for ever."""
    try:
        size = len(reason.encode())
    except UnicodeEncodeError:
        raise Refusal(Code.INVALID_FIELD, "reason is not Unicode text", field="reason") from None
    return reason if size <= MAX_REASON_BYTES else reason[: MAX_REASON_BYTES // 4] + " …"


def check_batch(count: int) -> None:
    if not 1 <= count <= MAX_BATCH:
        raise Refusal(Code.INVALID_FIELD, f"1 to {MAX_BATCH} messages at a time, not {count}", field="limit")


def check_page(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise Refusal(Code.INVALID_FIELD, f"limit must be between 1 and {MAX_PAGE}", field="limit")


def check_wait(seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise Refusal(Code.INVALID_FIELD, "wait_seconds must be 0 or more", field="wait_seconds")


def check_extension(seconds: float) -> None:
    if not (math.isfinite(seconds) and 0 < seconds <= MAX_EXTENSION_SECONDS):
        raise Refusal(
            Code.INVALID_FIELD, f"seconds must be more than 0 and at most {MAX_EXTENSION_SECONDS}", field="seconds"
        )
