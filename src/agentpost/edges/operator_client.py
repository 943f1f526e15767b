"""Talking to the gateway of a home on this machine, through the socket that only the home's owner can open."""

from pathlib import Path
from typing import Any, Final

import httpx

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home

__all__ = ["OperatorClient"]

_TIMEOUT_SECONDS: Final = 10.0


class OperatorClient:
    """Calls of the operator. What the gateway refuses is raised here as the same refusal."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", path, body or {})

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        transport = httpx.HTTPTransport(uds=str(Home(self._home).operator_socket))
        try:
            # The host is only there because a URL has one: the socket decides who answers.
            with httpx.Client(transport=transport, base_url="http://gateway", timeout=_TIMEOUT_SECONDS) as http:
                response = http.request(method, path, json=body)
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
