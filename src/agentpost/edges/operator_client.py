"""Talking to the gateway of a home on this machine, through the socket that only the home's owner can open."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home

__all__ = ["OperatorClient", "path_of"]

_TIMEOUT_SECONDS: Final = 10.0
_LISTENING: Final = httpx.Timeout(_TIMEOUT_SECONDS, read=None)


class OperatorClient:
    """Calls of the operator. What the gateway refuses is raised here as the same refusal."""

    def __init__(self, home: Path, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._home = home
        self._timeout_seconds = timeout_seconds

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        return self._call("GET", path, None, query)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", path, body or {})

    def delete(self, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        return self._call("DELETE", path, None, query)

    def lines(self, path: str) -> Generator[dict[str, Any]]:
        """What the gateway tells line by line, for as long as it does or the caller listens."""
        transport = httpx.HTTPTransport(uds=str(Home(self._home).operator_socket))
        try:
            with (
                # It may be quiet for as long as it likes; only the first word has to come in time.
                httpx.Client(transport=transport, base_url="http://gateway", timeout=_LISTENING) as http,
                http.stream("GET", path) as response,
            ):
                yield from (msgspec.json.decode(line) for line in response.iter_lines() if line.strip())
        except httpx.TransportError:
            raise Refusal(Code.UNAVAILABLE, f"the gateway of {self._home} is gone, or was not there") from None

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None, query: Mapping[str, str | int] | None = None
    ) -> Any:
        transport = httpx.HTTPTransport(uds=str(Home(self._home).operator_socket))
        try:
            # The host is only there because a URL has one: the socket decides who answers.
            with httpx.Client(transport=transport, base_url="http://gateway", timeout=self._timeout_seconds) as http:
                response = http.request(method, path, json=body, params=query)
        except httpx.TimeoutException:
            raise Refusal(Code.UNAVAILABLE, f"the gateway of {self._home} does not answer") from None
        except httpx.TransportError:
            raise Refusal(
                Code.UNAVAILABLE,
                f"no gateway runs in {self._home}",
                hint="Start it with `agentpost up`, or name another home with --home.",
            ) from None
        answer = response.json()
        if response.is_success:
            return answer
        error = answer["error"]
        raise Refusal(Code(error["code"]), error["message"], field=error.get("field"), hint=error.get("hint"))


def path_of(*parts: str) -> str:
    """A path of the gateway's API; what people typed in it stays one part, whatever it is."""
    return "/" + "/".join(quote(part, safe="") for part in parts)
