"""Nodes that the tailnet vouches for: a real Unix socket that answers as tailscaled does."""

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from agentpost.edges.tailnet import Tailnet
from agentpost.protocol.errors import Code
from tests.edges.meshing import Stranger, invite
from tests.edges.running import agentpost, running_gateway
from tests.store.building import refused

NAME = "mbp-jane.tail1234.ts.net"


class Tailscaled(socketserver.ThreadingUnixStreamServer):
    """`whois` of tailscaled's local API: the machines by address, and what was asked."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Handler)
        self.path = path
        self.machines: dict[str, Any] = {}
        self.asked: list[str] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Tailscaled
    _HOSTS: ClassVar = {"", "local-tailscaled.sock", "localhost"}

    def do_GET(self) -> None:
        at = parse_qs(urlsplit(self.path).query).get("addr", [""])[0]
        self.server.asked.append(at)
        machine = self.server.machines.get(at.rpartition(":")[0].strip("[]"))
        if self.headers["host"] not in self._HOSTS:
            self._answer(403, b"invalid localapi request")
        elif urlsplit(self.path).path != "/localapi/v0/whois":
            self._answer(404, b"404 page not found")
        elif machine is None:
            self._answer(404, f"no match for IP:port {at}".encode())
        elif isinstance(machine, str):
            self._answer(200, json.dumps(whois_of(machine)).encode())
        else:
            self._answer(*machine)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def whois_of(name: str) -> dict[str, Any]:
    """An answer of tailscaled, shortened. `Hostinfo` is what the machine says of itself, and proves nothing."""
    return {
        "Node": {
            "ID": 1843712398237,
            "StableID": "nWYFCsjSLC21CNTRL",
            "Name": f"{name}.",
            "User": 5832,
            "Key": "nodekey:d7b6",
            "Addresses": ["100.83.168.103/32", "fd7a:115c:a1e0::da01:a867/128"],
            "Hostinfo": {"OS": "macOS", "Hostname": NAME},
            "ComputedName": name.partition(".")[0],
            "ComputedNameWithHost": name.partition(".")[0],
        },
        "UserProfile": {"ID": 5832, "LoginName": "jane@example.com", "DisplayName": "Jane"},
        "CapMap": None,
    }


@pytest.fixture
def tailscaled(tmp_path: Path) -> Iterator[Tailscaled]:
    with Tailscaled(tmp_path / "tailscaled.sock") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.req("AUTH-7")
async def test_whois_gives_the_full_name_of_a_machine(tailscaled: Tailscaled) -> None:
    """By address and port, of IPv4 and IPv6; whoever is not of the tailnet has no name."""
    tailscaled.machines = {"100.83.168.103": NAME, "fd7a:115c:a1e0::da01:a867": "LAB-jane.tail1234.ts.net"}
    tailnet = Tailnet(tailscaled.path)
    assert await tailnet.whois("100.83.168.103", 40_001) == NAME
    assert await tailnet.whois("fd7a:115c:a1e0::da01:a867", 40_002) == "lab-jane.tail1234.ts.net"
    assert await tailnet.whois("192.0.2.7", 40_003) is None
    assert tailscaled.asked == ["100.83.168.103:40001", "[fd7a:115c:a1e0::da01:a867]:40002", "192.0.2.7:40003"]


@pytest.mark.req("AUTH-7")
@pytest.mark.parametrize("answer", [(500, b"internal"), (403, b"denied")])
async def test_a_tailscaled_that_does_not_say_vouches_for_nobody(
    tailscaled: Tailscaled, tmp_path: Path, answer: tuple[int, bytes]
) -> None:
    """If it refuses, or is not there, that is said, and nobody is taken for anybody."""
    tailscaled.machines = {"100.83.168.103": answer}
    for socket in (tailscaled.path, tmp_path / "nothing.sock"):
        with refused(Code.UNAVAILABLE):
            await Tailnet(socket).whois("100.83.168.103", 1)


@pytest.mark.req("AUTH-7")
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"Node": null}', b'{"Node": {"Name": 7}}', b"\xff"])
async def test_an_answer_that_makes_no_sense_is_no_name(tailscaled: Tailscaled, body: bytes) -> None:
    """Whatever tailscaled may say one day."""
    tailscaled.machines = {"100.83.168.103": (200, body)}
    assert await Tailnet(tailscaled.path).whois("100.83.168.103", 1) is None


@pytest.mark.req("AUTH-7")
def test_an_invite_for_a_machine_of_the_tailnet_is_good_for_no_other(tailscaled: Tailscaled, tmp_path: Path) -> None:
    """The token and a key are not enough: the address must be that machine's, by the word of tailscaled."""
    home = tmp_path / "vps-jane"
    with running_gateway(home, "--tailnet-socket", str(tailscaled.path)) as seed:
        words = ("--node", "mbp-jane", "--tailnet", f"{NAME}.", "--home", str(home), "-o", "json")
        token = json.loads(agentpost("invite", *words).stdout)["token"]
        stranger = Stranger("mbp-jane", tmp_path / "stranger", seed.url)

        def code() -> tuple[int, str]:
            answer = stranger.exchange(token)
            return answer.status_code, answer.json()["error"]["code"]

        assert code() == (401, "node_proof_invalid")
        for wrong in ("mbp-jane.another-tailnet.ts.net", "lab-jane.tail1234.ts.net"):
            tailscaled.machines = {"127.0.0.1": wrong}
            assert code() == (401, "node_proof_invalid")
        tailscaled.machines = {"127.0.0.1": (500, b"")}
        assert code() == (503, "unavailable")
        tailscaled.machines = {"127.0.0.1": NAME}
        assert stranger.knock(stranger.ticket(token)) == (101, {})
        asked = len(tailscaled.asked)
        assert all(not at.endswith(":0") for at in tailscaled.asked)
        # An invite that does not name a machine asks nobody.
        other = Stranger("lab-jane", tmp_path / "other", seed.url)
        assert other.knock(other.ticket(invite(seed, "lab-jane"))) == (101, {})
        assert len(tailscaled.asked) == asked


@pytest.mark.req("AUTH-7")
def test_a_gateway_without_a_tailnet_makes_no_such_invite(tmp_path: Path) -> None:
    """It says which setting is missing; and a short name, which another tailnet may have too, is never enough."""
    home = tmp_path / "vps-jane"
    words = ("invite", "--node", "mbp-jane", "--home", str(home), "--tailnet")
    with running_gateway(home) as seed:
        shown = agentpost(*words, NAME)
        assert shown.returncode == 2
        assert "tailnet_socket" in shown.stderr
        seed.end()
    with running_gateway(home, "--tailnet-socket", str(tmp_path / "tailscaled.sock")):
        shown = agentpost(*words, "mbp-jane")
        assert shown.returncode == 2
        assert "mbp-jane.tail1234.ts.net" in shown.stderr
