"""A door for programs that cannot prove possession of a key: it proves each request, and passes everything else on."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from tests.edges.external.client import AgentClient
from tests.edges.mcp.proving import MCP

_OF_THE_CONNECTION = {b"host", b"connection", b"content-length", b"transfer-encoding", b"accept-encoding"}


class ProvingProxy:
    """Serves `/mcp` of a gateway for one agent, byte by byte as the gateway answers."""

    def __init__(self) -> None:
        self.agent: AgentClient | None = None
        self._http = httpx.AsyncClient(timeout=60)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        agent = self.agent
        assert agent is not None, "nobody has a session yet"
        body, is_more = b"", True
        while is_more:
            message = await receive()
            body, is_more = body + message.get("body", b""), message.get("more_body", False)
        for is_last in (False, True):
            response = await self._http.send(self._proven(agent, scope, body), stream=True)
            agent.nonce = response.headers.get("dpop-nonce", agent.nonce)
            if is_last or "use_dpop_nonce" not in response.headers.get("www-authenticate", ""):
                break
            await response.aclose()
        headers = [(k.lower(), v) for k, v in response.headers.raw if k.lower() not in _OF_THE_CONNECTION]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        async for chunk in response.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        await response.aclose()

    async def close(self) -> None:
        await self._http.aclose()

    def _proven(self, agent: AgentClient, scope: dict[str, Any], body: bytes) -> httpx.Request:
        token = agent.access_token
        proof = agent.proof(MCP, token=token, body=body, htm=scope["method"])
        headers = [(k, v) for k, v in scope["headers"] if k not in _OF_THE_CONNECTION]
        headers += [(b"authorization", f"DPoP {token}".encode()), (b"dpop", proof.encode())]
        return self._http.build_request(scope["method"], agent.url + MCP, content=body, headers=headers)


@contextmanager
def proving_proxy(agent_for: Callable[[str], AgentClient]) -> Iterator[str]:
    """The URL of MCP without tokens or proofs, for the length of a `with`. `agent_for` gets the origin of that URL."""
    proxy = ProvingProxy()
    server = uvicorn.Server(uvicorn.Config(proxy, port=0, lifespan="off", log_config=None))

    async def serve() -> None:
        await server.serve()
        await proxy.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="proving proxy", daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
        assert thread.is_alive(), "the proxy did not start"
    origin = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        proxy.agent = agent_for(origin)
        yield origin + MCP
    finally:
        server.should_exit = True
        thread.join(30)
