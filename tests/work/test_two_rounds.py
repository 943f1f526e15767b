"""A task that is offered again while its worker, who has it already, cannot be heard."""

import asyncio

import pytest

from agentpost.delivery.deadletters import Filter
from agentpost.protocol.taskbook import Verdict
from agentpost.protocol.tasks import TaskState
from agentpost.work.offering import NewTask
from tests.delivery.linking import hand
from tests.work.meshing import Mesh
from tests.work.test_resent_moves import give_up, mend


@pytest.mark.req("TASK-5", "TASK-6", "RTY-7")
@pytest.mark.parametrize("also_for", [(), ("cid",)])
async def test_a_worker_who_claims_once_more_what_he_has_keeps_it(mesh: Mesh, also_for: tuple[str, ...]) -> None:
    """The offer seemed lost and was sent again; the claim to the first one arrives, and the claim to the second."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    for agent_id, node_id in {"ada": "node-a", "bob": "node-b", "cid": "node-c"}.items():
        await mesh.nodes[node_id].host(agent_id)
    await mesh.rest()
    pipe = mesh.pipes.pop(("node-a", "node-b"))
    mesh.pipes.pop(("node-b", "node-c")).cut()
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build it", to_agents=("bob", *also_for)))
    await mesh.rest()
    # What node-a says arrives, and nothing comes back.
    for _ in range(5):
        await asyncio.sleep(0.01)
        pipe.right.bring(pipe.left.session.frames_to_send())
        while pipe.right.coming:
            await hand(pipe.right.session, pipe.right.coming.pop(0))
    pipe.cut()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=3600)
    await give_up(mesh, "node-a")
    done = await a.engine.dead_letters.resend(Filter(to_agent_id="bob"), actor="op")
    assert len(done.resent) == 1
    await mend(mesh, is_lost=False)
    assert a.tasks.get(offered.task_id).accepted_by_agent_id == "bob"
    assert (a.tasks.get(offered.task_id).round, b.tasks.get(offered.task_id).round) == (2, 2)
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=60)
    await mesh.rest()
    claim = b.tasks.get(offered.task_id).claim_of("bob")
    assert claim is not None
    assert claim.verdict is Verdict.WON
    assert b.tasks.get(offered.task_id).is_held_by("bob", "node-b")
    assert a.tasks.get(offered.task_id).eta_at_ms == b.tasks.get(offered.task_id).eta_at_ms
    await b.tasks.complete(offered.task_id, "bob", result_summary="It stands.")
    await mesh.rest()
    assert a.tasks.get(offered.task_id).state is TaskState.COMPLETED
    for node in (a, b):
        assert (await node.tasks.rebuild(check_only=True)).differing == ()
