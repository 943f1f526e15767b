"""Requests that no client of ours makes: for another host, of two lengths, or with a body that is not JSON."""

import json
import socket
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from agentpost.testing import FakeClock
from tests.edges.meshing import PATIENCE_SECONDS, ROOM
from tests.edges.running import ServedGateway, served_gateway

LIVE = "GET /health/live HTTP/1.1\r\n"
CHALLENGE = "POST /ansible/auth/challenge HTTP/1.1\r\n"
BODY = '{"nodeId": "mbp-jane"}'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    home = tmp_path_factory.mktemp("strict") / "home"
    with served_gateway(home, clock=FakeClock(), public_url="https://post.example.org/mesh") as served:
        yield served


def place_of(served: ServedGateway) -> tuple[str, int]:
    host, port = served.url.removeprefix("http://").split(":")
    return host, int(port)


def said(place: tuple[str, int] | str, request: str) -> bytes:
    """All that the gateway answers until it ends the connection."""
    family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
    with socket.socket(family) as raw:
        raw.settimeout(PATIENCE_SECONDS)
        raw.connect(place)
        raw.sendall(request.encode())
        answer = b""
        while part := raw.recv(65_536):
            answer += part
        return answer


def error_in(answer: bytes) -> tuple[int, str, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    return int(head.split()[1]), error["code"], error["field"]


@pytest.mark.parametrize(
    "host", ["attacker.example", "127.0.0.1.attacker.example:80", "localhost.attacker.example", "[", ""]
)
def test_a_foreign_host_name_is_refused(served: ServedGateway, host: str) -> None:
    """DNS rebinding: a page whose name points to this machine says its own name as Host, and gets no answer."""
    answer = said(place_of(served), f"{LIVE}Host: {host}\r\n\r\n")
    assert error_in(answer) == (400, "invalid_field", "host")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:1", "[::1]:7800", "localhost:7800", "LOCALHOST", "localhost.", "post.example.org"]
)
def test_own_names_and_addresses_are_answered(served: ServedGateway, host: str) -> None:
    """The name in `public_url`, localhost, and addresses, which need no look-up."""
    answer = said(place_of(served), f"{LIVE}Host: {host}\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert said(place_of(served), f"{LIVE}Host: {socket.gethostname()}\r\nConnection: close\r\n\r\n")[9:12] == b"200"


@pytest.mark.req("AUTH-1")
@pytest.mark.parametrize("path", [ROOM, "/ansible/link"])
def test_no_websocket_opens_for_another_host(served: ServedGateway, path: str) -> None:
    """The same before an upgrade, whatever ticket comes along."""
    host, port = place_of(served)
    with (
        socket.create_connection((host, port), timeout=PATIENCE_SECONDS) as raw,
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws://attacker.example:{port}{path}", sock=raw, open_timeout=PATIENCE_SECONDS),
    ):
        pass
    response = refused.value.response
    assert (response.status_code, json.loads(response.body or b"")["error"]["field"]) == (400, "host")


def test_a_request_with_two_lengths_ends_its_connection(served: ServedGateway) -> None:
    """Content-Length beside Transfer-Encoding: what a proxy takes for a body must not become a second request."""
    smuggled = f"{LIVE}Host: localhost\r\n\r\n"
    both = f"Host: localhost\r\nContent-Length: {5 + len(smuggled)}\r\nTransfer-Encoding: chunked\r\n"
    answer = said(place_of(served), f"{CHALLENGE}{both}content-type: application/json\r\n\r\n0\r\n\r\n{smuggled}")
    assert error_in(answer) == (400, "malformed", "content-length")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: +4\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Host: localhost\r\n",
    ],
)
def test_a_length_that_is_none_ends_the_connection(served: ServedGateway, lengths: str) -> None:
    """Two lengths, a length with a sign, unknown encodings, a space before a colon, two hosts: refused, and the end."""
    smuggled = f"{LIVE}Host: localhost\r\n\r\n"
    answer = said(place_of(served), f"{CHALLENGE}Host: localhost\r\n{lengths}\r\n0\r\n\r\n{smuggled}")
    assert answer[9:10] in (b"4", b"5")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", None]
)
@pytest.mark.parametrize("door", ["public", "operator"])
def test_a_body_that_says_it_is_something_else_is_not_read(served: ServedGateway, kind: str | None, door: str) -> None:
    """What a page can send without a preflight, `text/plain` or no type at all, is never read as JSON."""
    place = place_of(served) if door == "public" else str(served.gateway.settings.home / "operator.sock")
    path = "/ansible/auth/challenge" if door == "public" else "/operator/revoke"
    body = BODY if door == "public" else '{"node": "mbp-jane"}'
    header = "" if kind is None else f"content-type: {kind}\r\n"
    request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{header}\r\n{body}"
    assert error_in(said(place, request)) == (400, "malformed", "content-type")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"])
def test_json_is_read(served: ServedGateway, kind: str) -> None:
    """With parameters, in capitals, or as a kind of JSON."""
    head = f"Host: localhost\r\nConnection: close\r\nContent-Length: {len(BODY)}\r\ncontent-type: {kind}\r\n"
    assert said(place_of(served), f"{CHALLENGE}{head}\r\n{BODY}")[9:12] == b"200"
