"""What a request must be before an application sees it: for this host, of one length, and JSON if it has a body.

A page in a browser can send requests to a port of its own machine. Three things keep such a page out: its host name is
not ours (DNS rebinding), it cannot say `application/json` without a preflight that is never granted, and a request
whose length can be read in two ways ends its connection (request smuggling behind a proxy).
"""

import ipaddress
import socket
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from agentpost.edges.http.calls import send_answer
from agentpost.protocol.errors import Code, Refusal

__all__ = ["StrictRequests", "names_of"]

_JSON: Final = "application/json"
_LOCALHOST: Final = "localhost"


class StrictRequests:
    """In front of an application. `names` are the host names that it is reached by; None for a Unix socket."""

    def __init__(self, app: ASGIApp, *, names: frozenset[str] | None) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except Refusal as refusal:
            await _refuse(refusal, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Any) -> None:
        host = kind = length = encoding = None
        for name, value in cast(HTTPScope, scope)["headers"]:
            match name:
                case b"host":
                    host = value
                case b"content-type":
                    kind = value
                case b"content-length":
                    length = value
                case b"transfer-encoding":
                    encoding = value
                case _:
                    pass
        if self._names is not None and host is not None:
            _check_host(host.decode("latin-1"), self._names)
        if length is not None and encoding is not None:
            problem = "a request has Content-Length or Transfer-Encoding, and not both"
            raise Refusal(Code.MALFORMED, problem, field="content-length")
        if encoding is not None or (length or b"0").strip(b"0"):
            _check_kind((kind or b"").decode("latin-1"))


def names_of(*urls_and_hosts: str | None) -> frozenset[str]:
    """The host names in URLs, and hosts; this machine's own names always belong to them."""
    found = {_LOCALHOST, socket.gethostname().lower()}
    for each in urls_and_hosts:
        if each:
            found.add(((urlsplit(each).hostname or "") if "://" in each else each).lower())
    return frozenset(found)


def _check_host(host: str, names: frozenset[str]) -> None:
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        name = ""
    # An address needs no look-up, so DNS cannot have been tampered with.
    if name in names or _is_address(name):
        return
    raise Refusal(
        Code.INVALID_FIELD,
        f"this gateway is not known as {host[:100]!r}",
        field="host",
        hint="If others reach it by that name, its operator starts it with --public-url.",
    )


def _check_kind(kind: str) -> None:
    media_type = kind.partition(";")[0].strip().lower()
    if media_type == _JSON or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    problem = f"the body is {media_type[:100]!r}" if media_type else "the body has no content type"
    raise Refusal(
        Code.MALFORMED,
        f"{problem}, and only {_JSON} is read",
        field="content-type",
        hint=f"Send the header `content-type: {_JSON}`.",
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    body = msgspec.json.encode(refusal.to_wire())
    if scope["type"] == "http":
        # The rest of the request is not read, so nothing more can be read after it.
        await send_answer(send, body, status=refusal.status, headers={"connection": "close"})
        return
    await receive()  # the wish to connect
    headers = [(b"content-type", b"application/json")]
    await send(cast(Any, {"type": "websocket.http.response.start", "status": refusal.status, "headers": headers}))
    await send(cast(Any, {"type": "websocket.http.response.body", "body": body}))
