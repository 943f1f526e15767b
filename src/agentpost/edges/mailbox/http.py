"""The mailbox over HTTP, under `/ansible/mailbox/`, and over WebSocket at the same place.

A session is one part of the path, whatever it contains: `MailboxDoor` keeps it quoted on its way to the route.
"""

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, cast
from urllib.parse import unquote

import msgspec
from litestar import MediaType, Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body, Parameter
from litestar.types import ASGIApp, Receive, Scope, Send

from agentpost.edges.http.connections import proven
from agentpost.edges.mailbox.rpc import MAX_REQUEST_BYTES, give_back
from agentpost.edges.mailbox.websocket import serve_websocket
from agentpost.mailbox.calls import answer, handed_out
from agentpost.mailbox.interface import MAX_PAGE, ServedMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import WireCase
from agentpost.tasks import TaskOwner

__all__ = ["MAILBOX_PATH", "MailboxDoor", "mailbox_routes"]

MAILBOX_PATH: Final = "/ansible/mailbox"

Json = dict[str, Any]
Case = Annotated[WireCase, Parameter(description="How names are written in the answer: snake or camel.")]
After = Annotated[str | None, Parameter(description="The last msg_id of the page before.")]
Limit = Annotated[int, Parameter(ge=1, le=MAX_PAGE, description="How many at most.")]


def _unreadable(_request: Request[Any, Any, Any], _error: Exception) -> Response[dict[str, Any]]:
    """What msgspec raises beside its own errors, for a body that is nested too deep or not UTF-8."""
    refusal = Refusal(Code.MALFORMED, "not one JSON object")
    return Response(refusal.to_wire(), status_code=refusal.status, media_type=MediaType.JSON)


# How the body of a call is read, whichever application has the routes.
_BODY: Final[dict[str, Any]] = {
    "request_max_body_size": MAX_REQUEST_BYTES,
    "exception_handlers": {RecursionError: _unreadable, UnicodeDecodeError: _unreadable},
}


def mailbox_routes(mailbox: ServedMailbox) -> Sequence[HTTPRouteHandler]:
    """The routes of one mailbox. Names are read in snake_case and camelCase."""

    async def call(method: str, parameters: Mapping[str, Any], case: WireCase) -> Response[Any]:
        return _response(await answer(mailbox, method, parameters, case=case))

    @post(MAILBOX_PATH, status_code=200, summary="Enqueue many", tags=["mailbox"], **_BODY)
    async def enqueue_many(data: Annotated[Json, Body()], case: Case = WireCase.SNAKE) -> Response[Any]:
        """`{"messages": […]}`: all of them or, if one is refused, none."""
        return await call("enqueue_many", data, case)

    @post(
        MAILBOX_PATH + "/{session:str}/enqueue", status_code=200, summary="Enqueue a message", tags=["mailbox"], **_BODY
    )
    async def enqueue(session: str, data: Annotated[Json, Body()], case: Case = WireCase.SNAKE) -> Response[Any]:
        """The message itself. Its `to` may be left out; it is the session."""
        name = unquote(session)
        if data.setdefault("to", name) != name:
            raise Refusal(Code.INVALID_FIELD, "`to` is another session than the path names", field="to")
        return await call("enqueue", {"message": data}, case)

    @post(
        MAILBOX_PATH + "/{session:str}/{operation:str}",
        status_code=200,
        summary="Call a method",
        tags=["mailbox"],
        responses={204: ResponseSpec(None, generate_examples=False, description="There is nothing to tell.")},
        **_BODY,
    )
    async def operate(
        request: Request[Any, Any, Any],
        session: str,
        operation: str,
        data: Annotated[Json, Body()],
        case: Case = WireCase.SNAKE,
    ) -> Response[Any]:
        """`dequeue`, `dequeue-many`, `ack`, `ack-many`, `nack` or `extend`, with the call's parameters as the body.

        A dequeue without a message, and what has no result, is answered with 204.
        """
        if operation not in _OPERATIONS:
            raise Refusal(Code.NOT_FOUND, f"no such operation; there are {', '.join(sorted(_OPERATIONS))}")
        method, parameters = _OPERATIONS[operation], {**data, "session": unquote(session)}
        if method not in _HANDING_OUT:
            return await call(method, parameters, case)
        return _response(await _hand_out(mailbox, method, parameters, case, request.receive))

    @get(MAILBOX_PATH + "/{session:str}/peek", summary="Look without taking", tags=["mailbox"])
    async def peek(
        session: str, after: After = None, limit: Limit = MAX_PAGE, case: Case = WireCase.SNAKE
    ) -> Response[Any]:
        """What is in flight and what is pending, without the payloads."""
        return await call("peek", _page(session, after, limit), case)

    @get(MAILBOX_PATH + "/{session:str}/dead-letter", summary="Look at the dead letters", tags=["mailbox"])
    async def peek_dead_letter(
        session: str, after: After = None, limit: Limit = MAX_PAGE, case: Case = WireCase.SNAKE
    ) -> Response[Any]:
        return await call("peek_dead_letter", _page(session, after, limit), case)

    @delete(MAILBOX_PATH + "/{session:str}", status_code=204, summary="Purge", tags=["mailbox"])
    async def purge(session: str) -> None:
        """Drops what is pending and in flight. Its ids stay remembered."""
        await mailbox.purge(unquote(session))

    @delete(
        MAILBOX_PATH + "/{session:str}/dead-letter", status_code=204, summary="Purge dead letters", tags=["mailbox"]
    )
    async def purge_dead_letter(session: str) -> None:
        await mailbox.purge_dead_letter(unquote(session))

    return [enqueue_many, enqueue, operate, peek, peek_dead_letter, purge, purge_dead_letter]


