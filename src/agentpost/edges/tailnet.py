"""Asking the tailscaled of this machine who is at an address: HTTP over its Unix socket, `whois` of its local API."""

from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from agentpost.protocol.errors import Code, Refusal

__all__ = ["Tailnet"]

# tailscaled answers to no other name, so that a page in a browser cannot be made to ask it.
_HOST: Final = "local-tailscaled.sock"
_TIMEOUT_SECONDS: Final = 5.0
_NOT_FOUND: Final = 404


class Tailnet:
    """Calls of the local API. What cannot be asked is refused: nobody is believed because tailscaled is down."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def whois(self, address: str, port: int) -> str | None:
        """The full name of the machine at this address, as mbp-jane.tail1234.ts.net; None if the tailnet has none."""
        # The port tells connections apart that tailscaled itself carries to this machine.
        at = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        transport = httpx.AsyncHTTPTransport(uds=str(self._socket), verify=False)
        try:
            async with httpx.AsyncClient(
                transport=transport, base_url=f"http://{_HOST}", timeout=_TIMEOUT_SECONDS
            ) as http:
                answer = await http.get("/localapi/v0/whois", params={"addr": at})
        except httpx.HTTPError as error:
            raise self._silent(f"it cannot be reached ({type(error).__name__})") from None
        if answer.status_code == _NOT_FOUND:
            return None
        if not answer.is_success:
            raise self._silent(f"it answered with status {answer.status_code}")
        return _name_in(answer.content)

    def _silent(self, why: str) -> Refusal:
        return Refusal(
            Code.UNAVAILABLE,
            f"tailscaled cannot be asked at {self._socket}: {why}",
            hint="Check that tailscaled runs on the gateway's machine and that the gateway may open its socket.",
        )


def _name_in(content: bytes) -> str | None:
    try:
        name: Any = msgspec.json.decode(content)["Node"]["Name"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return name.rstrip(".").lower() if isinstance(name, str) else None
