"""Several seeds, none of them special: what nodes do when one is gone, came back late, or came back with nothing."""

import json
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pycrdt import Doc, Map

from agentpost.edges import seed_link
from agentpost.protocol.backoff import RetryPolicy
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.schema import MAPS
from agentpost.testing import FakeClock
from tests.edges.meshing import Stranger, eventually, invite, statuses
from tests.edges.running import RunningGateway, agentpost, running_gateway, served_gateway

Records = dict[str, dict[str, Any]]


class Mesh:
    """Gateways in homes of their own, each on a port that stays its own over restarts."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self._ports: dict[str, int] = {}
        self._tiers: dict[str, str] = {}
        self.up: dict[str, RunningGateway] = {}

    def home(self, node: str) -> Path:
        return self._path / node

    def start(self, node: str, tier: str | None = None) -> RunningGateway:
        port = self._ports.setdefault(node, _free_port())
        tier = self._tiers.setdefault(node, tier or "edge")
        started = running_gateway(self.home(node), node=node, tier=tier, listen=f"127.0.0.1:{port}")
        gateway = self.up[node] = self._stack.enter_context(started)
        return gateway

    def join(self, node: str, by: str, *, tier: str = "edge", **more: Any) -> RunningGateway:
        """Start a gateway and let it join through another."""
        gateway = self.up.get(node) or self.start(node, tier)
        seed = self.up[by]
        gateway.operator.post("/operator/join", {"url": seed.url, "token": invite(seed, node, tier=tier, **more)})
        return gateway

    def end(self, *nodes: str, how: signal.Signals = signal.SIGKILL) -> None:
        ended = [self.up.pop(node) for node in nodes]
        for gateway in ended:
            gateway.process.send_signal(how)
        for gateway in ended:
            gateway.end(how)

    def see(self, *nodes: str) -> None:
        """Wait until every gateway that is up sees exactly these as online."""
        for gateway in self.up.values():
            eventually(lambda gateway=gateway: _online(gateway) == set(nodes))

    def linked(self, node: str, *seeds: str) -> None:
        """Wait until the node has a link to each of these seeds."""
        eventually(lambda: set(seeds) <= {seed for seed, is_up in _links(self.up[node]).items() if is_up})

    def agree(self) -> Records:
        """Wait until all that are up have the same room on their disks; gives it."""
        eventually(lambda: len({json.dumps(records(self.home(node)), sort_keys=True) for node in self.up}) == 1)
        return records(self.home(next(iter(self.up))))


def records(home: Path) -> Records:
    """The room as it is on the disk of a home."""
    with closing(sqlite3.connect(f"file:{home / 'agentpost.db'}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT body FROM room_log ORDER BY id").fetchall()
    document: Any = Doc()
    for (update,) in rows:
        document.apply_update(update)
    found = {name: document.get(name, type=Map).to_py() or {} for name in MAPS}
    # Who leads says so with every turn that it calls: that comes with the time, whatever else happens.
    return {
        name: {key: record for key, record in sorted(each.items()) if not key.startswith("sweepTerm:")}
        for name, each in found.items()
    }


def _online(gateway: RunningGateway) -> set[str]:
    return {node for node, status in statuses(gateway).items() if status == "online"}


def _links(gateway: RunningGateway) -> dict[str, bool]:
    return {seed["nodeId"]: seed["connected"] for seed in gateway.operator.get("/operator/nodes")["seeds"]}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with ExitStack() as stack:
        yield Mesh(tmp_path, stack)


@pytest.fixture
def two_seeds(mesh: Mesh) -> Mesh:
    """Two backbone gateways, of which the second joined the first, and an edge node that joined the first only."""
    mesh.start("vps-jane", "backbone")
    mesh.join("hub-jane", "vps-jane", tier="backbone")
    mesh.join("mbp-jane", "vps-jane")
    mesh.see("vps-jane", "hub-jane", "mbp-jane")
    return mesh


@pytest.mark.req("ROOM-5")
def test_a_node_that_loses_its_seed_stays_in_the_room(two_seeds: Mesh) -> None:
    """It finds the other seed in the room by itself, hears of everything through it, and links again to the first."""
    mesh = two_seeds
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    mesh.end("vps-jane")
    mesh.join("lab-jane", "hub-jane")
    eventually(lambda: {"hub-jane", "lab-jane", "mbp-jane"} <= _online(mesh.up["mbp-jane"]))
    mesh.start("vps-jane")
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    mesh.linked("lab-jane", "vps-jane", "hub-jane")
    mesh.see("vps-jane", "hub-jane", "mbp-jane", "lab-jane")
    mesh.agree()


@pytest.mark.req("ROOM-5", "ROOM-3")
def test_a_seed_that_was_away_hears_of_it_from_whoever_knows(two_seeds: Mesh) -> None:
    """The other seed is gone when it returns: an edge node tells it of a node that joined meanwhile, which gets in."""
    mesh = two_seeds
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    mesh.end("vps-jane")
    mesh.join("lab-jane", "hub-jane")
    eventually(lambda: "lab-jane" in statuses(mesh.up["mbp-jane"]))
    mesh.end("hub-jane")
    mesh.start("vps-jane")
    eventually(lambda: {"vps-jane", "mbp-jane", "lab-jane"} <= _online(mesh.up["vps-jane"]))
    mesh.linked("lab-jane", "vps-jane")
    mesh.start("hub-jane")
    mesh.see("vps-jane", "hub-jane", "mbp-jane", "lab-jane")
    mesh.agree()


@pytest.mark.req("ROOM-5")
@pytest.mark.parametrize("seed", ["vps-jane", "hub-jane"])
def test_a_seed_that_lost_its_room_gets_it_from_the_edges(two_seeds: Mesh, seed: str) -> None:
    """A seed loses the rows of the room, and no other seed is up: a node that joined it brings the room back."""
    mesh = two_seeds
    mesh.join("lab-jane", seed)
    for edge in ("lab-jane", "mbp-jane"):
        mesh.linked(edge, "vps-jane", "hub-jane")
    before = mesh.agree()
    mesh.end("vps-jane", "hub-jane")
    with closing(sqlite3.connect(mesh.home(seed) / "agentpost.db")) as database, database:
        database.execute("DELETE FROM room_log")
    assert records(mesh.home(seed))["nodes"] == {}
    mesh.start(seed)
    for edge in ("lab-jane", "mbp-jane"):
        mesh.linked(edge, seed)
    eventually(lambda: statuses(mesh.up[seed]).keys() == before["nodes"].keys())
    mesh.start("hub-jane" if seed == "vps-jane" else "vps-jane")
    mesh.see("vps-jane", "hub-jane", "mbp-jane", "lab-jane")
    assert mesh.agree()["nodes"].keys() == before["nodes"].keys()


@pytest.mark.req("ROOM-5", "AUTH-7")
@pytest.mark.parametrize("lost", ["vps-jane", "hub-jane"])
def test_a_seed_that_lost_its_disk_comes_back_with_a_new_key(two_seeds: Mesh, lost: str) -> None:
    """It takes the operator's word at another seed; then it has the whole room, and all link to it again."""
    mesh = two_seeds
    other = "hub-jane" if lost == "vps-jane" else "vps-jane"
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    before = mesh.agree()
    mesh.end(lost)
    shutil.rmtree(mesh.home(lost))
    mesh.start(lost)
    with pytest.raises(Refusal) as refused:
        mesh.join(lost, other, tier="backbone")
    assert "--replace-key" in (refused.value.hint or "")
    assert not _links(mesh.up["mbp-jane"])[lost]
    token = operate("invite", "--node", lost, "--tier", "backbone", "--replace-key", home=mesh.home(other))["token"]
    mesh.up[lost].operator.post("/operator/join", {"url": mesh.up[other].url, "token": token})
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    mesh.see("vps-jane", "hub-jane", "mbp-jane")
    after = mesh.agree()
    assert after["nodes"].keys() == before["nodes"].keys()
    assert after["nodes"][lost]["publicKey"] != before["nodes"][lost]["publicKey"]
    # It lets others in again, and everybody believes it.
    mesh.join("lab-jane", lost)
    mesh.see("vps-jane", "hub-jane", "mbp-jane", "lab-jane")
    mesh.linked("lab-jane", "vps-jane", "hub-jane")
    # Nobody needs anything but the disk to believe it after a restart.
    mesh.end("vps-jane", "hub-jane", "mbp-jane", "lab-jane")
    for node in ("mbp-jane", "lab-jane", other, lost):
        mesh.start(node)
    mesh.see("vps-jane", "hub-jane", "mbp-jane", "lab-jane")


