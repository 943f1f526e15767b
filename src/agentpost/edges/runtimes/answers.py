"""What an agent gives back, as a result: text, or a JSON object with a reply. Pure."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from agentpost.delivery.ports import Content, Result, ResultKind

__all__ = ["failed", "from_json", "from_text", "processed", "retry", "told"]

_MAX_ERROR: Final = 2000


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
        return failed(answer.error, failure_class=answer.failure_class)
    return processed(answer.reply)


def processed(reply: str | Content | None) -> Result:
    if isinstance(reply, str):
        reply = Content(body=reply) if reply.strip() else None
    return Result(kind=ResultKind.PROCESSED, reply=reply)


def retry(error: str, *, after_seconds: float | None = None) -> Result:
    return Result(kind=ResultKind.RETRY, error=_text(error), retry_after_seconds=after_seconds)


def failed(error: str, *, failure_class: str | None = None) -> Result:
    return Result(kind=ResultKind.FAILED, error=_text(error), failure_class=failure_class)


def told(error: BaseException) -> str:
    """What was raised, in words; somebody's exception may not even be printable."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its name has to do
        return type(error).__name__


def _text(error: str) -> str:
    """Text that can be kept: the name of a file, say, may come with half surrogate pairs, which are not Unicode."""
    return error[:_MAX_ERROR].encode("utf-8", errors="replace").decode("utf-8")
