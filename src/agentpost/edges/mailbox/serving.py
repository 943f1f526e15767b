"""A mailbox served over HTTP and WebSocket on a port of its own."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

from litestar import Litestar

from agentpost.edges.http.connections import ConnectionBudget
from agentpost.edges.http.errors import EXCEPTION_HANDLERS
from agentpost.edges.http.guarded import GuardedServer, guarded_server
from agentpost.edges.http.strict import StrictRequests, names_of
from agentpost.edges.mailbox.http import MailboxDoor, mailbox_routes
from agentpost.edges.mailbox.rpc import MAX_REQUEST_BYTES
from agentpost.edges.open_files import most_connections
from agentpost.mailbox.interface import ServedMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.tasks import TaskOwner

__all__ = ["serve_http"]

_DRAIN_SECONDS: Final = 5


@contextlib.asynccontextmanager
async def serve_http(mailbox: ServedMailbox, *, host: str, port: int, token: str | None) -> AsyncGenerator[str]:
    """Serve the mailbox as long as the context lasts. Gives the URL."""
    routes: Any = mailbox_routes(mailbox)
    app = Litestar(
        list(routes),
        exception_handlers=EXCEPTION_HANDLERS,
        logging_config=None,
        openapi_config=None,
    )
    server = guarded_server(
        # No page in a browser has the token, so the port may have any name.
        StrictRequests(MailboxDoor(app, mailbox, token=token), names=names_of(host) if token is None else None),
        host=host,
        port=port,
        most_frame_bytes=MAX_REQUEST_BYTES,
        drain_seconds=_DRAIN_SECONDS,
        budget=ConnectionBudget(most_connections()),
    )
    tasks = TaskOwner("mailbox http")
    try:
        run = tasks.spawn(_run(server), name="server")
        while not server.started:
            if run.done():
                raise Refusal(Code.UNAVAILABLE, f"cannot listen on {host}:{port}", hint="Choose another port.")
            await asyncio.sleep(0.005)
        bound = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{bound[1]}"
        server.should_exit = True
        await run
    finally:
        await tasks.close()


async def _run(server: GuardedServer) -> None:
    # uvicorn leaves with SystemExit where it cannot listen; the caller is told by another way.
    with contextlib.suppress(SystemExit):
        await server.serve()