_OPERATIONS: Final = {
    name.replace("_", "-"): name for name in ("dequeue", "dequeue_many", "ack", "ack_many", "nack", "extend")
}


_HANDING_OUT: Final = ("dequeue", "dequeue_many")


def _response(result: Any) -> Response[Any]:
    return Response(result, status_code=204 if result is None else 200, media_type=MediaType.JSON)


async def _hand_out(
    mailbox: ServedMailbox, method: str, parameters: Mapping[str, Any], case: WireCase, receive: Receive
) -> Any:
    """Make a call that hands out messages. A client that leaves meanwhile was handed none."""

    async def outcome() -> Any:
        try:
            return await answer(mailbox, method, parameters, case=case)
        except Refusal as refusal:
            return refusal

    tasks = TaskOwner("mailbox request")
    called = tasks.spawn(outcome(), name="call")
    left = tasks.spawn(_until_gone(receive), name="client")
    try:
        await asyncio.wait({called, left}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        has_left = left.done()
        await tasks.close()
    result = None if called.cancelled() else called.result()
    if isinstance(result, Refusal):
        raise result
    if has_left:
        await give_back(mailbox, parameters["session"], handed_out(method, result))
    return result


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _page(session: str, after: str | None, limit: int) -> Json:
    page: Json = {"session": unquote(session), "limit": limit}
    return page if after is None else {**page, "after": after}


class MailboxDoor:
    """Stands in front of an application that has the routes above, and takes WebSockets for the mailbox.

    With a `token`, nobody comes in without it.
    """

    def __init__(self, app: ASGIApp, mailbox: ServedMailbox, *, token: str | None = None) -> None:
        self._app = app
        self._mailbox = mailbox
        self._token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._enter(scope)
        except Refusal as refusal:
            await _deny(refusal, scope, receive, send)
            return
        if scope["type"] == "websocket" and scope["path"] == MAILBOX_PATH:
            await receive()  # the wish to connect
            await serve_websocket(self._mailbox, receive, send)
        else:
            if scope["path"].startswith(MAILBOX_PATH + "/"):
                scope = cast(Scope, {**scope, "path": scope["raw_path"].decode("ascii", "replace").split("?")[0]})
            await self._app(scope, receive, send)

    def _enter(self, scope: Scope) -> None:
        if self._token is not None:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._token):
                hint = "Send it as Authorization: Bearer …"
                raise Refusal(Code.INVALID_TOKEN, "this mailbox wants its token", hint=hint)
        # All callers have the same token, so connections are not counted by it.
        proven(scope, None)


async def _deny(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    body = msgspec.json.encode(refusal.to_wire())
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    if scope["type"] == "websocket":
        await receive()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send(cast(Any, {"type": f"{kind}.start", "status": refusal.status, "headers": headers}))
    await send(cast(Any, {"type": f"{kind}.body", "body": body, "more_body": False}))
