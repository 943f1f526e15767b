"""Talking to the gateway of a home on this machine, through the socket that only the home's owner can open.

Every command does, and most do little else: with the standard library's client they start in two thirds of the time.
"""

import http.client
import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from agentpost.protocol.backoff import RETRY_KEY_PREFIX
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home

__all__ = [
    "AnswerLostError",
    "OperatorClient",
    "Query",
    "UnreachedError",
    "answer_lost",
    "answer_of",
    "headers_for",
    "new_key",
    "new_retry_key",
    "not_utf8",
    "path_of",
    "seconds_for",
    "unreached",
]

_TIMEOUT_SECONDS: Final = 10.0
_READ_BYTES: Final = 64 * 1024
_SLOW_DISK_BYTES_A_SECOND: Final = 2 * 1024 * 1024
_UNREACHED: Final = (OSError, http.client.HTTPException)
# What a proxy answers for a gateway that it does not reach, or that did not answer it.
_OF_A_PROXY: Final = (502, 503, 504)

Query = Mapping[str, str | int | float | bool]


class UnreachedError(Refusal):
    """The call never left this machine: nothing was done."""


class AnswerLostError(Refusal):
    """The call was sent, and its answer did not arrive: the caller cannot know whether it was done."""


class OperatorClient:
    """Calls of the operator. What the gateway refuses is raised here as the same refusal."""

    def __init__(self, home: Path, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._home = home
        self._timeout_seconds = timeout_seconds

    def get(self, path: str, query: Query | None = None) -> Any:
        return self._call("GET", path, None, query)

    def post(self, path: str, body: dict[str, Any] | None = None, *, key: str | None = None) -> Any:
        """`key` is an idempotency key: the call can be repeated with it, and is done once."""
        return self._call("POST", path, body or {}, key=key)

    def delete(self, path: str, query: Query | None = None) -> Any:
        return self._call("DELETE", path, None, query)

    def lines(self, path: str, query: Query | None = None) -> Generator[dict[str, Any]]:
        """What the gateway tells line by line, for as long as it does or the caller listens."""
        connection = _Connection(self._home, _TIMEOUT_SECONDS)
        try:
            with connection.answer_to("GET", path, None, query) as response:
                if not _is_success(response.status):
                    answer_of(response.status, response.read())
                # It may be quiet for as long as it likes; only the first word has to come in time.
                connection.wait_for_ever()
                yield from (msgspec.json.decode(line) for line in _lines_of(response) if line.strip())
        except _UNREACHED:
            raise Refusal(Code.UNAVAILABLE, f"the gateway of {self._home} is gone, or was not there") from None
        finally:
            connection.close()

    @contextmanager
    def held(self, path: str, body: dict[str, Any]) -> Generator[Any]:
        """What the first line of an answer says that stays open; at the end of the block it is hung up."""
        connection = _Connection(self._home, self._timeout_seconds)
        try:
            try:
                response = connection.answer_to("POST", path, body, None)
                status, content = response.status, response.readline()
            except _UNREACHED as error:
                raise unreached(self._home, is_silent=isinstance(error, TimeoutError)) from None
            yield answer_of(status, content)
        finally:
            connection.close()

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        query: Query | None = None,
        key: str | None = None,
    ) -> Any:
        connection = _Connection(self._home, self._timeout_seconds)
        try:
            with connection.answer_to(method, path, body, query, key) as response:
                status, content = response.status, response.read()
        except _UNREACHED as error:
            is_silent = isinstance(error, TimeoutError)
            # A call that only looks may be repeated in any case.
            if not connection.is_open or method == "GET":
                raise unreached(self._home, is_silent=is_silent) from None
            raise answer_lost(self._home, is_silent=is_silent) from None
        finally:
            connection.close()
        return answer_of(status, content)


