"""Gateways that coordinate die and start again: the sweep goes on, asks once, and takes no task from its worker."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.edges.meshing import invite, statuses
from tests.edges.running import RunningGateway, running_gateway
from tests.processes.machines import eventually, faulty_mesh

pytestmark = pytest.mark.waits

NODES = {"vps-jane": "backbone", "hub-jane": "backbone", "mbp-jane": "edge"}
WORK = """
[work]
claim_sla_seconds = 1
reassign_after_seconds = 3600
"""


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[dict[str, RunningGateway]]:
    """Two seeds, either of which can coordinate, and a laptop whose agents have work."""
    with ExitStack() as stack:
        up: dict[str, RunningGateway] = {}
        for node, tier in NODES.items():
            home = tmp_path / node
            home.mkdir(mode=0o700)
            (home / "agentpost.toml").write_text(WORK)
            (home / "agentpost.toml").chmod(0o600)
            started = running_gateway(
                home, node=node, tier=tier, module="tests.processes.launch", environment={"AGENTPOST_TEST_QUICK": "yes"}
            )
            up[node] = stack.enter_context(started)
            if node != "vps-jane":
                seed = up["vps-jane"]
                token = invite(seed, node, tier=tier)
                up[node].operator.post("/operator/join", {"url": seed.url, "token": token})
        for gateway in up.values():
            eventually(lambda gateway=gateway: list(statuses(gateway).values()) == ["online"] * len(NODES))
        yield up


def coordination(gateway: RunningGateway) -> dict[str, Any]:
    return gateway.operator.get("/ansible/coordination")


def questions(gateway: RunningGateway) -> int:
    inbox = gateway.operator.get("/ansible/agents/bob/inbox")
    return sum(each["fromAgentId"] == "postmaster" for each in inbox)


@pytest.mark.req("OPS-4", "TASK-8")
def test_the_sweep_goes_on_at_the_next_preference(mesh: dict[str, RunningGateway]) -> None:
    """With the coordinator killed another seed calls the sweeps of a laptop, and a late task is asked about once."""
    vps, hub, laptop = mesh.values()
    vps.operator.post("/ansible/coordination", {"coordinator": "vps-jane", "sweepEverySeconds": 10})
    for gateway in (hub, laptop):
        gateway.operator.post("/ansible/coordination/preference", {"desiredCoordinator": "hub-jane"})
    for agent_id in ("ada", "bob"):
        laptop.operator.post("/ansible/agents", {"agentId": agent_id})
    task = {"requesterAgentId": "ada", "title": "Build", "toAgents": ["bob"]}
    laptop.operator.post("/ansible/tasks", task)
    eventually(lambda: questions(laptop) == 1)
    by_the_first = coordination(laptop)
    assert by_the_first["acting"] == "vps-jane"
    vps.process.kill()
    eventually(lambda: coordination(laptop)["acting"] == "hub-jane")

    def is_swept_for_the_second() -> bool:
        present = coordination(laptop)
        is_newer = present["lastSweep"]["turn"] > by_the_first["lastSweep"]["turn"]
        return is_newer and present["term"] > by_the_first["term"]

    eventually(is_swept_for_the_second)
    then = coordination(laptop)["lastSweep"]["turn"]
    eventually(lambda: coordination(laptop)["lastSweep"]["turn"] > then)
    assert coordination(laptop)["lastSweep"]["problems"] == {"missed_claim": 1}
    assert questions(laptop) == 1


@pytest.mark.req("TASK-8", "TASK-6")
def test_a_restart_of_the_requesters_gateway_takes_no_task_from_its_worker(tmp_path: Path) -> None:
    """It sweeps before it has heard the worker's gateway again; the worker keeps the task, and its result counts."""
    with faulty_mesh(tmp_path, "mbp-jane") as (seed, laptop):
        for agent_id in ("ada", "cid"):
            seed.add_agent(agent_id)
        laptop.add_agent("bob")
        eventually(lambda: seed.knows("bob") and laptop.knows("ada"))
        seed.post("/ansible/coordination", {"coordinator": "vps-jane", "sweepEverySeconds": 10})
        task = {"requesterAgentId": "ada", "title": "Build", "toAgents": ["bob", "cid"]}
        path = "/ansible/tasks/" + seed.post("/ansible/tasks", task)["taskId"]
        eventually(lambda: any(each["kind"] == "task_create" for each in laptop.get("/ansible/agents/bob/inbox")))
        laptop.post(f"{path}/claim", {"agentId": "bob", "etaSeconds": 86_400})
        eventually(lambda: laptop.get(path)["task"]["state"] == "accepted")

        laptop.pause()
        try:
            seed.kill()
            seed.start()
            eventually(lambda: coordination(seed.gateway).get("lastSweep") is not None)
        finally:
            laptop.go_on()
        assert coordination(seed.gateway)["lastSweep"]["checked"] == 1
        assert seed.get(path)["task"]["round"] == 1
        laptop.post(f"{path}/complete", {"agentId": "bob", "resultSummary": "built"})
        eventually(lambda: seed.get(path)["task"]["state"] == "completed")
        assert seed.get(path)["task"]["acceptedByAgentId"] == "bob"
