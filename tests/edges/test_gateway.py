"""The gateway as a process: it comes up, says how it is, drains, and comes back."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import typer
from msgspec import structs

from agentpost.config import Settings, load_settings, save_settings
from agentpost.edges.cli import doctor
from agentpost.edges.cli.output import Format
from agentpost.protocol.errors import Refusal
from agentpost.store.integrity import check_home
from tests.edges.meshing import Stranger, eventually, invite
from tests.edges.running import TIMEOUT_SECONDS, agentpost, running_gateway, start_gateway
from tests.warm.client import run_warm, start_warm


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "vps-jane"


def test_it_comes_up_and_tells_its_health(home: Path) -> None:
    """A gateway that is up is live and ready, and its status names node, tier and key."""
    with running_gateway(home) as gateway:
        assert httpx.get(f"{gateway.url}/health/live").json() == {"status": "live"}
        ready = httpx.get(f"{gateway.url}/health/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        status = gateway.operator.get("/operator/status")
        assert (status["nodeId"], status["tier"], status["phase"]) == ("vps-jane", "backbone", "ready")
        assert status["url"] == gateway.url
        assert len(status["signingPublicKey"]) == 43
        assert (status["payloads"], status["payloadBytes"]) == (0, 0)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_stops_it(home: Path, how: signal.Signals) -> None:
    """SIGTERM and Ctrl-C stop the gateway in order: exit code 0, the socket gone, the home whole and free."""
    with running_gateway(home) as gateway:
        assert gateway.end(how) == 0
    assert not (home / "operator.sock").exists()
    assert check_home(home).problems == ()
    with running_gateway(home) as again:
        assert again.end() == 0


def test_down_returns_when_the_home_is_free(home: Path) -> None:
    """After `agentpost down` the same home can be started at once; a second `down` finds nobody (exit code 3)."""
    with running_gateway(home) as gateway:
        assert agentpost("down", "--home", str(home)).returncode == 0
        assert gateway.process.wait(TIMEOUT_SECONDS) == 0
    assert agentpost("down", "--home", str(home)).returncode == 3


def test_down_says_on_a_line_of_its_own_that_it_has_stopped(home: Path) -> None:
    """In a terminal what turned while the gateway drained is gone before the result is shown."""
    here, there = os.openpty()
    words, terminal = ("down", "--home", str(home)), {"TERM": "xterm", "NO_COLOR": ""}
    with (
        running_gateway(home) as gateway,
        start_warm(*words, stdout=there, stderr=there, environment=terminal) as down,
    ):
        assert gateway.process.wait(TIMEOUT_SECONDS) == 0
        assert down.wait(TIMEOUT_SECONDS) == 0
        os.close(there)
        shown = b""
        with suppress(OSError):
            while more := os.read(here, 4096):
                shown += more
    os.close(here)
    assert shown.index(b"\x1b[?25h") < shown.index(b"stopped")


def test_only_a_backbone_gateway_revokes_and_only_others(home: Path, tmp_path: Path) -> None:
    """Whoever would throw out the gateway itself, or asks an edge node to, is told what is wrong with that."""
    with running_gateway(home):
        own = agentpost("revoke", "vps-jane", "--home", str(home))
        assert (own.returncode, "does not revoke itself" in own.stderr) == (2, True)
    with running_gateway(tmp_path / "edge", node="mbp-jane", tier="edge") as edge:
        denied = agentpost("revoke", "vps-jane", "--home", str(edge.home))
        assert (denied.returncode, "only backbone nodes" in denied.stderr) == (4, True)


def test_a_node_that_was_named_is_not_taken_for_another(home: Path) -> None:
    """`down --node` in the shell whose AGENTPOST_HOME is another node's stops nobody."""
    with running_gateway(home) as gateway:
        for command in ("down", "status", "doctor"):
            shown = agentpost(command, "--node", "mbp-jane", "--home", str(home))
            assert (shown.returncode, shown.stdout) == (1, "")
            assert "is vps-jane, not mbp-jane" in shown.stderr
        assert gateway.operator.get("/operator/status")["phase"] == "ready"
        assert agentpost("status", "--node", "vps-jane", "--home", str(home)).returncode == 0


