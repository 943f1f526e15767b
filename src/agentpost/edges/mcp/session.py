"""The server of an agent outside the mesh, for one HTTP request: made for it, and gone with it.

Nothing is kept between requests: each brings its own token and its own proof, so none has to be tied to another.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from agentpost.auth.external.admission import Admitted
from agentpost.auth.external.scopes import operations_of
from agentpost.edges.http.external import run_admitted
from agentpost.edges.http.patience import Connection
from agentpost.edges.mcp.server import make_server
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal
from agentpost.tasks import TaskOwner

__all__ = ["SessionPost", "serve_request"]

_LAST_WORDS_SECONDS: Final = 0.3

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class SessionPost:
    """What the agent of a session may call. Each call is allowed, run and written down as any other (EXT-5)."""

    is_local = False

    def __init__(self, gateway: Gateway, known: Admitted, connection: Connection) -> None:
        self._gateway = gateway
        self._connection = connection
        self._known = known
        self.agent = known.session.agent_id
        self.operations = operations_of(known.scopes)

    async def call(self, operation: str, args: dict[str, Any]) -> dict[str, Any]:
        admitted = await self._gateway.external.allow(self._known, operation=operation)
        return (await run_admitted(self._gateway, admitted, operation, args, self._connection)).result


async def serve_request(
    gateway: Gateway, known: Admitted, *, scope: Any, body: bytes, receive: Receive, send: Send
) -> None:
    """Answer one request, in whichever era of the protocol it is. The answer is cut when the session ends."""
    post = SessionPost(gateway, known, Connection.of(scope))
    manager = StreamableHTTPSessionManager(make_server(post), stateless=True)
    is_read = is_begun = False

    async def receive_body() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send_on(message: Any) -> None:
        nonlocal is_begun
        is_begun = True
        await send(message)

    async def answer() -> None:
        async with manager.run():
            await manager.handle_request(scope, receive_body, send_on)

    tasks = TaskOwner("mcp")
    with gateway.external.within(known.session) as ended:
        answering = tasks.spawn(answer(), name=f"answer {known.session.agent_id}")
        ending = tasks.spawn(ended.wait(), name=f"session of {known.session.agent_id}")
        try:
            await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
            # What waits within the session hears of its end by itself, and says so.
            await asyncio.wait({answering}, timeout=_LAST_WORDS_SECONDS)
        finally:
            await tasks.close()
    if not answering.cancelled():
        answering.result()
    elif not is_begun:
        raise Refusal(Code.INVALID_ACCESS_TOKEN, "the session was revoked while this call waited")
    else:
        with suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
