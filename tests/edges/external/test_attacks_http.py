"""The attacks of the threat model (SECURITY.md) below tokens and proofs: URLs, origins, sizes, slowness, logs."""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from agentpost.edges.http.patience import PatientHttp
from agentpost.edges.runtimes import make_runtime
from agentpost.testing import FakeClock
from tests.edges.external.client import EXCHANGE, INVOKE, AgentClient, code_of
from tests.edges.external.conftest import Door, open_door, recorded_log
from tests.edges.meshing import PATIENCE_SECONDS, ROOM, Stranger, eventually, invite
from tests.edges.running import served_gateway

INVALID = (401, "invalid_access_token")
STATUS = {"operation": "ansible_status", "args": {}}
MOST_BODY_BYTES = 1_048_576 + 65_536


@pytest.fixture(scope="module")
def codex(gate: Door) -> AgentClient:
    return gate.agent("codex")


@pytest.mark.req("AUTH-9")
@pytest.mark.parametrize("name", ["access_token", "token", "authorization", "dpop"])
def test_a_token_in_the_url_counts_for_nothing(codex: AgentClient, name: str) -> None:
    """URLs get logged, so nothing is read from them: not for calls, not for the room."""
    body = json.dumps(STATUS).encode()
    proof = codex.proof(INVOKE, token=codex.access_token, body=body)
    in_url = {name: f"DPoP {codex.access_token}" if name == "authorization" else codex.access_token}
    assert code_of(codex.post(INVOKE, body, {"dpop": proof}, params=in_url)) == INVALID


@pytest.mark.req("AUTH-9")
def test_a_ticket_in_the_url_opens_no_room(gate: Door, tmp_path: Path) -> None:
    """A good ticket, in the query instead of a header: no connection, and the ticket is still good."""
    stranger = Stranger("url-jane", tmp_path / "stranger", gate.url)
    token = invite(gate.served, "url-jane")
    ticket = stranger.ticket(token)
    gate.secrets |= {token, ticket}
    status, body = stranger.knock(None, f"{ROOM}?ticket={ticket}&access_token={ticket}")
    assert (status, body["error"]["code"]) == (401, "invalid_ticket")
    assert stranger.knock(ticket)[0] == 101


