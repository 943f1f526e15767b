"""Talking to the gateway of a home on this machine, through the socket that only the home's owner can open."""

from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home

__all__ = ["AsyncOperatorClient", "OperatorClient", "Query", "answer_of", "path_of"]

_TIMEOUT_SECONDS: Final = 10.0
_LISTENING: Final = httpx.Timeout(_TIMEOUT_SECONDS, read=None)
# Only there because a URL has a host: the socket decides who answers.
_BASE_URL: Final = "http://gateway"
_MOST_CONNECTIONS: Final = 64

Query = Mapping[str, str | int | float | bool]


class OperatorClient:
    """Calls of the operator. What the gateway refuses is raised here as the same refusal."""

    def __init__(self, home: Path, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._home = home
        self._timeout_seconds = timeout_seconds

    def get(self, path: str, query: Query | None = None) -> Any:
        return self._call("GET", path, None, query)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", path, body or {})

    def delete(self, path: str, query: Query | None = None) -> Any:
        return self._call("DELETE", path, None, query)

    def lines(self, path: str, query: Query | None = None) -> Generator[dict[str, Any]]:
        """What the gateway tells line by line, for as long as it does or the caller listens."""
        transport = httpx.HTTPTransport(uds=str(Home(self._home).operator_socket))
        try:
            with (
                # It may be quiet for as long as it likes; only the first word has to come in time.
                httpx.Client(transport=transport, base_url=_BASE_URL, timeout=_LISTENING) as http,
                http.stream("GET", path, params=query) as response,
            ):
                if not response.is_success:
                    response.read()
                    answer_of(response)
                yield from (msgspec.json.decode(line) for line in response.iter_lines() if line.strip())
        except httpx.TransportError:
            raise Refusal(Code.UNAVAILABLE, f"the gateway of {self._home} is gone, or was not there") from None

    def _call(self, method: str, path: str, body: dict[str, Any] | None, query: Query | None = None) -> Any:
        transport = httpx.HTTPTransport(uds=str(Home(self._home).operator_socket))
        try:
            with httpx.Client(transport=transport, base_url=_BASE_URL, timeout=self._timeout_seconds) as http:
                response = http.request(method, path, json=body, params=query)
        except httpx.TransportError as error:
            raise _unreached(self._home, error) from None
        return answer_of(response)


class AsyncOperatorClient:
    """The same for programs that do several things at once: one pool of connections for as long as it is open."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(Home(home).operator_socket), limits=httpx.Limits(max_connections=_MOST_CONNECTIONS)
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
            response = await self._http.request(
                method,
                path,
                content=None if body is None else msgspec.json.encode(body),
                headers=None if body is None else {"content-type": "application/json"},
                params=query,
                timeout=_TIMEOUT_SECONDS + wait_seconds,
            )
        except httpx.TransportError as error:
            raise _unreached(self._home, error) from None
        return answer_of(response)


def path_of(*parts: str) -> str:
    """A path of the gateway's API; what people typed in it stays one part, whatever it is."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _unreached(home: Path, error: httpx.TransportError) -> Refusal:
    if isinstance(error, httpx.TimeoutException):
        return Refusal(Code.UNAVAILABLE, f"the gateway of {home} does not answer")
    return Refusal(
        Code.UNAVAILABLE,
        f"no gateway runs in {home}",
        hint="Start it with `agentpost up`, or name another home with --home.",
    )


def answer_of(response: httpx.Response) -> Any:
    """What a gateway answered, or the refusal that it answered with."""
    answer = response.json()
    if response.is_success:
        return answer
    error = answer["error"]
    raise Refusal(Code(error["code"]), error["message"], field=error.get("field"), hint=error.get("hint"))
