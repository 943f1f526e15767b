"""Looking on while the gateway stops: nobody who does holds it up."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentpost.edges.operator_client import OperatorClient
from tests.edges.running import TIMEOUT_SECONDS, agentpost, running_gateway
from tests.warm.client import start_warm


def test_who_looks_on_does_not_hold_up_a_gateway_that_stops(tmp_path: Path) -> None:
    """`down` ends `watch` and `tail --follow` with a word, where it waited ten seconds and then logged a traceback."""
    home = tmp_path / "vps-jane"
    with running_gateway(home) as gateway, ThreadPoolExecutor() as pool:
        for agent_id in ("ada", "bob"):
            gateway.operator.post("/ansible/agents", {"agentId": agent_id})
        happenings = OperatorClient(home).lines("/ansible/watch")
        first = pool.submit(next, happenings)
        while not first.done():
            gateway.operator.post("/ansible/messages", {"fromAgentId": "ada", "toAgents": ["bob"], "body": "hello"})
        with start_warm("tail", "--follow", "--home", str(home), stderr=subprocess.PIPE) as following:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["seq"] == 1
            rest = pool.submit(list, happenings)
            down = agentpost("down", "--home", str(home))
            assert (down.returncode, down.stdout) == (0, "stopped\n"), down.stderr
            assert all("eventId" in happening for happening in rest.result(TIMEOUT_SECONDS))
            _, said = following.communicate(timeout=TIMEOUT_SECONDS)
            assert following.returncode == 3
            assert "the gateway has stopped" in said
        assert gateway.process.wait(TIMEOUT_SECONDS) == 0
        assert "Traceback" not in gateway.log
