"""The callers' side of each transport: carries a call to a mailbox and brings its result back."""

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, cast
from urllib.parse import quote

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from agentpost.edges.certificates import needs_certificates
from agentpost.edges.mailbox.rpc import MAX_REQUEST_BYTES
from agentpost.mailbox.calls import refusal_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.tasks import TaskOwner

__all__ = ["HttpCarrier", "UnixCarrier", "WebSocketCarrier"]

# A call that waits for a message answers within a minute.
_TIMEOUT_SECONDS: Final = 90.0
_UNAUTHORIZED: Final = 401


class _RpcCarrier(ABC):
    """JSON-RPC over whatever sends and receives whole messages. Calls may overlap."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._has_ended = False
        self._tasks = TaskOwner("mailbox client")
        # What was pushed and nobody has taken yet, of each session; None is the end.
        self._pushed: defaultdict[str, asyncio.Queue[dict[str, Any] | None]] = defaultdict(asyncio.Queue)

    def _listen(self) -> None:
        self._tasks.spawn(self._read(), name="answers")

    @abstractmethod
    async def _send(self, data: bytes) -> None: ...

    @abstractmethod
    async def _receive(self) -> bytes | None:
        """The next message; None once there will be none."""

    async def call(self, method: str, parameters: Mapping[str, Any]) -> Any:
        if self._has_ended:
            raise _gone()
        number = next(self._numbers)
        data = msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})
        if len(data) > MAX_REQUEST_BYTES:
            raise Refusal(Code.TOO_LARGE, f"{len(data)} bytes are more than the {MAX_REQUEST_BYTES} a call may have")
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            await self._send(data)
            return await asyncio.wait_for(answered, _TIMEOUT_SECONDS)
        except TimeoutError:
            raise Refusal(Code.UNAVAILABLE, "the mailbox does not answer") from None
        except (ConnectionError, ConnectionClosed):
            raise _gone() from None
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        try:
            while (data := await self._receive()) is not None:
                self._take(msgspec.json.decode(data, type=dict[str, Any]))
        finally:
            self._has_ended = True
            self._fail(_gone())
            for pushed in self._pushed.values():
                pushed.put_nowait(None)

    def _fail(self, refusal: Refusal) -> None:
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(refusal)

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "message":
            self._pushed[message["params"]["session"]].put_nowait(message["params"]["message"])
            return
        if message.get("id") is None and "error" in message:
            # What was sent could not be read, so it is not said which call that was.
            self._fail(refusal_of(message["error"].get("data")))
            return
        answered = self._waiting.get(cast(int, message.get("id")))
        if answered is None or answered.done():
            return
        if "error" in message:
            answered.set_exception(refusal_of(message["error"].get("data")))
        else:
            answered.set_result(message.get("result"))

    async def subscribe(self, session: str, credit: int) -> AsyncGenerator[dict[str, Any]]:
        await self.call("subscribe", {"session": session, "credit": credit})
        pushed = self._pushed[session]
        try:
            while (message := await pushed.get()) is not None:
                yield message
            raise _gone()
        finally:
            if not self._has_ended:
                await self._unsubscribe(session, pushed)
            del self._pushed[session]

    async def _unsubscribe(self, session: str, pushed: "asyncio.Queue[dict[str, Any] | None]") -> None:
        """End the pushing. What was pushed meanwhile, and is not taken any more, goes back."""
        await self.call("unsubscribe", {"session": session})
        unheard: list[str] = []
        while not pushed.empty() and (message := pushed.get_nowait()) is not None:
            unheard.append(message["msg_id"])
        if unheard:
            await self.call("unsubscribe", {"session": session, "unheard": unheard})

    async def close(self) -> None:
        await self._tasks.close()


class UnixCarrier(_RpcCarrier):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer
        self._listen()

    @classmethod
    async def connect(cls, path: str) -> "UnixCarrier":
        try:
            return cls(*await asyncio.open_unix_connection(path, limit=MAX_REQUEST_BYTES))
        except OSError as error:
            raise Refusal(Code.UNAVAILABLE, f"no mailbox is served on {path}: {error.strerror}") from None

    async def _send(self, data: bytes) -> None:
        self._writer.write(data + b"\n")
        await self._writer.drain()

    async def _receive(self) -> bytes | None:
        # ValueError: a line longer than any answer may be, behind which nothing can be found.
        with contextlib.suppress(ConnectionError, ValueError):
            return await self._reader.readline() or None
        return None

    async def close(self) -> None:
        await super().close()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class WebSocketCarrier(_RpcCarrier):
    def __init__(self, socket: ClientConnection) -> None:
        super().__init__()
        self._socket = socket
        self._listen()

    @classmethod
    async def connect(cls, url: str, *, token: str | None = None) -> "WebSocketCarrier":
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            socket = await connect(url, additional_headers=headers, compression=None, max_size=MAX_REQUEST_BYTES)
        except (OSError, InvalidHandshake, InvalidURI) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code == _UNAUTHORIZED:
                raise _refusal_in(bytes(error.response.body)) from None
            raise Refusal(Code.UNAVAILABLE, f"no mailbox is served at {url}: {error}") from None
        return cls(socket)

    async def _send(self, data: bytes) -> None:
        await self._socket.send(data, text=True)

    async def _receive(self) -> bytes | None:
        with contextlib.suppress(ConnectionClosed):
            return await self._socket.recv(decode=False)
        return None

    async def close(self) -> None:
        await super().close()
        await self._socket.close()


class HttpCarrier:
    """One request a call. `transport` is for a gateway's Unix socket, which speaks HTTP as well."""

    def __init__(
        self, base_url: str, *, token: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=headers,
            timeout=_TIMEOUT_SECONDS,
            transport=transport,
            verify=needs_certificates(base_url),
        )

    async def call(self, method: str, parameters: Mapping[str, Any]) -> Any:
        verb, path, query, body = _request(method, dict(parameters))
        try:
            content = None if body is None else msgspec.json.encode(body)
            response = await self._http.request(verb, path, params=query, content=content)
        except httpx.HTTPError as error:
            raise Refusal(Code.UNAVAILABLE, f"no mailbox answers at {self._http.base_url}: {error}") from None
        except httpx.InvalidURL:
            raise Refusal(
                Code.TOO_LARGE,
                "the name of the session is too long for an HTTP path",
                hint="Use a shorter name, or the Unix socket or WebSocket of this mailbox.",
            ) from None
        if not response.is_success:
            raise _refusal_in(response.content)
        return _read(response.content)

    async def close(self) -> None:
        await self._http.aclose()


