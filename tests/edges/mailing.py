"""A mesh of real gateway processes with agents that count, for tests of mail."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.edges.meshing import eventually, invite
from tests.edges.running import RunningGateway, running_gateway

# Appends the id of each message it is engaged with to a file, and answers. What is counted is what an agent did.
_COUNTING_AGENT = """
import json, os, sys
message = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    file.write(message["eventId"] + "\\n")
    file.flush()
    os.fsync(file.fileno())
print("done: " + message["content"]["body"])
"""


class Machine:
    """One gateway that can be killed and started again in the same home, on the same port."""

    def __init__(self, folder: Path, node: str, tier: str, *words: str) -> None:
        self.home = folder / node
        self.node = node
        self.tier = tier
        self.words = words
        self.counts = folder / f"{node}.counts"
        self._listen = "127.0.0.1:0"
        self._stack = ExitStack()
        self.gateway: RunningGateway

    def start(self) -> None:
        running = running_gateway(self.home, *self.words, node=self.node, tier=self.tier, listen=self._listen)
        self.gateway = self._stack.enter_context(running)
        self._listen = self.gateway.url.removeprefix("http://")

    def stop(self) -> None:
        self._stack.close()

    def add_counting_agent(self, agent_id: str, **options: Any) -> None:
        # Without what is installed: that starts in half the time.
        argv = [sys.executable, "-I", "-S", "-c", _COUNTING_AGENT, str(self.counts)]
        self.post("/ansible/agents", {"agentId": agent_id, "runtime": "command", "options": {"argv": argv, **options}})

    def add_agent(self, agent_id: str) -> None:
        self.post("/ansible/agents", {"agentId": agent_id})

    def counted(self) -> list[str]:
        return self.counts.read_text().split() if self.counts.exists() else []

    def get(self, path: str) -> Any:
        return self.gateway.operator.get(path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self.gateway.operator.post(path, body)

    def send(self, to: str, body: str, *, sender: str, **more: Any) -> dict[str, Any]:
        return self.post("/ansible/messages", {"fromAgentId": sender, "toAgents": [to], "body": body, **more})

    def states(self, event_id: str) -> list[str]:
        return [each["state"] for each in self.get(f"/ansible/messages/{event_id}")["deliveries"]]

    def attempts(self, event_id: str) -> int:
        return max(each["attempts"] for each in self.get(f"/ansible/messages/{event_id}")["deliveries"])

    def knows(self, agent_id: str) -> bool:
        return any(agent["agentId"] == agent_id for agent in self.get("/ansible/directory"))


@contextmanager
def three_machines(folder: Path) -> Iterator[tuple[Machine, Machine, Machine]]:
    """A seed and two edge gateways that joined it: `architect` at mbp-jane, `builder` at lab-jane, who counts."""
    seed = Machine(folder, "vps-jane", "backbone")
    laptop, lab = Machine(folder, "mbp-jane", "edge"), Machine(folder, "lab-jane", "edge")
    machines = (seed, laptop, lab)
    try:
        for machine in machines:
            machine.start()
        for machine in (laptop, lab):
            token = invite(seed.gateway, machine.node)
            machine.post("/operator/join", {"url": seed.gateway.url, "token": token})
        laptop.add_agent("architect")
        lab.add_counting_agent("builder")
        eventually(lambda: laptop.knows("builder") and lab.knows("architect"))
        yield machines
    finally:
        for machine in machines:
            machine.stop()