def test_after_kill_9_it_comes_up_again(home: Path) -> None:
    """A killed gateway leaves a lock and a socket behind, and neither keeps the next one from starting."""
    with running_gateway(home) as gateway:
        key = gateway.operator.get("/operator/status")["signingPublicKey"]
        gateway.end(signal.SIGKILL)
    assert (home / "operator.sock").exists()
    with running_gateway(home) as again:
        assert again.operator.get("/operator/status")["signingPublicKey"] == key


def test_a_gateway_stops_when_it_was_asked_to_the_end(home: Path) -> None:
    """Whoever is slow to say all of it is answered, instead of finding the door shut while they speak."""
    with running_gateway(home) as gateway, socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(TIMEOUT_SECONDS)
        slow.connect(str(home / "operator.sock"))
        slow.sendall(b"POST /operator/shutdown HTTP/1.1\r\nhost: gateway\r\ncontent-length: 2\r\n")
        slow.sendall(b"content-type: application/json\r\n\r\n")
        with pytest.raises(subprocess.TimeoutExpired):
            gateway.process.wait(1)
        assert gateway.operator.get("/operator/status")["phase"] == "ready"
        slow.sendall(b"{}")
        assert slow.recv(4096).startswith(b"HTTP/1.1 202")
        assert gateway.process.wait(TIMEOUT_SECONDS) == 0


def test_a_second_gateway_in_the_same_home_is_refused(home: Path) -> None:
    """Two gateways never share a home: the second one says who has it and leaves the first alone."""
    with running_gateway(home) as gateway:
        second = start_gateway(home, "--node", "vps-jane", "--listen", "127.0.0.1:0")
        _, errors = second.communicate(timeout=TIMEOUT_SECONDS)
        assert second.returncode == 1
        assert f"in use by process {gateway.process.pid}" in errors
        assert httpx.get(f"{gateway.url}/health/ready").status_code == 200


def test_a_port_that_is_taken_is_said_so(home: Path, tmp_path: Path) -> None:
    """A gateway that cannot listen says which address and what to do, and lets go of its home."""
    with running_gateway(home) as gateway:
        address = gateway.url.removeprefix("http://")
        second = start_gateway(tmp_path / "other", "--node", "mbp-jane", "--listen", address)
        _, errors = second.communicate(timeout=TIMEOUT_SECONDS)
        assert second.returncode == 3
        assert f"cannot listen on {address}" in errors
        assert "Traceback" not in errors


def test_being_on_loopback_opens_no_operator_call(home: Path) -> None:
    """What an operator may do is not on the port at all; it takes the socket, which is the owner's alone."""
    with running_gateway(home) as gateway:
        for method, path in [("GET", "/operator/status"), ("POST", "/operator/shutdown")]:
            refused = httpx.request(method, f"{gateway.url}{path}")
            assert refused.status_code == 404
            assert refused.json()["error"]["code"] == "not_found"
        assert stat.S_IMODE((home / "operator.sock").stat().st_mode) == 0o600
        assert gateway.operator.get("/operator/status")["phase"] == "ready"


def test_everything_in_a_home_is_its_owners_alone(home: Path) -> None:
    """No file of a home can be read by others, whatever the umask."""
    before = os.umask(0)
    try:
        with running_gateway(home) as gateway:
            gateway.end()
    finally:
        os.umask(before)
    open_to_others = [path for path in [home, *home.rglob("*")] if path.stat().st_mode & 0o077]
    assert open_to_others == []


