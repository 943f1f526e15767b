"""A request of an agent outside the mesh as its proof is checked, and plain answers, for doors that have no framework.

Everything that a proof covers is taken from the connection and the bytes, never from what the request says of itself.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from litestar.types import HTTPScope, Receive, Send

from agentpost.auth.external.proofs import url_key
from agentpost.auth.external.wire import Call
from agentpost.edges.http.errors import headers_of
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal

__all__ = ["call_from", "read_body", "send_answer", "send_refusal"]


def call_from(gateway: Gateway, scope: HTTPScope, body: bytes) -> Call:
    headers = list(scope["headers"])
    client = scope["client"]
    return Call(
        method=scope["method"],
        urls=_urls(gateway, scope),
        address=client[0] if client else "unknown",
        origin=_only(headers, b"origin", ""),
        authorization=_only(headers, b"authorization"),
        proof=_only(headers, b"dpop"),
        body=body,
    )


async def read_body(receive: Receive, *, most_bytes: int) -> bytes:
    """The whole body; refused as soon as it is too large."""
    parts, size = list[bytes](), 0
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(Code.MALFORMED, "the caller has gone")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > most_bytes:
            raise Refusal(Code.TOO_LARGE, f"the body is larger than {most_bytes} bytes", hint="Send less at once.")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_refusal(refusal: Refusal, send: Send) -> None:
    await send_answer(send, msgspec.json.encode(refusal.to_wire()), status=refusal.status, headers=headers_of(refusal))


async def send_answer(
    send: Send, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None, with_body: bool = True
) -> None:
    """One JSON answer."""
    given = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body if with_body else b"", "more_body": False})


def _only(headers: Iterable[tuple[bytes, bytes]], name: bytes, several: str | None = None) -> str | None:
    """The value of a header that is there once; `several` if it is there more often: nobody picks the one he likes."""
    found = [value for each, value in headers if each.lower() == name]
    if not found:
        return None
    return found[0].decode("latin-1") if len(found) == 1 else several


def _urls(gateway: Gateway, scope: HTTPScope) -> frozenset[str]:
    """The URLs that this request can have been sent to. What the request says of that (Host) is not asked."""
    bases = [gateway.settings.public_url or "", gateway.url]
    if (server := scope["server"]) is not None and server[1] is not None:
        host, port = server
        bases.append(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        if _is_loopback(host):
            bases.append(f"http://localhost:{port}")
    # As it was sent: names in it may have been quoted.
    path = scope["raw_path"].decode("latin-1")
    return frozenset(key for base in bases if base and (key := url_key(base + path)) is not None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
