"""A refusal as an error of A2A. The one place that does it."""

from typing import Any, Final

from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from agentpost.protocol.errors import Code, Refusal

__all__ = ["as_a2a"]

_ERRORS: Final[dict[Code, type[A2AError]]] = {
    Code.NOT_FOUND: TaskNotFoundError,
    Code.INVALID_TRANSITION: UnsupportedOperationError,
    Code.INVALID_ACCESS_TOKEN: InvalidRequestError,
    Code.SCOPE_DENIED: InvalidRequestError,
    Code.STORAGE_FULL: InternalError,
    Code.STORAGE_FAILED: InternalError,
    Code.STORAGE_CORRUPT: InternalError,
    Code.UNAVAILABLE: InternalError,
    Code.INTERNAL: InternalError,
}


def as_a2a(refusal: Refusal, kind: type[A2AError] | None = None) -> A2AError:
    """The error that a client of A2A branches on, with our own code and what to do as its data.

    Whatever is not listed is about what the peer sent.
    """
    chosen = kind or _ERRORS.get(refusal.code, InvalidParamsError)
    data: dict[str, Any] = {"code": refusal.code.value, "hint": refusal.hint}
    if refusal.field is not None:
        data["field"] = refusal.field
    return chosen(refusal.message, data)