def test_what_was_said_once_need_not_be_said_again(home: Path) -> None:
    """The first start writes the settings down; flags and environment still win over them."""
    with running_gateway(home) as gateway:
        gateway.end()
    kept = load_settings(home=home, flags={}, environment={})
    assert (kept.node_id, kept.tier, kept.listen_port) == ("vps-jane", "backbone", 0)
    by_environment = load_settings(home=home, flags={}, environment={"AGENTPOST_LISTEN": "127.0.0.1:7802"})
    assert by_environment.listen_port == 7802
    by_flag = load_settings(
        home=home, flags={"listen": "[::1]:7803"}, environment={"AGENTPOST_LISTEN": "127.0.0.1:7802"}
    )
    assert (by_flag.listen_host, by_flag.listen_port) == ("::1", 7803)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"node": "../x"}, "node"),
        ({"node": ""}, "node"),
        ({"node": "a\0b"}, "node"),
        ({"node": "ok", "tier": "king"}, "tier"),
        ({"node": "ok", "listen": "7801"}, "listen"),
        ({"node": "ok", "listen": "host:99999"}, "listen"),
        ({"node": "ok", "listen": "host:-1"}, "listen"),
        ({"node": "ok", "attempts_per_address": "0"}, "attempts_per_address"),
        ({"node": "ok", "attempts_per_address": "-5"}, "attempts_per_address"),
        ({"node": "ok", "attempts_per_address": "1.5"}, "attempts_per_address"),
        ({"node": "ok", "attempts_per_token": "many"}, "attempts_per_token"),
        ({"node": "ok", "attempts_per_token": "9" * 5000}, "attempts_per_token"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, flags: dict[str, str], field: str) -> None:
    """A setting that cannot be is refused with its name, and no home is made for it."""
    with pytest.raises(Refusal) as refused:
        load_settings(home=tmp_path / "new", flags=flags, environment={})
    assert refused.value.field == field
    assert not (tmp_path / "new").exists()


def test_a_broken_settings_file_is_said_so(tmp_path: Path) -> None:
    """A settings file that is not TOML, or that has a word we do not know, is named with the line or the word."""
    (tmp_path / "agentpost.toml").write_text("node = ")
    with pytest.raises(Refusal, match="not valid TOML"):
        load_settings(home=tmp_path, flags={}, environment={})
    (tmp_path / "agentpost.toml").write_text('node = "a"\nnoed = "b"\n')
    with pytest.raises(Refusal, match="noed is not a setting"):
        load_settings(home=tmp_path, flags={}, environment={})


def test_the_limits_of_joining_are_settings(tmp_path: Path) -> None:
    """Numbers in the file, text in the environment and on the command line; the later of these wins."""
    (tmp_path / "agentpost.toml").write_text('node = "a"\nattempts_per_address = 7\nattempts_per_token = 8\n')
    kept = load_settings(home=tmp_path, flags={}, environment={})
    assert (kept.attempts_per_address, kept.attempts_per_token) == (7, 8)
    environment = {"AGENTPOST_ATTEMPTS_PER_ADDRESS": "9"}
    assert load_settings(home=tmp_path, flags={}, environment=environment).attempts_per_address == 9
    by_flag = load_settings(home=tmp_path, flags={"attempts_per_address": "10"}, environment=environment)
    assert (by_flag.attempts_per_address, by_flag.attempts_per_token) == (10, 8)
    for wrong in ('"7"', "true", "7.5", "-1", "0"):
        (tmp_path / "agentpost.toml").write_text(f'node = "a"\nattempts_per_address = {wrong}\n')
        with pytest.raises(Refusal, match="number") as refused:
            load_settings(home=tmp_path, flags={}, environment={})
        assert refused.value.field == "attempts_per_address"


def test_settings_of_a_first_start_are_kept(tmp_path: Path) -> None:
    """What was said once is in the file, except that proofs are not needed: that is said every time."""
    said = Settings(
        home=tmp_path,
        node_id="vps-jane",
        attempts_per_address=500,
        attempts_per_token=50,
        tailnet_socket=Path('/run/"tail" scale.sock'),
        insecure_no_proof=True,
    )
    save_settings(said)
    kept = load_settings(home=tmp_path, flags={}, environment={"AGENTPOST_INSECURE_NO_PROOF": "true"})
    assert kept == structs.replace(said, insecure_no_proof=False)


