"""What an agent gives back, as a result: text, or a JSON object with a reply. Pure."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from agentpost.delivery.ports import Content, Result, ResultKind

__all__ = ["failed", "from_json", "from_text", "processed", "retry"]

_MAX_ERROR: Final = 2000


class Answer(Struct, frozen=True, kw_only=True):
    """The JSON form. `reply` is the body as text, or an object with `subject`, `body` and `context`."""

    reply: str | Content | None = None


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
    return processed(answer.reply)


def processed(reply: str | Content | None) -> Result:
    if isinstance(reply, str):
        reply = Content(body=reply) if reply.strip() else None
    return Result(kind=ResultKind.PROCESSED, reply=reply)


def retry(error: str, *, after_seconds: float | None = None) -> Result:
    return Result(kind=ResultKind.RETRY, error=error[:_MAX_ERROR], retry_after_seconds=after_seconds)


def failed(error: str) -> Result:
    return Result(kind=ResultKind.FAILED, error=error[:_MAX_ERROR])
