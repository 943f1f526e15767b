"""Two agents on two machines claim the same tasks at once: each task has one worker, whatever the clocks say."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.processes.machines import FaultyMachine, eventually, faulty_mesh

pytestmark = pytest.mark.waits

TASKS = 8
HOUR_MS = 3_600_000


def open_work(machine: FaultyMachine, agent_id: str) -> set[str]:
    lines = machine.get(f"/ansible/tasks?agent={agent_id}&role=worker&only_open=true&limit=100")
    return {line["task"]["taskId"] for line in lines}


@pytest.mark.req("TASK-6", "TASK-5")
def test_two_claimants_at_once_and_one_worker(tmp_path: Path) -> None:
    """The clock of one is an hour behind. The loser of each task is told, does not list it, and cannot complete it."""
    with faulty_mesh(tmp_path, "mbp-jane", "lab-jane") as (seed, laptop, lab):
        lab.set_clock(-HOUR_MS)
        claimants = {"bob": laptop, "cid": lab}
        seed.add_agent("ada")
        for agent_id, machine in claimants.items():
            machine.add_agent(agent_id)
        eventually(lambda: all(seed.knows(each) for each in claimants))
        task = {"requesterAgentId": "ada", "title": "Build", "toAgents": list(claimants)}
        task_ids = [seed.post("/ansible/tasks", task)["taskId"] for _ in range(TASKS)]
        eventually(lambda: all(open_work(each, name) == set(task_ids) for name, each in claimants.items()))

        def claim(agent_id: str) -> None:
            for task_id in task_ids:
                body = {"agentId": agent_id, "etaSeconds": 600}
                claimants[agent_id].post(f"/ansible/tasks/{task_id}/claim", body)

        # While the seed stands still nothing is decided: both claim everything.
        seed.pause()
        try:
            with ThreadPoolExecutor(2) as both:
                list(both.map(claim, claimants))
        finally:
            seed.go_on()

        def record(machine: FaultyMachine, task_id: str) -> dict[str, Any]:
            return machine.get(f"/ansible/tasks/{task_id}")["task"]

        eventually(lambda: all("acceptedByAgentId" in record(seed, each) for each in task_ids))
        winner = {task_id: record(seed, task_id)["acceptedByAgentId"] for task_id in task_ids}
        for agent_id, machine in claimants.items():
            expected = {task_id for task_id, won_by in winner.items() if won_by == agent_id}
            eventually(lambda m=machine, a=agent_id, e=expected: open_work(m, a) == e)
        for task_id, won_by in winner.items():
            claims = {each["agentId"]: each["verdict"] for each in record(seed, task_id)["claims"]}
            assert [agent for agent, verdict in claims.items() if verdict == "won"] == [won_by]
            done = {"agentId": won_by, "resultSummary": "built"}
            claimants[won_by].post(f"/ansible/tasks/{task_id}/complete", done)
        eventually(lambda: all(record(seed, each)["state"] == "completed" for each in task_ids))
