"""Streams from the command line, as they are and as CloudEvents."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.edges.running import TIMEOUT_SECONDS, agentpost, running_gateway


def lines(*words: str) -> list[dict[str, Any]]:
    done = agentpost("tail", *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_stream_as_cloudevents(tmp_path: Path) -> None:
    """Each event is one CloudEvent with its place as a sequence that sorts; a later call goes on where one ended."""
    home = tmp_path / "vps-jane"
    at = ["--home", str(home)]
    with running_gateway(home) as gateway:
        for agent_id in ("ada", "bob"):
            gateway.operator.post("/ansible/agents", {"agentId": agent_id})
        message = {"fromAgentId": "ada", "toAgents": ["bob"], "body": "a secret", "ttlSeconds": 3600}
        sent = gateway.operator.post("/ansible/messages", message)
        follow = [sys.executable, "-m", "agentpost", "tail", "inbox:bob", "--follow", *at]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            got = json.loads(following.stdout.readline())
            following.terminate()
            following.wait(TIMEOUT_SECONDS)
        assert (got["stream"], got["event"]["eventId"]) == ("inbox:bob", sent["eventId"])
        events = lines("outbox", "--format", "cloudevents", *at)
        first = events[0]
        assert (first["specversion"], first["id"], first["type"]) == ("1.0", sent["eventId"], "agentpost.message")
        assert (first["source"], first["subject"]) == ("/agentpost/vps-jane/ada", "bob")
        assert (first["sequence"], first["correlationid"]) == ("00000000000000000001", sent["corrId"])
        assert first["expirytime"] > first["time"]
        assert "a secret" not in json.dumps(events)
        acks = [each for each in events if each["type"] == "agentpost.ack"]
        assert {each["causationid"] for each in acks} == {sent["eventId"]}
        assert [each["sequence"] for each in events] == sorted(each["sequence"] for each in events)
        assert lines("outbox", "--after", "1", *at)[0]["seq"] == 2
        unknown = agentpost("tail", "nowhere", *at)
        assert unknown.returncode == 1
        assert "no stream that is here" in unknown.stderr
