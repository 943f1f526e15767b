"""The operations of a mailbox as calls with JSON: a method's name, named parameters, a result. For every transport.

Names are read in snake_case and camelCase and written as the caller likes (MBX-1). Pure, but for the mailbox it calls.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec

from agentpost.mailbox.interface import MAX_PAGE, MailboxProtocol
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import (
    DeadLetterEntry,
    EnqueueAck,
    MailboxMessage,
    MessageSummary,
    WireCase,
    from_wire,
    to_wire,
)

__all__ = ["METHODS", "MAX_WAIT_SECONDS", "answer", "error_of", "handed_out", "name_of", "refusal_of"]

# Longer than any proxy keeps a silent request; who wants to wait longer asks again.
MAX_WAIT_SECONDS: Final = 60.0

T = TypeVar("T")


class _Parameters:
    """The parameters of one call, each read once under either spelling, and none left over."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        camel = name.split("_")[0] + "".join(word.title() for word in name.split("_")[1:])
        value = self._given.pop(name, self._given.pop(camel, default))
        if value is None and default is None:
            raise Refusal(Code.INVALID_FIELD, f"{name} is missing", field=name)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise Refusal(Code.INVALID_FIELD, f"{name}: {error}", field=name) from None

    def text(self, name: str) -> str:
        return self.take(name, str)

    def maybe_text(self, name: str) -> str | None:
        return self.take(name, str) if name in self._given else None

    def seconds(self, name: str, *, default: float, most: float) -> float:
        seconds = self.take(name, float, default)
        if not (math.isfinite(seconds) and 0 <= seconds <= most):
            raise Refusal(Code.INVALID_FIELD, f"{name} must be from 0 to {most:g}", field=name)
        return seconds

    def end(self) -> None:
        if self._given:
            name = next(iter(self._given))
            raise Refusal(Code.INVALID_FIELD, f"{name} is no parameter of this call", field=name)


_Call = Callable[[MailboxProtocol, _Parameters], Awaitable[Any]]


async def _enqueue(mailbox: MailboxProtocol, given: _Parameters) -> EnqueueAck:
    message = from_wire(MailboxMessage, given.take("message", dict[str, Any]))
    given.end()
    return await mailbox.enqueue(message)


async def _enqueue_many(mailbox: MailboxProtocol, given: _Parameters) -> list[EnqueueAck]:
    messages = [from_wire(MailboxMessage, each) for each in given.take("messages", list[Any])]
    given.end()
    return await mailbox.enqueue_many(messages)


async def _dequeue(mailbox: MailboxProtocol, given: _Parameters) -> MailboxMessage | None:
    session, wait = given.text("session"), given.seconds("wait_seconds", default=0, most=MAX_WAIT_SECONDS)
    given.end()
    return await mailbox.dequeue(session, wait_seconds=wait)


async def _dequeue_many(mailbox: MailboxProtocol, given: _Parameters) -> list[MailboxMessage]:
    session, wait = given.text("session"), given.seconds("wait_seconds", default=0, most=MAX_WAIT_SECONDS)
    limit = given.take("limit", int)
    given.end()
    return await mailbox.dequeue_many(session, limit, wait_seconds=wait)


async def _ack(mailbox: MailboxProtocol, given: _Parameters) -> None:
    session, msg_id = given.text("session"), given.text("msg_id")
    given.end()
    await mailbox.ack(session, msg_id)


async def _ack_many(mailbox: MailboxProtocol, given: _Parameters) -> None:
    session, msg_ids = given.text("session"), given.take("msg_ids", list[str])
    given.end()
    await mailbox.ack_many(session, msg_ids)


async def _nack(mailbox: MailboxProtocol, given: _Parameters) -> None:
    session, msg_id, reason = given.text("session"), given.text("msg_id"), given.take("reason", str, "")
    given.end()
    await mailbox.nack(session, msg_id, reason)


async def _extend(mailbox: MailboxProtocol, given: _Parameters) -> None:
    session, msg_id, seconds = given.text("session"), given.text("msg_id"), given.take("seconds", float)
    given.end()
    await mailbox.extend(session, msg_id, seconds)


async def _peek(mailbox: MailboxProtocol, given: _Parameters) -> list[MessageSummary]:
    session, after, limit = given.text("session"), given.maybe_text("after"), given.take("limit", int, MAX_PAGE)
    given.end()
    return await mailbox.peek(session, after=after, limit=limit)


async def _purge(mailbox: MailboxProtocol, given: _Parameters) -> None:
    session = given.text("session")
    given.end()
    await mailbox.purge(session)


async def _peek_dead_letter(mailbox: MailboxProtocol, given: _Parameters) -> list[DeadLetterEntry]:
    session, after, limit = given.text("session"), given.maybe_text("after"), given.take("limit", int, MAX_PAGE)
    given.end()
    return await mailbox.peek_dead_letter(session, after=after, limit=limit)


async def _purge_dead_letter(mailbox: MailboxProtocol, given: _Parameters) -> None:
    session = given.text("session")
    given.end()
    await mailbox.purge_dead_letter(session)


METHODS: Final[dict[str, _Call]] = {
    "enqueue": _enqueue,
    "enqueue_many": _enqueue_many,
    "dequeue": _dequeue,
    "dequeue_many": _dequeue_many,
    "ack": _ack,
    "ack_many": _ack_many,
    "nack": _nack,
    "extend": _extend,
    "peek": _peek,
    "purge": _purge,
    "peek_dead_letter": _peek_dead_letter,
    "purge_dead_letter": _purge_dead_letter,
}
_SPELLINGS: Final = {name.replace("_", "").lower(): name for name in METHODS}


async def answer(
    mailbox: MailboxProtocol, method: str, parameters: Mapping[str, Any], *, case: WireCase = WireCase.SNAKE
) -> Any:
    """Make the call and give its result as JSON has it. What is wrong with it is a `Refusal`."""
    call = METHODS.get(name_of(method))
    if call is None:
        raise Refusal(Code.NOT_FOUND, f"a mailbox has no method {method[:64]!r}; it has {', '.join(METHODS)}")
    return _written(await call(mailbox, _Parameters(parameters)), case)


def name_of(method: str) -> str:
    """A method as it is called here, however it is spelled; nothing if there is none."""
    return _SPELLINGS.get(method.replace("_", "").lower(), "")


def handed_out(method: str, result: Any) -> dict[str, int]:
    """The messages that the result of a call hands out: the attempt of each msg_id."""
    if name_of(method) not in ("dequeue", "dequeue_many") or not result:
        return {}
    messages = cast("list[dict[str, Any]]", result if isinstance(result, list) else [result])
    return {each.get("msg_id") or each["msgId"]: each["attempt"] for each in messages}


def _written(result: Any, case: WireCase) -> Any:
    if result is None:
        return None
    if isinstance(result, list):
        return [to_wire(each, case=case) for each in cast("Sequence[Any]", result)]
    return to_wire(result, case=case)


def error_of(refusal: Refusal) -> dict[str, Any]:
    """A refusal as the error of a call: the same object that HTTP carries."""
    return refusal.to_wire()["error"]


def refusal_of(error: object) -> Refusal:
    """The refusal that came as the error of a call; an error that this version does not know is `internal`."""
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    try:
        code = Code(fields.get("code"))
    except ValueError:
        code = Code.INTERNAL
    return Refusal(code, str(fields.get("message", "the mailbox failed")), field=fields.get("field"))
