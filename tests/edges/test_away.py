"""What a sender is told of recipients whose gateway is away."""

import signal
import time
from pathlib import Path
from typing import Any

from agentpost.testing import FakeClock
from tests.edges.meshing import eventually, invite
from tests.edges.running import running_gateway, served_gateway


def test_a_sender_hears_how_much_each_of_those_who_are_away_has_waiting(tmp_path: Path) -> None:
    """Two agents of one gateway have their own numbers, also when it is dead; one with an empty inbox has none."""
    now = FakeClock(round(time.time() * 1000))
    with (
        served_gateway(tmp_path / "vps-jane", clock=now) as seed,
        running_gateway(tmp_path / "lab-jane", node="lab-jane", tier="edge") as lab,
    ):
        lab.operator.post("/operator/join", {"url": seed.url, "token": invite(seed, "lab-jane")})
        seed.operator.post("/ansible/agents", {"agentId": "chief"})
        agents = ("tester", "writer", "idler")
        for agent_id in agents:
            lab.operator.post("/ansible/agents", {"agentId": agent_id})

        def send(*to: str) -> list[dict[str, Any]]:
            message = {"fromAgentId": "chief", "toAgents": to, "body": "When you have time."}
            return seed.operator.post("/ansible/messages", message)["recipients"]

        def said_of_agents() -> dict[str, int]:
            record = seed.run(lambda: seed.gateway.host.room.record("delivery", "lab-jane"))
            return (record or {}).get("waitingByAgent", {})

        eventually(lambda: set(agents) <= {each["agentId"] for each in seed.operator.get("/ansible/directory")})
        for agent_id in ("tester", "writer", "writer", "writer"):
            send(agent_id)
        eventually(lambda: said_of_agents() == {"tester": 1, "writer": 3})
        assert lab.end(signal.SIGKILL) != 0
        # It said no goodbye: three heartbeats that do not come are one.
        now.advance(31_000)
        eventually(lambda: not send("idler")[0]["isOnline"])
        told = {each["agentId"]: (each["isOnline"], each["waiting"]) for each in send(*agents)}
        assert told == {"tester": (False, 1), "writer": (False, 3), "idler": (False, 0)}