def _refusal_in(content: bytes) -> Refusal:
    answer = _read(content)
    return refusal_of(cast("dict[str, Any]", answer).get("error") if isinstance(answer, dict) else None)


def _read(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content) if content else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refusal(Code.UNAVAILABLE, "what answers there is no mailbox") from None


def _request(method: str, given: dict[str, Any]) -> tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]:
    """The HTTP request that makes a call: verb, path, query and body."""
    match method:
        case "enqueue":
            return "POST", _path(given["message"]["to"], "enqueue"), None, given["message"]
        case "enqueue_many":
            return "POST", "/ansible/mailbox", None, given
        case "peek":
            return "GET", _path(given.pop("session"), "peek"), given, None
        case "peek_dead_letter":
            return "GET", _path(given.pop("session"), "dead-letter"), given, None
        case "purge":
            return "DELETE", _path(given["session"]), None, None
        case "purge_dead_letter":
            return "DELETE", _path(given["session"], "dead-letter"), None, None
        case _:
            return "POST", _path(given.pop("session"), method.replace("_", "-")), None, given


def _path(session: str, operation: str = "") -> str:
    # A dot alone would be taken for a place in the path, however it is quoted.
    quoted = quote(session, safe="").replace(".", "%2E")
    return f"/ansible/mailbox/{quoted}/{operation}".rstrip("/")


def _gone() -> Refusal:
    return Refusal(Code.UNAVAILABLE, "the connection to the mailbox is gone")
