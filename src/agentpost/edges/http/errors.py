"""The one place that turns what went wrong into an HTTP response. Every error has the same JSON shape."""

import logging
from typing import Any, cast

from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, ValidationException

from agentpost.auth.external.keys import ALGORITHMS
from agentpost.auth.external.refusals import Unproven
from agentpost.auth.limits import RateLimited
from agentpost.delivery.sealing import MAX_CONTENT_BYTES
from agentpost.edges.http.parameters import MAX_CONTENT_CALL_BYTES
from agentpost.protocol.errors import Code, Refusal

__all__ = ["EXCEPTION_HANDLERS", "headers_of"]

_log = logging.getLogger(__name__)

_CODES = {404: Code.NOT_FOUND, 413: Code.TOO_LARGE, 429: Code.RATE_LIMITED}


def headers_of(refusal: Refusal) -> dict[str, str]:
    """What a refusal says beside its body."""
    if isinstance(refusal, RateLimited):
        return {"retry-after": str(refusal.retry_after_seconds)}
    if isinstance(refusal, Unproven):
        return {"www-authenticate": f'DPoP error="{refusal.error}", algs="{" ".join(ALGORITHMS)}"'}
    return {}


def _refused(_request: Request[Any, Any, Any], refusal: Refusal) -> Response[dict[str, Any]]:
    headers = headers_of(refusal)
    return Response(refusal.to_wire(), status_code=refusal.status, media_type=MediaType.JSON, headers=headers)


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    """What the framework itself refuses: an unknown path, a wrong method, a body that is not JSON or lacks a field."""
    if isinstance(error, ValidationException) and (problem := _first_problem(error)) is not None:
        return _refused(request, problem)
    code = _CODES.get(error.status_code, Code.MALFORMED)
    message, hint = error.detail or code.value, None
    if code is Code.TOO_LARGE:
        most_bytes = request.route_handler.resolve_request_max_body_size()
        message = f"a call has at most {most_bytes:,} bytes"
        if most_bytes == MAX_CONTENT_CALL_BYTES:
            message += f", and what it says at most {MAX_CONTENT_BYTES:,}"
    elif error.status_code == 405:
        hint = f"{request.method} is not a method of this path."
    elif error.status_code == 404:
        message, hint = "nothing is at this path", "Check the path, and the ids and names in it."
    refusal = Refusal(code, message, hint=hint)
    return Response(refusal.to_wire(), status_code=error.status_code, media_type=MediaType.JSON)


def _first_problem(error: ValidationException) -> Refusal | None:
    """The first field that is wrong, in words; None if the framework does not say which it is."""
    problems = cast(list[dict[str, Any]], error.extra) if isinstance(error.extra, list) else []
    if not problems:
        return None
    first = problems[0]
    place = str(first.get("key") or "")
    message = f"{place}: {first.get('message')}" if place else str(first.get("message"))
    return Refusal(Code.INVALID_FIELD, message, field=place or None)


def _defect(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    # %r: a path may hold a line break, and a log line must not.
    _log.error("a defect in %s %r", request.method, request.url.path, exc_info=error)
    refusal = Refusal(Code.INTERNAL, "the gateway failed to answer this request")
    return Response(refusal.to_wire(), status_code=500, media_type=MediaType.JSON)


def _recursion(request: Request[Any, Any, Any], error: RecursionError) -> Response[dict[str, Any]]:
    """A body whose lists are in lists without end. A recursion of our own is still a defect."""
    if "deserializing" not in str(error):
        return _defect(request, error)
    return _refused(request, Refusal(Code.MALFORMED, "the JSON is nested too deeply"))


EXCEPTION_HANDLERS: dict[int | type[Exception], Any] = {
    Refusal: _refused,
    HTTPException: _http_error,
    RecursionError: _recursion,
    Exception: _defect,
}
