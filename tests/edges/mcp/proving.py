"""The official MCP client with an HTTP that proves possession of its key with each request, as RFC 9449 has it."""

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.client import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

from tests.edges.external.client import AgentClient

MCP = "/mcp"


class Proving(httpx2.Auth):
    """A fresh proof for each request, over its body too; one more try when the gateway wants its newest nonce."""

    requires_request_body = True

    def __init__(self, agent: AgentClient, *, token: str | None = None) -> None:
        self._agent = agent
        self._token = token
        self.statuses: list[int] = []

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
        for _ in range(2):
            token = self._token or self._agent.access_token
            proof = self._agent.proof(MCP, token=token, body=request.content, htm=request.method)
            request.headers["authorization"] = f"DPoP {token}"
            request.headers["dpop"] = proof
            response = yield request
            self.statuses.append(response.status_code)
            self._agent.nonce = response.headers.get("dpop-nonce", self._agent.nonce)
            if "use_dpop_nonce" not in response.headers.get("www-authenticate", ""):
                return


@asynccontextmanager
async def model_of(agent: AgentClient, *, mode: str = "auto", token: str | None = None) -> AsyncIterator[McpClient]:
    """The tools of an agent outside, over HTTP."""
    async with (
        httpx2.AsyncClient(auth=Proving(agent, token=token), timeout=60) as http,
        McpClient(
            streamable_http_client(agent.url + MCP, http_client=http), mode=mode, read_timeout_seconds=60
        ) as client,
    ):
        yield client


async def call(client: McpClient, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def refusal(client: McpClient, tool: str, **arguments: Any) -> str:
    """The code of a refusal, as the model is told it."""
    result = await client.call_tool(tool, arguments)
    (said,) = result.content
    assert result.is_error
    return said.text.partition(":")[0]  # pyright: ignore[reportAttributeAccessIssue]