def test_doctor_says_what_is_wrong(home: Path) -> None:
    """`agentpost doctor` is content with a running gateway, and names what is wrong with a stopped or open one."""
    with running_gateway(home) as gateway:
        assert agentpost("doctor", "--home", str(home)).returncode == 0
        gateway.end()
    home.chmod(0o755)
    shown = agentpost("doctor", "--home", str(home))
    assert shown.returncode == 1
    assert "chmod 700" in shown.stdout
    assert "no gateway runs" in shown.stdout


def test_doctor_sees_a_disk_that_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway whose disk is full takes no mail: that is told before it is so."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=12_000_000))
    with pytest.raises(typer.Exit):
        doctor.doctor(home=tmp_path, output=Format.JSON)
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert (found["disk"]["ok"], found["disk"]["hint"]) == (False, "Free space, or move the home to a larger disk.")
    assert "12 MB are free" in found["disk"]["message"]


@pytest.mark.parametrize(("is_online", "minutes", "is_well"), [(True, 20, False), (True, 3, True), (False, 20, True)])
def test_doctor_sees_mail_that_a_gateway_does_not_take(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_online: bool,
    minutes: int,
    is_well: bool,
) -> None:
    """A gateway that is there and takes nothing for minutes is a slow line, or trouble; one that is away is neither."""
    sent_at_ms = round((time.time() - minutes * 60) * 1000)
    waiting = {"nodeId": "lab-jane", "count": 30_000, "oldestSentAtMs": sent_at_ms, "isOnline": is_online}
    answers = {"/operator/status": {"phase": "ready", "notTaken": [waiting]}, "/operator/nodes": {"seeds": []}}
    client = SimpleNamespace(get=lambda path, _query=None: answers.get(path, []))
    monkeypatch.setattr(doctor, "OperatorClient", lambda _path: client)
    with contextlib.suppress(typer.Exit):
        doctor.doctor(home=tmp_path, output=Format.JSON)
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    presence = "online" if is_online else "away"
    told = f"30,000 not taken yet by lab-jane ({presence}), the oldest sent {minutes} min ago"
    assert (found["mail"]["ok"], found["mail"]["message"]) == (is_well, told)


def test_doctor_sees_a_seed_that_is_away_and_settings_that_cannot_be_read(home: Path, tmp_path: Path) -> None:
    """What keeps mail from going out, or the next start from working, does not look well."""
    with running_gateway(tmp_path / "mbp-jane", node="mbp-jane", tier="edge") as laptop:
        with running_gateway(home) as seed:
            laptop.operator.post("/operator/join", {"url": seed.url, "token": invite(seed)})
            assert agentpost("doctor", "--home", str(laptop.home)).returncode == 0
            seed.end(signal.SIGKILL)
        eventually(lambda: not laptop.operator.get("/operator/nodes")["seeds"][0]["connected"])
        (laptop.home / "agentpost.toml").write_text('listne = "127.0.0.1:0"')
        examined = agentpost("doctor", "--home", str(laptop.home), "-o", "json")
        assert examined.returncode == 1
        problems = {found["check"]: found["message"] for found in json.loads(examined.stdout) if not found["ok"]}
        assert set(problems) == {"settings", "seeds"}
        assert "listne is not a setting" in problems["settings"]
        assert f"0 of 1 connected; not vps-jane at {seed.url}" in problems["seeds"]


def test_up_in_the_background_returns_once_it_is_ready(home: Path) -> None:
    """`agentpost up --detach` leaves a gateway that answers, and `agentpost down` ends it."""
    started = agentpost("up", "--detach", "--home", str(home), "--node", "vps-jane", "--listen", "127.0.0.1:0")
    try:
        assert started.returncode == 0, started.stderr
        assert agentpost("status", "--home", str(home)).returncode == 0
    finally:
        assert agentpost("down", "--home", str(home)).returncode == 0


