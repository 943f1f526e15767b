"""Connections that do nothing, or little: they take no place from those that have something to do."""

import contextlib
import json
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from agentpost.edges.http.connections import ConnectionBudget, Slot
from agentpost.edges.http.patience import HEADER_SECONDS, PatientHttp
from agentpost.protocol.errors import Code, Refusal
from agentpost.testing import FakeClock
from tests.edges.meshing import PATIENCE_SECONDS, ROOM, Stranger, eventually, invite
from tests.edges.running import ServedGateway, agentpost, running_gateway, served_gateway

HERE, THERE, PEER = "203.0.113.1", "203.0.113.2", "203.0.113.3"


@contextlib.contextmanager
def idle_sockets(url: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing, from several addresses of this machine."""
    host, port = url.removeprefix("http://").split(":")
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for number in range(count):
            raw = stack.enter_context(socket.socket())
            raw.settimeout(PATIENCE_SECONDS)
            raw.bind((f"127.0.0.{2 + number % 4}", 0))
            raw.connect((host, int(port)))
            sockets.append(raw)
        yield sockets
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def is_over(raw: socket.socket) -> bool:
    """Whether the other side ends the connection; waits for it."""
    try:
        while raw.recv(65_536):
            pass
    except OSError:
        pass
    return True


@pytest.mark.waits
def test_idle_sockets_do_not_starve_other_callers(tmp_path: Path) -> None:
    """1,100 silent connections at a gateway that may have 1,024 files open: its operator, a peer that is there, a peer
    that comes, and a stranger are all served, and `doctor` says that the limit is short."""
    home = tmp_path / "vps-jane"
    with running_gateway(home, within=("prlimit", "--nofile=1024:1024")) as gateway:
        there = Stranger("mbp-jane", tmp_path / "there", gateway.url)
        comes = Stranger("lab-jane", tmp_path / "comes", gateway.url)
        ticket, token = there.ticket(invite(gateway)), invite(gateway, "lab-jane")
        headers = {"Authorization": f"Bearer {ticket}"}
        url = gateway.url.replace("http", "ws", 1) + ROOM
        with connect(url, additional_headers=headers, compression=None, open_timeout=PATIENCE_SECONDS) as room:
            room.recv(PATIENCE_SECONDS)
            with idle_sockets(gateway.url, 1_100):
                status = agentpost("status", "--home", str(home))
                assert (status.returncode, status.stderr) == (0, "")
                assert httpx.get(f"{gateway.url}/health/ready", timeout=PATIENCE_SECONDS).status_code == 200
                assert comes.knock(comes.ticket(token))[0] == 101
                room.ping().wait(PATIENCE_SECONDS)
                examined = agentpost("doctor", "--home", str(home), "-o", "json")
                problems = {found["check"]: found for found in json.loads(examined.stdout) if not found["ok"]}
                assert set(problems) == {"open files"}
                assert "1,024 files" in problems["open files"]["message"]
                assert "LimitNOFILE" in problems["open files"]["hint"]


def test_a_gateway_takes_as_many_files_as_it_may_have(tmp_path: Path) -> None:
    """A low soft limit is raised to the hard one at the start."""
    with running_gateway(tmp_path / "vps-jane", within=("prlimit", "--nofile=256:8192")) as gateway:
        assert gateway.operator.get("/operator/status")["openFilesLimit"] == 8192


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedGateway]:
    monkeypatch.setattr(PatientHttp, "header_seconds", 0.3)
    monkeypatch.setattr(PatientHttp, "unread_seconds", 0.3)
    with served_gateway(tmp_path / "home", clock=FakeClock()) as served:
        yield served


@contextlib.contextmanager
def raw_connection(served: ServedGateway, *, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.socket() as raw:
        raw.settimeout(PATIENCE_SECONDS)
        if receive_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.connect((host, int(port)))
        yield raw


def test_headers_have_less_time_than_a_body(served: ServedGateway) -> None:
    """Byte by byte: headers that do not end are cut off, while a body on a poor line still arrives."""
    body = b'{"nodeId": "mbp-jane"}'
    with raw_connection(served) as slow:
        slow.sendall(b"POST /ansible/auth/challenge HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
        slow.sendall(f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for byte in body:
            time.sleep(0.02)
            slow.sendall(bytes((byte,)))
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200")
    with raw_connection(served) as endless:
        endless.settimeout(0.02)
        endless.sendall(b"GET /health/live HTTP/1.1\r\n")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _is_cut(endless, b"X"):
            assert time.monotonic() < deadline, "the connection is still open"


@pytest.mark.waits
def test_a_gateway_that_stood_still_answers_what_came_meanwhile(tmp_path: Path) -> None:
    """A gateway that is stopped for longer than a request may take, as a laptop that sleeps, cuts no caller off that
    has said all of its request."""
    with running_gateway(tmp_path / "vps-jane") as gateway, contextlib.ExitStack() as stack:
        host, port = gateway.url.removeprefix("http://").split(":")
        callers = [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(8)]
        for raw in callers:
            raw.sendall(b"GET /health/live HTTP/1.1\r\n")
        eventually(lambda: httpx.get(f"{gateway.url}/health/live", timeout=60).status_code == 200)
        gateway.process.send_signal(signal.SIGSTOP)
        for raw in callers:
            raw.sendall(b"Host: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(HEADER_SECONDS + 1)
        gateway.process.send_signal(signal.SIGCONT)
        assert [raw.recv(65_536)[9:12] for raw in callers] == [b"200"] * len(callers)


def test_a_caller_that_reads_nothing_is_cut_off(served: ServedGateway) -> None:
    """Answers that are asked for and not read: the connection ends, and with it what was kept for it."""
    ask = b"GET /ansible/openapi/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with raw_connection(served, receive_bytes=1_024) as raw:
        raw.settimeout(0.05)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _is_refused(raw, ask):
            assert time.monotonic() < deadline, "the connection is still open"


def _is_cut(raw: socket.socket, more: bytes) -> bool:
    try:
        if not raw.recv(4_096):
            return True
    except TimeoutError:
        pass
    except OSError:
        return True
    return _is_refused(raw, more)


def _is_refused(raw: socket.socket, more: bytes) -> bool:
    """Whether the gateway has ended the connection. Reads nothing."""
    try:
        raw.sendall(more)
    except TimeoutError:
        pass
    except OSError:
        return True
    return bool(raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def test_bodies_of_strangers_fill_no_memory(tmp_path: Path) -> None:
    """Three hundred requests of a megabyte that never end, before any of them has proved anything: the largest are cut,
    and small requests are answered meanwhile."""
    head = b"POST /ansible/agent/invoke HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with running_gateway(tmp_path / "vps-jane") as gateway, contextlib.ExitStack() as stack:
        before = _resident_bytes(gateway.process.pid)
        host, port = gateway.url.removeprefix("http://").split(":")
        for _ in range(300):
            raw = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS))
            with contextlib.suppress(OSError):
                raw.sendall(head + b"Content-Length: 1100000\r\n\r\n" + b'"' + b"x" * 1_000_000)
        asked = httpx.post(
            f"{gateway.url}/ansible/auth/challenge", json={"nodeId": "mbp-jane"}, timeout=PATIENCE_SECONDS
        )
        assert asked.status_code == 200
        assert _resident_bytes(gateway.process.pid) - before < 200 * 1024 * 1024


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


class Ended:
    """Connections by name, and which of them were cut."""

    def __init__(self, most: int) -> None:
        self.budget = ConnectionBudget(most)
        self.cut: list[str] = []

    def open(self, name: str, address: str = HERE) -> Slot | None:
        slot = Slot(self.budget, lambda: self.cut.append(name))
        return slot if slot.open(address) else None


def test_one_address_has_a_part_of_the_places() -> None:
    """Its own oldest idle connection goes for its newest; those of other addresses stay."""
    ended = Ended(80)  # 40 for the proven, 10 for the addresses of peers, 30 for strangers: 15 for an address.
    ended.open("other", THERE)
    for number in range(20):
        ended.open(f"here {number}")
    assert ended.cut == [f"here {number}" for number in range(5)]


def test_many_addresses_leave_a_place_for_the_next() -> None:
    """With all places taken from everywhere, the connection that has been idle longest goes."""
    ended = Ended(80)
    for number in range(40):
        ended.open(f"{number}", f"198.51.100.{number}")
    assert ended.cut == [f"{number}" for number in range(10)]


def test_a_request_under_way_is_not_cut() -> None:
    """A connection with a whole request keeps its place; when all have one, the next is refused."""
    ended = Ended(80)
    slots = [ended.open(f"{number}") for number in range(15)]
    for slot in slots:
        assert slot is not None
        slot.note_busy()
    assert ended.open("late") is None
    assert ended.open("another address", THERE) is not None
    assert slots[3] is not None
    slots[3].note_idle()
    assert ended.open("later") is not None
    assert ended.cut == ["3"]


def test_an_ipv6_network_is_one_address() -> None:
    """A /64 has 2 to the power of 64 addresses, and the quota of one."""
    ended = Ended(80)
    for number in range(20):
        ended.open(f"{number}", f"2001:db8::{number:x}")
    assert len(ended.cut) == 5


def test_the_address_of_a_peer_has_places_of_its_own() -> None:
    """Where a pinned peer proved itself, it gets in again however many strangers there are."""
    ended = Ended(80)
    slot = ended.open("peer", PEER)
    assert slot is not None
    slot.prove("node mbp-jane", is_peer=True)
    slot.close()
    back = ended.open("back", PEER)
    assert back is not None
    for number in range(100):
        ended.open(f"{number}", f"198.51.100.{number}")
    assert "back" not in ended.cut
    back.prove("node mbp-jane", is_peer=True)
    assert "back" not in ended.cut


def test_a_principal_has_so_many_connections_and_no_more() -> None:
    """After authentication connections count for the node or the session, and no longer for the address."""
    ended = Ended(4_000)
    slots = [slot for number in range(128) if (slot := ended.open(f"{number}")) is not None]
    for slot in slots:
        slot.prove("session ses_1")
        slot.prove("session ses_1")
    one_more = ended.open("one more")
    assert one_more is not None
    with pytest.raises(Refusal) as refused:
        one_more.prove("session ses_1")
    assert refused.value.code is Code.RATE_LIMITED
    one_more.prove("session ses_2")
    slots[0].close()
    next_one = ended.open("next")
    assert next_one is not None
    next_one.prove("session ses_1")
    assert ended.cut == []


def test_the_proven_have_places_that_strangers_do_not_get() -> None:
    """They have a limit as well: a further principal is refused, and no connection is cut."""
    ended = Ended(80)
    for number in range(40):
        slot = ended.open(f"{number}", f"198.51.100.{number}")
        assert slot is not None
        slot.prove(f"node n{number}")
    late = ended.open("late")
    assert late is not None
    with pytest.raises(Refusal) as refused:
        late.prove("node late")
    assert refused.value.code is Code.UNAVAILABLE
    assert ended.cut == []


def test_of_too_many_bytes_the_largest_go() -> None:
    """The caller with most bytes of an incomplete request is cut; those with few are not."""
    ended = Ended(80)
    small, large, larger = (ended.open(name) for name in ("small", "large", "larger"))
    assert small is not None
    assert large is not None
    assert larger is not None
    small.add_bytes(1_000)
    large.add_bytes(30_000_000)
    larger.add_bytes(40_000_000)
    assert ended.cut == ["larger"]
    large.release_bytes()
    small.add_bytes(60_000_000)
    assert ended.cut == ["larger"]
    large.prove("node mbp-jane")
    large.add_bytes(60_000_000)
    assert ended.cut == ["larger"]
    small.close()
    assert ended.budget.unproven_bytes == 0


def test_nothing_is_kept_of_connections_that_ended() -> None:
    """A flood from ever new addresses leaves no memory behind."""
    ended = Ended(80)
    for number in range(500):
        slot = ended.open(f"{number}", f"10.0.{number // 250}.{number % 250}")
        assert slot is not None
        if number % 2:
            slot.prove(f"node n{number}")
        slot.close()
        slot.close()
    assert (ended.budget.by_address, ended.budget.by_principal, ended.budget.proven_count) == ({}, {}, 0)
    assert (ended.budget.strangers.count, ended.budget.strangers.idle) == (0, {})


@pytest.mark.parametrize("seed", range(20))
def test_places_are_counted_whatever_happens(seed: int) -> None:
    """Any order of opening, working, waiting, proving, cutting and closing: the counts are those of what is open."""
    chance = random.Random(seed)
    ended = Ended(40)
    slots: list[Slot] = []
    for number in range(400):
        what = chance.choice(["open", "open", "note_idle", "note_busy", "prove", "close", "cut"])
        if what == "open":
            address = chance.choice([HERE, THERE, PEER, f"198.51.100.{chance.randrange(20)}"])
            if (opened := ended.open(f"{number}", address)) is not None:
                slots.append(opened)
        elif slots:
            slot = chance.choice(slots)
            if what == "prove":
                with contextlib.suppress(Refusal):
                    slot.prove(chance.choice([None, "node a", "session b"]), is_peer=chance.random() < 0.5)
            else:
                getattr(slot, what)()
        budget, proven = ended.budget, sum(slot.is_proven for slot in slots)
        unproven = sum(slot.is_open for slot in slots) - proven
        assert budget.proven_count == proven <= budget.most_proven
        assert budget.strangers.count + budget.known.count == unproven
        assert sum(part.count for part in budget.by_address.values()) == unproven
        assert all(0 < part.count <= part.most for part in budget.by_address.values())
        assert budget.strangers.count <= budget.strangers.most
        assert budget.known.count <= budget.known.most
        assert len(budget.unproven) == unproven
        assert len(budget.strangers.idle) + len(budget.known.idle) <= unproven
