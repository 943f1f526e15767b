"""Talking to the gateway of a home on this machine, through the socket that only the home's owner can open."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home

__all__ = ["OperatorClient"]

_TIMEOUT_SECONDS: Final = 10.0


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
