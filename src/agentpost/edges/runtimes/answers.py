"""What an agent gives back, as a result: text, or a JSON object with a reply. Pure."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from agentpost.delivery.ports import Content, Result, ResultKind
from agentpost.delivery.wording import as_text

__all__ = ["declined", "failed", "from_json", "from_text", "processed", "retry"]


class Answer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The JSON form. `reply` is the body as text, or an object with `subject`, `body` and `context`; for a task with
    `resultSummary` and `output`. `error` says instead that it will never work, `failure_class` why, in a word."""

    reply: str | Content | None = None
    error: str | None = None
    failure_class: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


def from_text(raw: bytes) -> Result:
    """Text is the body of the reply; nothing but white space is no reply."""
    return processed(raw.decode("utf-8", errors="replace").rstrip("\n"))


def from_json(raw: bytes) -> Result:
    """A JSON object. The agent has had its turn, so an object that makes no sense is a failure, not another try."""
    if not raw.strip():
        return processed(None)
    try:
        answer: Any = msgspec.json.decode(raw, type=Answer)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return failed('the answer is not JSON of the form {"reply": {"subject": ..., "body": ...}}')
    if answer.error is not None:
        return declined(answer.error, failure_class=answer.failure_class)
    return processed(answer.reply)


def processed(reply: str | Content | None) -> Result:
    if isinstance(reply, str):
        reply = Content(body=reply) if reply.strip() else None
    return Result(kind=ResultKind.PROCESSED, reply=reply)


def retry(error: str, *, after_seconds: float | None = None) -> Result:
    return Result(kind=ResultKind.RETRY, error=as_text(error), retry_after_seconds=after_seconds)


def declined(error: str, *, failure_class: str | None = None) -> Result:
    """The agent said itself that it will not."""
    return Result(kind=ResultKind.FAILED, error=as_text(error), failure_class=failure_class)


def failed(error: str, *, failure_class: str | None = None) -> Result:
    """It did not work, and would not work the next time."""
    return Result(kind=ResultKind.FAILED, error=as_text(error), failure_class=failure_class, is_defect=True)
