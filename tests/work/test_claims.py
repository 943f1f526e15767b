"""Claims at the same instant, many of them: one worker for each task."""

import asyncio
import contextlib
import random
from typing import Any, cast

import pytest

from agentpost.edges.operations.calling import Caller, Desk
from agentpost.edges.operations.running import run_operation
from agentpost.protocol.errors import Refusal
from agentpost.protocol.taskbook import Verdict
from agentpost.work.offering import NewTask
from agentpost.work.tasks import Role
from tests.work.meshing import Mesh, Node

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


@pytest.mark.req("TASK-6")
async def test_the_order_of_reading_decides_and_not_the_time_of_the_claim(mesh: Mesh) -> None:
    """The earlier claim arrives later, and the clock runs before it is read: the claim that is read first wins."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    for node, agent_id in ((a, "ada"), (b, "bob"), (c, "cid")):
        await node.host(agent_id)
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=("bob", "cid")))
    await mesh.rest()
    await c.tasks.claim(offered.task_id, "cid", eta_seconds=600)
    mesh.clock.advance(10_000)
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=600)
    mesh.clock.advance(10_000)
    async with asyncio.timeout(60):
        while a.tasks.get(offered.task_id).accepted_by_agent_id is None:
            await mesh.pipes["node-a", "node-b"].step()
            await asyncio.sleep(0)
    mesh.clock.advance(10_000)
    await mesh.rest()
    for node in (a, b):
        assert node.tasks.get(offered.task_id).accepted_by_agent_id == "bob"
    verdicts = {each.agent_id: each.verdict for each in a.tasks.get(offered.task_id).claims}
    assert verdicts == {"bob": Verdict.WON, "cid": Verdict.LOST}
    lost = c.tasks.get(offered.task_id).claim_of("cid")
    assert lost is not None
    assert lost.verdict is Verdict.LOST


async def tool_list(node: Node, agent_id: str) -> list[str]:
    """The open tasks that the tools of an agent show."""
    desk = Desk(node.engine, node.tasks, node.office.coordination, cast("Any", None))
    caller = Caller(agent_id=agent_id, scopes=frozenset(), ended=asyncio.Event())
    done = await run_operation(desk, caller, "ansible_list_tasks", {})
    return [each["taskId"] for each in done.result["tasks"]]


@pytest.mark.req("TASK-6", "OPS-5")
@pytest.mark.parametrize("winner", ["abe-0", "bob-0", "cid-0"])
async def test_a_task_is_open_work_of_its_winner_and_of_no_other_agent(mesh: Mesh, winner: str) -> None:
    """Ten agents on three gateways are offered a task, and one wins. No list, block or tool shows it to the others."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    agents: dict[str, Node] = {}
    for node, name, count in ((a, "abe", 4), (b, "bob", 3), (c, "cid", 3)):
        for number in range(count):
            agents[f"{name}-{number}"] = node
            await node.host(f"{name}-{number}")
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=tuple(agents)))
    await mesh.rest()
    for agent_id, node in agents.items():
        assert [line.task.task_id for line in node.tasks.list(agent_id=agent_id, open_only=True)] == [offered.task_id]

    # The last agent of each gateway claims nothing; the winner's gateway is heard first.
    claimants = [each for each in agents if each not in ("abe-3", "bob-2", "cid-2")]
    home = agents[winner]
    for agent_id in sorted(claimants, key=lambda each: agents[each] is not home):
        with contextlib.suppress(Refusal):  # it has heard of the winner before it could claim
            await agents[agent_id].tasks.claim(offered.task_id, agent_id, eta_seconds=60)
        async with asyncio.timeout(60):
            while agents[agent_id] is home and a.tasks.get(offered.task_id).accepted_by_agent_id is None:
                if home is not a:
                    await mesh.pipes["node-a", home.node_id].step()
                await asyncio.sleep(0)
    await mesh.rest()

    assert a.tasks.get(offered.task_id).accepted_by_agent_id == winner
    for agent_id, node in agents.items():
        expected = [offered.task_id] if agent_id == winner else []
        shown = node.tasks.list(agent_id=agent_id, role=Role.WORKER, open_only=True)
        assert [line.task.task_id for line in shown] == expected, agent_id
        assert await tool_list(node, agent_id) == expected, agent_id
        block = node.office.contexts.block(agent_id)
        assert (block.open_tasks, offered.task_id in block.text) == (len(expected), bool(expected)), agent_id
        assert node.open_mail(agent_id) == [], "the offer is closed"
    (line,) = a.tasks.list(agent_id="ada", role=Role.REQUESTER, open_only=True)
    assert line.task.task_id == offered.task_id, "its requester still waits for it"
    everything = [line.task.task_id for line in agents["bob-2"].tasks.list(agent_id="bob-2")]
    assert everything == [offered.task_id], "the whole list still has it"
