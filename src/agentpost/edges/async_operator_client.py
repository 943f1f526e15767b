"""The operator's client for programs that do several things at once: one pool of connections."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import httpx
import msgspec

from agentpost.edges.operator_client import (
    AnswerLostError,
    Query,
    UnreachedError,
    answer_lost,
    answer_of,
    headers_for,
    not_utf8,
    seconds_for,
    unreached,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home

__all__ = ["NEVER_THERE", "AsyncOperatorClient", "Held", "until_answered"]

_TIMEOUT_SECONDS: Final = 10.0
# Only there because a URL has a host: the socket decides who answers.
_BASE_URL: Final = "http://gateway"
_MOST_CONNECTIONS: Final = 64
# How long a call is repeated whose answer was lost: a gateway restarts in a few seconds.
_PATIENCE_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0
NEVER_THERE: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)

T = TypeVar("T")


async def until_answered(call: Callable[[], Awaitable[T]], *, patience_seconds: float = _PATIENCE_SECONDS) -> T:
    """What the call gives. One whose answer was lost is repeated until the time is up; it has an idempotency key.

    A call that never left this machine is refused at once, unless one before it did.
    """
    try:
        return await call()
    except AnswerLostError as first:
        lost = first
    loop = asyncio.get_running_loop()
    until, pause_seconds = loop.time() + patience_seconds, _FIRST_PAUSE_SECONDS
    while loop.time() + pause_seconds < until:
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        # The gateway may be on its way back.
        with suppress(UnreachedError):
            try:
                return await call()
            except AnswerLostError as again:
                lost = again
    raise lost


class AsyncOperatorClient:
    """Calls of the operator, for as long as it is open."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._http = _http(home, most_connections=_MOST_CONNECTIONS)
        # Each held answer has a connection to itself, and must keep none from the calls that end it.
        self._holding = _http(home, most_connections=None)

    async def __aenter__(self) -> "AsyncOperatorClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()
        await self._holding.aclose()

    async def get(self, path: str, query: Query | None = None, *, wait_seconds: float = 0) -> Any:
        return await self._call("GET", path, None, query, wait_seconds)

    async def post(self, path: str, body: Any = None, *, wait_seconds: float = 0, key: str | None = None) -> Any:
        """`wait_seconds`: how much longer than usual the gateway may take, because it was asked to wait.

        With an idempotency `key`, a call whose answer was lost is repeated while the gateway restarts, for 30 s.
        """
        said: Any = {} if body is None else body
        if key is None:
            return await self._call("POST", path, said, None, wait_seconds)
        try:
            return await until_answered(lambda: self._call("POST", path, said, None, wait_seconds, key))
        except AnswerLostError as lost:
            lost.hint = f"It may have been done. Repeat the call with idempotency_key={key!r}: it is done once."
            raise

    async def held(self, path: str, body: Any, *, wait_seconds: float = 0) -> "Held":
        """The first line of an answer that stays open until it is closed. Cancelling hangs up."""
        # Mail that was handed over meanwhile is given back, so the call may be repeated.
        with self._refusals(only_looks=True):
            request = self._holding.build_request(
                "POST",
                path,
                content=msgspec.json.encode(body),
                headers=headers_for(body, None),
                timeout=httpx.Timeout(_TIMEOUT_SECONDS, read=_TIMEOUT_SECONDS + wait_seconds),
            )
            response = await self._holding.send(request, stream=True)
            held = Held(response)
            try:
                await held.read_first_line()
            except BaseException:
                await held.close()
                raise
            return held

    async def delete(self, path: str, query: Query | None = None) -> Any:
        return await self._call("DELETE", path, None, query, 0)

    async def _call(
        self, method: str, path: str, body: Any, query: Query | None, wait_seconds: float, key: str | None = None
    ) -> Any:
        with self._refusals(only_looks=method == "GET"):
            content = None if body is None else msgspec.json.encode(body)
            response = await self._http.request(
                method,
                path,
                content=content,
                headers=headers_for(body, key),
                params=query,
                timeout=_TIMEOUT_SECONDS + wait_seconds + seconds_for(content or b""),
            )
        return answer_of(response.status_code, response.content)

    @contextmanager
    def _refusals(self, *, only_looks: bool) -> Generator[None]:
        """Whatever keeps a call from being answered, as a refusal."""
        if self._http.is_closed:
            raise Refusal(Code.UNAVAILABLE, "this client was closed")
        try:
            yield
        except UnicodeEncodeError:
            raise not_utf8() from None
        except httpx.TransportError as error:
            is_silent = isinstance(error, httpx.TimeoutException)
            # A call that only looks may be repeated in any case.
            if isinstance(error, NEVER_THERE) or only_looks:
                raise unreached(self._home, is_silent=is_silent) from None
            raise answer_lost(self._home, is_silent=is_silent) from None


def _http(home: Path, *, most_connections: int | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(
            uds=str(Home(home).operator_socket),
            limits=httpx.Limits(max_connections=most_connections),
            # A socket of this machine, without TLS: to read certificates for it would take longer than the call.
            verify=False,
        ),
        base_url=_BASE_URL,
        timeout=_TIMEOUT_SECONDS,
    )


class Held:
    """An answer that stays open: what it hands over belongs to its connection."""

    answer: Any = None

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        # Kept: an iterator that is forgotten would hang up.
        self._parts = response.aiter_raw()

    async def read_first_line(self) -> None:
        """Read the answer: the first line, or all of one that does not stay open."""
        read: list[bytes] = []
        async for part in self._parts:
            read.append(part)
            if part.endswith(b"\n"):
                break
        self.answer = answer_of(self._response.status_code, b"".join(read))

    async def close(self) -> None:
        """Hang up."""
        await self._response.aclose()
