"""Agents that fetch their mail and wait for it, at the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentpost.protocol.errors import Code, Refusal
from tests.edges.running import TIMEOUT_SECONDS, agentpost, running_gateway


def test_who_waits_gets_mail_when_it_comes_and_exit_5_when_it_does_not(tmp_path: Path) -> None:
    """`agentpost fetch --wait` returns with the first message, long before its time; or with nothing and 5."""
    home = ["--home", str(tmp_path / "vps-jane")]
    with running_gateway(tmp_path / "vps-jane") as gateway:
        for agent_id in ("ada", "bob"):
            gateway.operator.post("/ansible/agents", {"agentId": agent_id})
        assert agentpost("fetch", "bob", *home).returncode == 0
        in_vain = agentpost("fetch", "bob", "--wait", "1s", "-o", "json", *home)
        assert (in_vain.returncode, json.loads(in_vain.stdout)) == (5, [])
        command = [sys.executable, "-m", "agentpost", "fetch", "bob", "--wait", "5m", "-o", "json", *home]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
            sent = gateway.operator.post("/ansible/messages", {"fromAgentId": "ada", "toAgents": ["bob"], "body": "hi"})
            output, _ = waiting.communicate(timeout=TIMEOUT_SECONDS)
        assert waiting.returncode == 0
        (fetched,) = json.loads(output)
        assert (fetched["eventId"], fetched["content"]["body"]) == (sent["eventId"], "hi")
        path = f"/ansible/agents/bob/inbox/{sent['eventId']}/extend"
        assert gateway.operator.post(path, {"seconds": 3_600}) == {"seconds": 3_600}
        with pytest.raises(Refusal) as refused:
            gateway.operator.post("/ansible/agents/bob/fetch", {"waitSeconds": 1e9})
        assert refused.value.code is Code.INVALID_FIELD
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
            # One that waits does not hold up a gateway that stops.
            assert gateway.end() == 0
            waiting.communicate(timeout=TIMEOUT_SECONDS)


@pytest.mark.req("ENV-7")
@pytest.mark.waits
def test_mail_that_nobody_fetches_in_time_has_failed_for_its_sender(tmp_path: Path) -> None:
    """Without anybody having come for it: the sender sees why, and a script that waits sees exit 1."""
    home = ["--home", str(tmp_path / "vps-jane")]
    with running_gateway(tmp_path / "vps-jane") as gateway:
        for agent_id in ("ada", "bob"):
            gateway.operator.post("/ansible/agents", {"agentId": agent_id})
        late = agentpost("send", "hi", "--from", "ada", "--to", "bob", "--ttl", "1s", "--wait", "60s", *home)
        assert late.returncode == 1
        assert late.stdout.splitlines()[-1].split() == ["bob:", "Failed", "expired"]
        assert json.loads(agentpost("fetch", "bob", "-o", "json", *home).stdout) == []
