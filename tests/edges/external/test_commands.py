"""Agents outside the mesh as an operator handles them: the command line, a real process, restarts, and its log."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.edges.external.client import INVOKE, AgentClient, code_of
from tests.edges.running import NO_LIMITS, agentpost, running_gateway


def run(home: Path, *words: str) -> Any:
    """What a command prints as JSON."""
    done = agentpost(*words, "--home", str(home), "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def invite(home: Path, *words: str) -> str:
    scopes = ("--scope", "message.read", "--scope", "ansible.message.send", "--scope", "status.read")
    return run(home, "agent", "invite", "--agent", "codex", *scopes, *words)["inviteToken"]


@pytest.mark.req("EXT-2", "EXT-5", "OBS-10")
def test_an_operator_invites_watches_and_ends_an_agent(tmp_path: Path) -> None:
    """`agent invite`, `agent sessions`, `audit`, `agent rotate-keys`, `agent revoke`, as text and as JSON."""
    with running_gateway(tmp_path / "vps") as gateway:
        home = gateway.home
        token = invite(home, "--ttl", "5m", "--max-sessions", "1", "--origin", "https://app.example")
        codex = AgentClient(gateway.url)
        assert codex.exchange(token).status_code == 200
        assert codex.ask("ansible_status")["nodeId"] == "vps-jane"
        (session,) = run(home, "agent", "sessions", "--agent", "codex")
        assert (session["state"], session["origins"]) == ("live", ["https://app.example"])
        assert session["sessionId"] in agentpost("agent", "sessions", "--home", str(home)).stdout
        assert run(home, "agent", "sessions", "--agent", "nobody") == []
        assert run(home, "agent", "rotate-keys", "--drop")["kid"]
        assert code_of(codex.invoke("ansible_status")) == (401, "invalid_access_token")
        assert codex.refresh().status_code == 200
        done = agentpost("agent", "revoke", "--session", session["sessionId"], "--home", str(home))
        assert f"{session['sessionId']} has ended" in done.stdout.replace("\n", "")
        assert run(home, "agent", "revoke", "--agent", "codex") == {"sessionIds": []}
        actions = [entry["action"] for entry in run(home, "audit", "--session", session["sessionId"])]
        assert actions[0] == "agent.exchanged"
        assert actions[-1] == "agent.revoked"
        assert "agent.exchanged" in agentpost("audit", "--home", str(home)).stdout
        shown = agentpost("agent", "invite", "--agent", "codex", "-s", "message.read", "--home", str(home))
        (line,) = (line for line in shown.stdout.splitlines() if line.startswith("agentpost "))
        *words, file = line.split()[1:]
        assert file == "codex.json"
        accepted = agentpost(*words, str(tmp_path / file))
        assert accepted.returncode == 0, accepted.stderr
    assert not any(secret in gateway.log for secret in {token, *codex.secrets})


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("invite", "--agent", "codex", "--scope", "admin.all"), 4, "scope_denied"),
        (("invite", "--agent", "codex", "--scope", "message.read", "--ttl", "16m"), 2, "invalid_field"),
        (("invite", "--agent", "codex", "--scope", "message.read", "--ttl", "soon"), 2, "invalid_field"),
        (("invite", "--agent", "../x", "--scope", "message.read"), 2, "invalid_field"),
        (("invite", "--agent", "codex"), 2, "--scope"),
        (("revoke",), 2, "invalid_field"),
        (("revoke", "--session", "ses_x", "--agent", "codex"), 2, "invalid_field"),
        (("revoke", "--session", "ses_x"), 1, "not_found"),
        (("sessions", "--limit", "0"), 2, "invalid_field"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_a_sentence(
    commanded: Path, words: tuple[str, ...], exit_code: int, said: str
) -> None:
    """A scope that nobody gets, a time that is too long, nothing named to end: a code, a sentence, an exit code."""
    done = agentpost("agent", *words, "--home", str(commanded))
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running_gateway(tmp_path_factory.mktemp("commanded") / "vps") as gateway:
        yield gateway.home


@pytest.mark.req("EXT-4")
def test_nothing_is_forgotten_in_a_crash(tmp_path: Path) -> None:
    """Killed and started again: the session lives, a used invite and a seen proof stay used, a revocation stays."""
    home, listen = tmp_path / "vps", "127.0.0.1:0"
    with running_gateway(home, *NO_LIMITS, listen=listen) as gateway:
        listen = gateway.url.removeprefix("http://")
        token = invite(home)
        codex, gone = AgentClient(gateway.url), AgentClient(gateway.url)
        assert codex.exchange(token).status_code == 200
        assert gone.exchange(invite(home)).status_code == 200
        assert codex.ask("ansible_status")
        body = json.dumps({"operation": "ansible_status", "args": {}}).encode()
        proof = codex.proof(INVOKE, token=codex.access_token, body=body)
        recorded = {"authorization": f"DPoP {codex.access_token}", "dpop": proof}
        assert codex.post(INVOKE, body, recorded).status_code == 200
        spent = codex.refresh_token
        assert codex.refresh(nonce="once").status_code == 200
        run(home, "agent", "revoke", "--session", gone.session["sessionId"])
        gateway.end(signal.SIGKILL)
    with running_gateway(home, *NO_LIMITS, listen=listen) as gateway:
        assert code_of(codex.post(INVOKE, body, recorded)) == (409, "replay_detected")
        assert code_of(codex.refresh(nonce="once")) == (409, "replay_detected")
        assert code_of(AgentClient(gateway.url).exchange(token)) == (409, "invite_used")
        assert code_of(gone.invoke("ansible_status")) == (401, "invalid_access_token")
        assert codex.ask("ansible_status")
        latest = codex.refresh_token
        assert codex.refresh().status_code == 200
        assert code_of(codex.refresh(spent)) == (401, "invalid_refresh_token")
        assert code_of(codex.refresh(latest)) == (401, "invalid_refresh_token")
        assert code_of(codex.invoke("ansible_status")) == (401, "invalid_access_token")
    assert "Traceback" not in gateway.log
    assert not any(secret in gateway.log for secret in {token, *codex.secrets, *gone.secrets})