def test_up_in_the_background_beside_a_gateway_says_that_it_runs_already(home: Path) -> None:
    """A second `up --detach` does not pass for a start with its flags: it names the process that has the home."""
    with running_gateway(home) as gateway:
        again = agentpost("up", "--detach", "--home", str(home), "--listen", "127.0.0.1:0")
        assert again.returncode == 1
        assert again.stdout == ""
        assert again.stderr.startswith("home_in_use: ")
        assert f"in use by process {gateway.operator.get('/operator/status')['pid']}" in again.stderr


def test_a_start_that_failed_is_not_what_the_next_one_goes_by(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A port that was taken is not kept; and the home of a gateway that never came up is not one to choose from."""
    # A short name: the path of a socket must not be long.
    user = tmp_path_factory.mktemp("user")
    homes = user / ".agentpost"
    homes.mkdir()
    as_user = {"HOME": str(user)}
    with running_gateway(homes / "vps-jane") as other:
        taken = other.url.removeprefix("http://")
        for words in ((), ("--detach",)):
            up = ("up", "--node", "mbp-jane", "--listen", taken, *words)
            failed = run_warm(*up, timeout=TIMEOUT_SECONDS, environment=as_user)
            assert failed.returncode == 3
            assert "choose one with --listen" in failed.stderr
            assert failed.stderr.count("unavailable: ") == 1
            assert "   " not in failed.stderr
        shown = run_warm("status", "-o", "json", timeout=TIMEOUT_SECONDS, environment=as_user)
        assert json.loads(shown.stdout)["nodeId"] == "vps-jane", shown.stderr
    with running_gateway(homes / "mbp-jane", node="mbp-jane"):
        assert 'listen = "127.0.0.1:0"' in (homes / "mbp-jane" / "agentpost.toml").read_text()


@pytest.mark.req("AUTH-7")
def test_a_lab_without_proofs_says_so_everywhere(home: Path, tmp_path: Path) -> None:
    """`--insecure-no-proof` lets a node in that proves nothing, warns at every turn, and is not kept."""
    with running_gateway(home, "--insecure-no-proof") as gateway:
        assert "WARNING: this gateway lets nodes in that prove no key" in gateway.log
        assert "This is for a lab" in agentpost("status", "--home", str(home)).stdout.replace("\n", " ")
        assert json.loads(agentpost("status", "--home", str(home), "-o", "json").stdout)["insecureNoProof"] is True
        examined = agentpost("doctor", "--home", str(home), "-o", "json")
        assert examined.returncode == 1
        assert [found["check"] for found in json.loads(examined.stdout) if not found["ok"]] == ["proofs"]
        stranger = Stranger("mbp-jane", tmp_path / "stranger", gateway.url)
        granted = stranger.exchange(invite(gateway), nodeProof=None)
        assert granted.status_code == 200
        assert stranger.knock(granted.json()["wsTicket"]) == (101, {})
        gateway.end()
    with running_gateway(home) as gateway:
        assert "insecureNoProof" not in gateway.operator.get("/operator/status")
        assert agentpost("doctor", "--home", str(home)).returncode == 0
        refused = Stranger("lab-jane", tmp_path / "other", gateway.url).exchange(
            invite(gateway, "lab-jane"), nodeProof=None
        )
        assert refused.json()["error"]["code"] == "node_proof_required"


def test_a_detached_lab_warns_too(home: Path) -> None:
    """The warning is on the terminal even if the gateway logs elsewhere."""
    words = ("--home", str(home), "--node", "vps-jane", "--listen", "127.0.0.1:0", "--insecure-no-proof")
    started = agentpost("up", "--detach", *words)
    try:
        assert started.returncode == 0, started.stderr
        assert "WARNING" in started.stderr
        assert json.loads(agentpost("status", "--home", str(home), "-o", "json").stdout)["insecureNoProof"] is True
    finally:
        assert agentpost("down", "--home", str(home)).returncode == 0
