"""MCP over HTTP, for agents outside the mesh: `/mcp` on the public port, with the tokens and proofs of any other call.

The SDK is loaded with the first request: a gateway that nobody asks for MCP does without it.
"""

import asyncio
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from agentpost.edges.http.connections import proven
from agentpost.edges.http.external import MCP_PATH, call_of
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal

__all__ = ["mcp_routes"]

_SERVER: Final = "agentpost.edges.mcp.session"


def mcp_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    @post(MCP_PATH, status_code=200, summary="Model Context Protocol", tags=["agents outside"])
    async def mcp(request: Request[Any, Any, Any]) -> ASGIApp:
        """Streamable HTTP, in the newest protocol and in those with a handshake. Each request stands for itself."""
        known = await gateway.external.recognise(await call_of(gateway, request), operation="mcp")
        proven(request.scope, f"session {known.session.session_id}")
        if find_spec("mcp") is None:
            raise Refusal(
                Code.UNAVAILABLE,
                "this gateway does not speak MCP: the SDK is not installed",
                hint="Its operator installs it with: pip install 'agentpost[mcp]'",
            )
        session = await asyncio.to_thread(import_module, _SERVER)
        body = await request.body()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await session.serve_request(gateway, known, scope=scope, body=body, receive=receive, send=send)

        return answer

    return [mcp]