class _Connection(http.client.HTTPConnection):
    """HTTP over the operator's socket, one call."""

    def __init__(self, home: Path, timeout_seconds: float) -> None:
        # Only there because a URL has a host: the socket decides who answers.
        super().__init__("gateway", timeout=timeout_seconds)
        self._path = str(Home(home).operator_socket)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Whether a gateway was there.
        self.is_open = False

    def connect(self) -> None:
        self._socket.settimeout(self.timeout)
        self._socket.connect(self._path)
        self.sock = self._socket
        self.is_open = True

    def close(self) -> None:
        super().close()
        self._socket.close()

    def wait_for_ever(self) -> None:
        self._socket.settimeout(None)

    def answer_to(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        query: Query | None,
        key: str | None = None,
    ) -> http.client.HTTPResponse:
        try:
            url = path if not query else f"{path}?{urlencode({name: _spelled(value) for name, value in query.items()})}"
            content = None if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise not_utf8() from None
        if content is not None:
            self.timeout = (self.timeout or 0) + seconds_for(content)
        self.request(method, url, content, headers_for(body, key))
        return self.getresponse()


def headers_for(body: object, key: str | None) -> dict[str, str]:
    """The headers of a call with this body and this idempotency key."""
    headers = {} if body is None else {"content-type": "application/json"}
    if key is None:
        return headers
    if not key.isascii() or not key.isprintable():
        raise Refusal(Code.INVALID_FIELD, "an idempotency key has printable ASCII characters", field="idempotencyKey")
    return headers | {"idempotency-key": key}


def new_key() -> str:
    """An idempotency key for a call that a person may repeat."""
    return os.urandom(16).hex()


def new_retry_key() -> str:
    """An idempotency key for the retries of one call; a gateway forgets it within minutes."""
    return RETRY_KEY_PREFIX + new_key()


def seconds_for(content: bytes) -> float:
    """How much longer than usual a gateway may take because so much is said: it has to get to the disk."""
    return len(content) / _SLOW_DISK_BYTES_A_SECOND


def _lines_of(response: http.client.HTTPResponse) -> Generator[bytes]:
    """The lines as they come. Reading line by line would take an answer that was cut off for one that has ended."""
    begun = b""
    while more := response.read1(_READ_BYTES):
        *whole, begun = (begun + more).split(b"\n")
        yield from whole
    yield begun


def path_of(*parts: str) -> str:
    """A path of the gateway's API; what people typed in it stays one part, whatever it is."""
    if "" in parts:
        # It would be the path of all of them.
        raise Refusal(Code.INVALID_FIELD, "an id or a name is empty", hint="Say which one is meant.")
    try:
        return "/" + "/".join(quote(part, safe="") for part in parts)
    except UnicodeEncodeError:
        raise not_utf8() from None


def not_utf8() -> Refusal:
    """Somebody typed or piped bytes that are no text; JSON could not carry them."""
    return Refusal(Code.MALFORMED, "the text is not UTF-8", hint="Convert it first, as with `iconv -t UTF-8`.")


def unreached(home: Path, *, is_silent: bool) -> Refusal:
    """Nobody answered: there is no gateway, or one that is silent."""
    if is_silent:
        return UnreachedError(Code.UNAVAILABLE, f"the gateway of {home} does not answer")
    return UnreachedError(
        Code.UNAVAILABLE,
        f"no gateway runs in {home}",
        hint="Start it with `agentpost up`, or name another home with --home.",
    )


def answer_lost(home: Path, *, is_silent: bool) -> Refusal:
    """The call was sent, and no answer came: the gateway was stopped, or is silent."""
    how = "does not answer" if is_silent else "is gone and did not answer"
    return AnswerLostError(
        Code.UNAVAILABLE,
        f"the gateway of {home} {how}",
        hint="It may have done what was asked. Look with `agentpost status` before you repeat the call.",
    )


def answer_of(status: int, content: bytes) -> Any:
    """What a gateway answered, or the refusal that it answered with."""
    try:
        answer = msgspec.json.decode(content)
        error = None if _is_success(status) else answer["error"]
    except (msgspec.DecodeError, TypeError, KeyError):
        kind = AnswerLostError if status in _OF_A_PROXY else Refusal
        raise kind(Code.UNAVAILABLE, f"what answered is not a gateway (HTTP status {status})") from None
    if error is None:
        return answer
    raise Refusal(Code(error["code"]), error["message"], field=error.get("field"), hint=error.get("hint"))


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _spelled(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
