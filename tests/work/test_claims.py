"""Claims at the same instant, many of them: one worker for each task."""

import random

import pytest

from agentpost.protocol.taskbook import Verdict
from agentpost.work.offering import NewTask
from tests.work.meshing import Mesh

TASKS = 1000


@pytest.mark.req("TASK-6")
async def test_a_thousand_tasks_and_three_claimants_each() -> None:
    """Agents on three gateways claim a thousand tasks at once: each has exactly one worker, and all agree."""
    mesh = Mesh()
    try:
        nodes = await mesh.add("node-a", "node-b", "node-c")
        agents = {"abe": nodes[0], "bob": nodes[1], "cid": nodes[2]}
        await nodes[0].host("ada")
        for agent_id, node in agents.items():
            await node.host(agent_id)
        mesh.room.add_capability("cap.build", *agents)
        chance = random.Random(6)
        task_ids = [
            (
                await nodes[0].tasks.create(
                    NewTask(requester_agent_id="ada", title=f"Task {number}", required_capabilities=("cap.build",))
                )
            ).task_id
            for number in range(TASKS)
        ]
        await mesh.rest()
        # Everybody claims everything, in an order of its own, and the pipes move a little in between.
        wanted = [(agent_id, task_id) for agent_id in agents for task_id in task_ids]
        chance.shuffle(wanted)
        for place, (agent_id, task_id) in enumerate(wanted):
            record = agents[agent_id].tasks.get(task_id)
            if record.is_open and record.accepted_by_agent_id is None and record.claim_of(agent_id) is None:
                await agents[agent_id].tasks.claim(task_id, agent_id, eta_seconds=60)
            if place % 97 == 0:
                for pipe in mesh.pipes.values():
                    await pipe.step()
        await mesh.rest()

        won = dict.fromkeys(agents, 0)
        for task_id in task_ids:
            decided = nodes[0].tasks.get(task_id)
            winners = [claim.agent_id for claim in decided.claims if claim.verdict is Verdict.WON]
            assert winners == [decided.accepted_by_agent_id]
            won[winners[0]] += 1
            believing = [
                agent_id
                for agent_id, node in agents.items()
                if (claim := node.tasks.get(task_id).claim_of(agent_id)) is not None and claim.verdict is Verdict.WON
            ]
            assert believing == winners, "nobody else believes to have it"
            for agent_id, node in agents.items():
                claim = node.tasks.get(task_id).claim_of(agent_id)
                assert claim is None or claim.verdict is not Verdict.PENDING, "everybody was told"
        assert min(won.values()) > 0, "all of them win some, or this shows nothing"
        for node in nodes:
            assert (await node.tasks.rebuild(check_only=True)).differing == ()
        for agent_id, node in agents.items():
            assert node.open_mail(agent_id) == [], "the offers are closed"
    finally:
        await mesh.close()