@pytest.mark.req("ROOM-5")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_all_nodes_restarted_at_once_have_the_same_room(two_seeds: Mesh, how: signal.Signals) -> None:
    """Two seeds and two edge nodes end at the same moment; afterwards the room is what it was, record by record."""
    mesh = two_seeds
    nodes = ("hub-jane", "lab-jane", "mbp-jane", "vps-jane")
    mesh.join("lab-jane", "hub-jane")
    mesh.see(*nodes)
    for edge in ("lab-jane", "mbp-jane"):
        mesh.linked(edge, "vps-jane", "hub-jane")
    before = mesh.agree()
    mesh.end(*nodes, how=how)
    for node in nodes:
        mesh.start(node)
    mesh.see(*nodes)
    after = mesh.agree()
    # Who was told to stop said goodbye, and signed that; nobody else's record is another.
    if how is signal.SIGTERM:
        before, after = _unsigned(before), _unsigned(after)
    # How far everybody has read comes into the room a while later, one by one, be there a restart or not.
    for room in (before, after):
        del room["delivery.cursors"]
    assert after == before


@pytest.mark.req("ROOM-5")
def test_the_only_seed_comes_back_from_its_backup(mesh: Mesh) -> None:
    """A backup of yesterday and the keys are enough: the edge nodes bring what happened since."""
    seed = mesh.start("vps-jane", "backbone")
    mesh.join("mbp-jane", "vps-jane")
    kept = mesh.home("kept")
    kept.mkdir()
    operate("store", "backup", str(kept / "monday.db"), home=seed.home)
    shutil.copytree(seed.home / "keys", kept / "keys")
    mesh.join("lab-jane", "vps-jane")
    mesh.see("vps-jane", "mbp-jane", "lab-jane")
    before = mesh.agree()
    mesh.end("vps-jane")
    shutil.rmtree(seed.home)
    seed.home.mkdir(mode=0o700)
    shutil.copytree(kept / "keys", seed.home / "keys")
    shutil.copy(kept / "monday.db", seed.home / "agentpost.db")
    mesh.start("vps-jane")
    mesh.see("vps-jane", "mbp-jane", "lab-jane")
    assert _unsigned(mesh.agree()) == _unsigned(before)