@pytest.mark.req("AUTH-1")
@pytest.mark.parametrize("path", [ROOM, "/ansible/link", INVOKE, "/ansible/agent/", "/mcp"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_a_page_of_a_browser_opens_no_websocket(gate: Door, path: str, origin: str) -> None:
    """Cross-origin WebSockets are refused before the upgrade, wherever they try."""
    url = gate.url.replace("http", "ws", 1) + path
    with pytest.raises(InvalidStatus) as refused, connect(url, origin=origin, open_timeout=PATIENCE_SECONDS):
        pass
    assert refused.value.response.status_code in (403, 404)


@pytest.mark.req("EXT-5")
def test_a_page_calls_only_from_an_origin_that_was_named(gate: Door) -> None:
    """A request with an Origin needs an invite that lists it, also with the right token and proof."""
    plain = gate.agent("plain")
    evil, app = {"origin": "https://evil.example"}, {"origin": "https://app.example"}
    assert code_of(plain.call(INVOKE, STATUS, headers=evil)) == (403, "scope_denied")
    assert plain.call(INVOKE, STATUS).status_code == 200
    named = {"constraints": {"origins": ["https://app.example"]}}
    token, client = gate.invite("page", **named), gate.client()
    assert code_of(client.exchange(token, "page", headers=evil)) == (403, "scope_denied")
    answer = client.exchange(token, "page", headers=app)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers
    assert client.call(INVOKE, STATUS, headers=app).status_code == 200
    assert code_of(client.call(INVOKE, STATUS, headers=evil)) == (403, "scope_denied")


@pytest.mark.req("EXT-1")
def test_a_body_that_is_too_large_is_not_read(codex: AgentClient) -> None:
    """Announced or in pieces without an end: refused at the limit, and the gateway answers others."""
    huge = b'{"operation": "ansible_status", "args": {"x": "' + b"x" * MOST_BODY_BYTES + b'"}}'
    assert code_of(codex.post(INVOKE, huge)) == (413, "too_large")

    sent = 0

    def pieces() -> Any:
        nonlocal sent
        for _ in range(1_000):
            sent += 65_536
            yield b"x" * 65_536

    # The gateway may hang up while the rest is on its way.
    with contextlib.suppress(httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        answer = httpx.post(codex.url + INVOKE, content=pieces(), timeout=PATIENCE_SECONDS)
        assert answer.status_code in (400, 413)
    assert codex.ask("ansible_status")


@pytest.mark.req("EXT-1")
def test_headers_without_end_are_refused(gate: Door) -> None:
    """A header of megabytes gets an answer, or the connection is cut; it is not collected."""
    host, port = gate.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as raw:
        with contextlib.suppress(OSError):
            raw.sendall(b"POST /ansible/agent/invoke HTTP/1.1\r\nHost: localhost\r\nDPoP: " + b"x" * 4_000_000)
        with contextlib.suppress(OSError):
            assert raw.recv(100).startswith((b"HTTP/1.1 4", b""))
    assert httpx.get(f"{gate.url}/health/live", timeout=PATIENCE_SECONDS).status_code == 200


@pytest.mark.req("EXT-1")
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /ansible/agent/invoke HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /ansible/agent/invoke HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 1000\r\nContent-Type: application/json\r\n\r\n{",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health/live HTTP/1.1\r\n",
    ],
    ids=["nothing", "half of the headers", "half of the body", "a second request"],
)
def test_who_sends_byte_by_byte_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """Slow-loris: a connection that does not bring a whole request in time is gone, however busy it looks."""
    monkeypatch.setattr(PatientHttp, "header_seconds", 0.5)
    monkeypatch.setattr(PatientHttp, "request_seconds", 0.5)
    with open_door(tmp_path / "vps-jane") as door:
        host, port = door.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as raw:
            raw.sendall(begun)
            raw.settimeout(0.05)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not _is_cut(raw, begun):
                assert time.monotonic() < deadline, "the connection is still open"
        # Who brings a whole request has all the time that the answer takes.
        codex = door.agent()
        assert codex.ask("ansible_read_messages", claim=True, waitSeconds=2)["claimed"] == []


def test_a_websocket_is_not_a_slow_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is open it may be quiet for as long as it likes."""
    monkeypatch.setattr(PatientHttp, "header_seconds", 0.3)
    monkeypatch.setattr(PatientHttp, "request_seconds", 0.3)
    with open_door(tmp_path / "vps-jane") as door:
        stranger = Stranger("mbp-jane", tmp_path / "stranger", door.url)
        token = invite(door.served)
        ticket = stranger.ticket(token)
        door.secrets |= {token, ticket}
        headers = {"Authorization": f"Bearer {ticket}"}
        url = door.url.replace("http", "ws", 1) + ROOM
        with connect(url, additional_headers=headers, compression=None, open_timeout=PATIENCE_SECONDS) as room:
            room.recv(PATIENCE_SECONDS)
            time.sleep(1)
            room.ping().wait(PATIENCE_SECONDS)
            assert room.close_code is None


def _is_cut(raw: socket.socket, begun: bytes) -> bool:
    """Send one byte more, as long as somebody takes it."""
    try:
        while raw.recv(4096):
            pass
        return True
    except TimeoutError:
        pass
    except OSError:
        return True
    try:
        if begun:
            raw.sendall(b" ")
    except OSError:
        return True
    return False


NASTY = [
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/etc/passwd",
    "evt_\x00",
    "evt_' OR 1=1 --",
    "evt_\n2026-11-16 gateway vps-jane is revoked",
    "\x1b[2J\x1b[31mowned",
    "{{7*7}}",
    "evt_" + "A" * 10_000,
    "\ud800",
]


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_an_id_is_data_wherever_it_stands(gate: Door, codex: AgentClient, nasty: str) -> None:
    """Paths, SQL, control characters, half characters, in every field that takes an id: refused in plain words."""
    for operation, args in (
        ("ansible_read_messages", {"eventIds": [nasty]}),
        ("ansible_mark_read", {"eventIds": [nasty]}),
        ("ansible_send_message", {"replyTo": nasty}),
        ("ansible_send_message", {"toAgents": [nasty], "body": "x"}),
        ("ansible_send_message", {"toAgents": ["codex"], "body": "x", "corrId": nasty}),
        ("ansible_status", {"eventId": nasty}),
        (nasty[:200], {}),
    ):
        answer = codex.invoke(operation, args)
        assert answer.status_code in (400, 403, 404), (operation, args, answer.text)
        assert answer.json()["error"]["message"]
    assert codex.invoke("ansible_status", {}, nasty[:200]).status_code == 400
    answer = codex.exchange("agp_invite_x", nasty[:200])
    assert answer.status_code in (400, 401)
    path = "/ansible/agent/" + nasty.encode("utf-8", "replace").hex()
    assert codex.post(path, b"{}").status_code == 404


@pytest.mark.req("AUTH-9")
def test_nobody_writes_lines_into_the_log(tmp_path: Path) -> None:
    """Line breaks and terminal codes in paths, headers, names and messages do not get into the log as such."""
    forged = "gateway vps-jane is compromised"
    with recorded_log() as log, open_door(tmp_path / "vps-jane") as door:
        codex = door.agent()
        nasty = f"x\r\n{forged}\x1b[31m"
        codex.invoke(nasty, {"a": nasty}, nasty)
        codex.exchange("agp_invite_x", nasty)
        codex.invoke("ansible_send_message", {"toAgents": ["codex"], "subject": nasty, "body": nasty})
        for path in (f"/ansible/agent/%0d%0a{forged.replace(' ', '%20')}", "/%0a%1b[31m", "/health/%0alive"):
            httpx.post(door.url + path, timeout=PATIENCE_SECONDS)
        httpx.post(door.url + EXCHANGE, json={}, headers={"user-agent": forged, "origin": forged}, timeout=60)
        audit = door.audit()
    assert not any(line.startswith(forged) for line in log.getvalue().splitlines())
    assert "\x1b" not in log.getvalue()
    shown = [str(value) for entry in audit for value in (*entry.values(), *entry.get("detail", {}).values())]
    assert not any("\n" in text or "\x1b" in text for text in shown if isinstance(text, str))


@pytest.mark.req("EXT-2")
def test_guessing_is_slow_and_working_is_not(tmp_path: Path) -> None:
    """Wrong tokens from an address get 429 soon; an agent at the same address that proves its key is not held up."""
    clock = FakeClock()
    with recorded_log(), served_gateway(tmp_path / "vps-jane", clock=clock, runtimes=make_runtime) as served:
        door = Door(served)
        codex = door.agent()
        guesser, guess = door.client(), "a.b.c"
        statuses = [guesser.exchange("agp_invite_guess").status_code for _ in range(40)]
        assert statuses[0] == 401
        assert statuses[-1] == 429
        calls = [guesser.invoke("ansible_status", token=guess).status_code for _ in range(40)]
        assert calls[0] == 401
        assert calls[-1] == 429
        assert codex.ask("ansible_status")
        limited = guesser.exchange("agp_invite_guess")
        assert code_of(limited) == (429, "rate_limited")
        assert int(limited.headers["retry-after"]) >= 1
        clock.advance(120_000)
        assert guesser.exchange("agp_invite_guess").status_code == 401
        refused = [entry for entry in door.audit() if entry["detail"].get("code") == "rate_limited"]
        # One line for a row of them.
        assert len(refused) <= 3


@pytest.mark.req("EXT-5")
def test_nobody_says_where_he_comes_from(gate: Door) -> None:
    """Headers of proxies are not believed: neither the audit nor the limits, nor the tailnet, go by them."""
    client = gate.client()
    forged = {"x-forwarded-for": "100.64.0.7", "forwarded": "for=100.64.0.7", "x-real-ip": "100.64.0.7"}
    assert client.exchange(gate.invite("traveller"), "traveller", headers=forged).status_code == 200
    (entry, *_) = gate.audit(sessionId=client.session["sessionId"])
    assert entry["detail"]["address"] == "127.0.0.1"


@pytest.mark.req("EXT-2")
def test_a_session_is_limited_too(tmp_path: Path) -> None:
    """An agent that runs wild is told to slow down, and goes on after that."""
    with open_door(tmp_path / "vps-jane") as door:
        codex = door.agent()
        answers = [codex.invoke("ansible_status").status_code for _ in range(245)]
        assert answers[0] == 200
        assert answers[-1] == 429
        door.clock.advance(1_000)
        assert codex.ask("ansible_status")


def test_the_operators_word_is_heard_within_a_second_by_everybody(door: Door) -> None:
    """Twenty agents at work; when they are revoked, each next call is refused."""
    agents = [door.agent(f"agent-{number}") for number in range(20)]
    for number in range(20):
        door.operator.post("/ansible/agent/revoke", {"agentId": f"agent-{number}"})
    assert {agent.invoke("ansible_status").status_code for agent in agents} == {401}
    eventually(lambda: all(s["state"] == "revoked" for s in door.operator.get("/ansible/agent/sessions")))
