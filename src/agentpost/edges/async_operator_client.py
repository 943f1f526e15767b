"""The operator's client for programs that do several things at once: one pool of connections."""

from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import msgspec

from agentpost.edges.operator_client import Query, answer_of, not_utf8, seconds_for, unreached
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home

__all__ = ["AsyncOperatorClient"]

_TIMEOUT_SECONDS: Final = 10.0
# Only there because a URL has a host: the socket decides who answers.
_BASE_URL: Final = "http://gateway"
_MOST_CONNECTIONS: Final = 64


class AsyncOperatorClient:
    """Calls of the operator, for as long as it is open."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(Home(home).operator_socket),
                limits=httpx.Limits(max_connections=_MOST_CONNECTIONS),
                # A socket of this machine, without TLS: to read certificates for it would take longer than the call.
                verify=False,
            ),
            base_url=_BASE_URL,
            timeout=_TIMEOUT_SECONDS,
        )

    async def __aenter__(self) -> "AsyncOperatorClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, query: Query | None = None, *, wait_seconds: float = 0) -> Any:
        return await self._call("GET", path, None, query, wait_seconds)

    async def post(self, path: str, body: Any = None, *, wait_seconds: float = 0) -> Any:
        """`wait_seconds`: how much longer than usual the gateway may take, because it was asked to wait."""
        return await self._call("POST", path, {} if body is None else body, None, wait_seconds)

    async def delete(self, path: str, query: Query | None = None) -> Any:
        return await self._call("DELETE", path, None, query, 0)

    async def _call(self, method: str, path: str, body: Any, query: Query | None, wait_seconds: float) -> Any:
        if self._http.is_closed:
            raise Refusal(Code.UNAVAILABLE, "this client was closed")
        try:
            content = None if body is None else msgspec.json.encode(body)
            response = await self._http.request(
                method,
                path,
                content=content,
                headers=None if body is None else {"content-type": "application/json"},
                params=query,
                timeout=_TIMEOUT_SECONDS + wait_seconds + seconds_for(content or b""),
            )
        except UnicodeEncodeError:
            raise not_utf8() from None
        except httpx.TransportError as error:
            raise unreached(self._home, is_silent=isinstance(error, httpx.TimeoutException)) from None
        return answer_of(response.status_code, response.content)