@pytest.mark.req("ROOM-5")
def test_the_only_seed_is_gone_for_good(mesh: Mesh) -> None:
    """A new seed under another name invites the nodes again; each of them brings what is its own."""
    mesh.start("vps-jane", "backbone")
    for node in ("mbp-jane", "lab-jane"):
        mesh.join(node, "vps-jane")
    mesh.end("vps-jane")
    mesh.start("new-jane", "backbone")
    for node in ("mbp-jane", "lab-jane"):
        mesh.join(node, "new-jane")
    mesh.see("new-jane", "mbp-jane", "lab-jane")


@contextmanager
def an_impostor(port: int, answers: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Somebody who took over an address and answers what was prepared."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = json.dumps(answers[self.path]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.req("ROOM-5", "AUTH-7")
def test_an_address_of_the_room_proves_nothing(two_seeds: Mesh) -> None:
    """Who took over a seed's address and says what that seed once said to another is found out before any sync."""
    mesh = two_seeds
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    stranger = Stranger("lab-jane", mesh.home("stranger"), mesh.up["hub-jane"].url)
    challenge = stranger.post("/ansible/auth/challenge", {"nodeId": "lab-jane"}).json()
    grant = stranger.exchange(invite(mesh.up["hub-jane"], "lab-jane")).json()
    assert grant["nodeId"] == "hub-jane"
    port = int(mesh.up["hub-jane"].url.rpartition(":")[2])
    mesh.end("hub-jane")
    with an_impostor(port, {"/ansible/auth/challenge": challenge, "/ansible/auth/exchange": grant}):
        eventually(lambda: "did not prove that it is hub-jane" in _problem(mesh.up["mbp-jane"], "hub-jane"))
    grant["signingPublic"] = stranger.identity.signing_public
    with an_impostor(port, {"/ansible/auth/challenge": challenge, "/ansible/auth/exchange": grant}):
        eventually(lambda: "another key than before" in _problem(mesh.up["mbp-jane"], "hub-jane"))
    assert not _links(mesh.up["mbp-jane"])["hub-jane"]
    mesh.start("hub-jane")
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")


@pytest.mark.req("ROOM-6", "ROUTE-8")
def test_a_node_is_revoked_at_any_seed(two_seeds: Mesh) -> None:
    """A seed that never saw its invite throws a node out: all its links end, and an invite lets it in again."""
    mesh = two_seeds
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    for node, agent in (("vps-jane", "chief"), ("hub-jane", "helper"), ("mbp-jane", "worker")):
        mesh.up[node].operator.post("/ansible/agents", {"agentId": agent})
    eventually(lambda: agents_at(mesh.up["vps-jane"]) == {"chief", "helper", "worker"})
    eventually(lambda: agents_at(mesh.up["mbp-jane"]) == {"chief", "helper", "worker"})
    operate("revoke", "mbp-jane", home=mesh.home("hub-jane"))
    for seed in ("vps-jane", "hub-jane"):
        eventually(lambda seed=seed: "revoked" in _problem(mesh.up["mbp-jane"], seed))
        eventually(lambda seed=seed: "mbp-jane" not in _online(mesh.up[seed]))
    # ROUTE-8: "all" are those who are in; and the one who is out says so itself, and sends nothing.
    sent = mesh.up["vps-jane"].operator.post("/ansible/messages", message_of("chief", "all"))
    assert [each["agentId"] for each in sent["recipients"]] == ["helper"]
    with pytest.raises(Refusal) as refused:
        mesh.up["mbp-jane"].operator.post("/ansible/messages", message_of("worker", "chief"))
    assert refused.value.code is Code.NODE_REVOKED
    assert "agentpost invite" in (refused.value.hint or "")
    assert "REVOKED" in agentpost("status", "--home", str(mesh.home("mbp-jane"))).stdout
    mesh.join("mbp-jane", "hub-jane")
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    eventually(lambda: mesh.up["mbp-jane"].operator.post("/ansible/messages", message_of("worker", "chief")))
    eventually(lambda: "worker" in agents_at(mesh.up["vps-jane"]))
    mesh.see("vps-jane", "hub-jane", "mbp-jane")


def message_of(sender: str, to: str) -> dict[str, Any]:
    return {"fromAgentId": sender, "toAgents": [to], "body": "Are you there?"}


def agents_at(gateway: RunningGateway) -> set[str]:
    return {each["agentId"] for each in gateway.operator.get("/ansible/directory")}


def _problem(gateway: RunningGateway, seed: str) -> str:
    links = gateway.operator.get("/operator/nodes")["seeds"]
    return next((link["problem"] or "" for link in links if link["nodeId"] == seed), "")


def operate(*words: str, home: Path) -> dict[str, Any]:
    """What a command of the operator prints, with nothing wrong."""
    done = agentpost(*words, "--home", str(home), "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _unsigned(room: Records) -> Records:
    """What the records say, without who signed when."""
    return {
        name: {
            key: {field: value for field, value in record.items() if field not in ("rev", "sig")}
            for key, record in each.items()
        }
        for name, each in room.items()
    }


class _RealClock(FakeClock):
    """The machine's clock, for a gateway in a thread of the test."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


@pytest.mark.req("ROOM-5")
def test_a_seed_that_another_seed_says_is_back_is_dialled_at_once(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a node would wait after its failed attempts: what it hears through another seed ends the wait."""
    mesh.start("vps-jane", "backbone")
    mesh.join("hub-jane", "vps-jane", tier="backbone")
    mesh.linked("hub-jane", "vps-jane")
    an_hour = RetryPolicy(base_seconds=3600, factor=1, max_delay_seconds=3600, max_attempts=1_000_000, jitter_share=0.5)
    with served_gateway(tmp_path / "mbp-jane", clock=_RealClock(), node_id="mbp-jane", tier=NodeTier.EDGE) as served:

        def is_linked(seed: str) -> bool:
            states = served.operator.get("/operator/nodes")["seeds"]
            return any(each["nodeId"] == seed and each["connected"] for each in states)

        hub = mesh.up["hub-jane"]
        served.operator.post("/operator/join", {"url": hub.url, "token": invite(hub, "mbp-jane")})
        eventually(lambda: is_linked("vps-jane") and is_linked("hub-jane"))
        monkeypatch.setattr(seed_link, "_RECONNECT", an_hour)
        mesh.end("vps-jane")
        eventually(lambda: not is_linked("vps-jane"))
        mesh.start("vps-jane")
        eventually(lambda: is_linked("vps-jane"))


@pytest.mark.req("ROOM-5", "AUTH-7")
def test_a_seed_that_gave_no_room_is_not_kept(mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A join that failed is not made good by the next one: neither a restart nor the list of seeds knows of it."""
    mesh.start("vps-jane", "backbone")
    mesh.start("hub-jane", "backbone")
    home = tmp_path / "mbp-jane"

    def refuse(*_: object, **__: object) -> None:
        raise OSError("the connection was refused")

    with served_gateway(home, clock=_RealClock(), node_id="mbp-jane", tier=NodeTier.EDGE) as served:

        def join(seed: RunningGateway) -> None:
            served.operator.post("/operator/join", {"url": seed.url, "token": invite(seed, "mbp-jane")})

        def known() -> list[str]:
            return [each["nodeId"] for each in served.operator.get("/operator/nodes")["seeds"]]

        with monkeypatch.context() as broken:
            broken.setattr(seed_link, "connect", refuse)
            with pytest.raises(Refusal):
                join(mesh.up["vps-jane"])
        assert known() == []
        join(mesh.up["hub-jane"])
        assert known() == ["hub-jane"]
        # One that was joined stays so, whatever becomes of a second attempt.
        with monkeypatch.context() as broken:
            broken.setattr(seed_link, "connect", refuse)
            with pytest.raises(Refusal):
                join(mesh.up["hub-jane"])
        assert known() == ["hub-jane"]
    assert [each["nodeId"] for each in json.loads((home / "seeds.json").read_text())] == ["hub-jane"]
