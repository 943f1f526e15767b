"""A task that its requester does not want any more."""

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.tasks import TaskState
from agentpost.work.offering import NewTask
from tests.work.meshing import Mesh, Node


async def canceled_at(mesh: Mesh, node: Node, worker: Node, *, state: TaskState) -> str:
    await node.host("ada")
    await worker.host("bob")
    offered = await node.tasks.create(NewTask(requester_agent_id="ada", title="Build it", to_agents=("bob",)))
    await mesh.rest()
    if state is not TaskState.CREATED:
        await worker.tasks.claim(offered.task_id, "bob", eta_seconds=600)
    if state is TaskState.IN_PROGRESS:
        await worker.tasks.update(offered.task_id, "bob", progress=10)
    await mesh.rest()
    assert (await node.tasks.cancel(offered.task_id, "ada")).state == "canceled"
    return offered.task_id


@pytest.mark.req("TASK-5")
@pytest.mark.parametrize("state", [TaskState.CREATED, TaskState.ACCEPTED, TaskState.IN_PROGRESS])
@pytest.mark.parametrize("where", ["node-a", "node-b"])
async def test_a_canceled_task_is_over_for_everybody(mesh: Mesh, where: str, state: TaskState) -> None:
    """From any state that is not an end, with its worker here or elsewhere: nobody can move it any more."""
    node, worker = mesh.nodes["node-a"], mesh.nodes[where]
    task_id = await canceled_at(mesh, node, worker, state=state)
    await mesh.rest()
    for book in {node, worker}:
        record = book.tasks.get(task_id)
        assert (record.is_canceled, record.is_open, record.state) == (True, False, state)
        assert (await book.tasks.rebuild(check_only=True)).differing == ()
    moves = (
        worker.tasks.claim(task_id, "bob", eta_seconds=60),
        worker.tasks.update(task_id, "bob", progress=20),
        worker.tasks.complete(task_id, "bob", result_summary="Done."),
        worker.tasks.fail(task_id, "bob", failure_class="failed", error_summary="No."),
    )
    for move in moves:
        with pytest.raises(Refusal, match="canceled") as refused:
            await move
        assert refused.value.code is Code.INVALID_TRANSITION
    with pytest.raises(Refusal) as again:
        await node.tasks.cancel(task_id, "ada")
    assert again.value.code is Code.INVALID_TRANSITION


@pytest.mark.req("TASK-5")
async def test_what_was_done_before_the_news_came_changes_nothing(mesh: Mesh) -> None:
    """The worker completes a task that was canceled meanwhile: its gateway hears that it is too late."""
    node, worker = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task_id = await canceled_at(mesh, node, worker, state=TaskState.ACCEPTED)
    done = await worker.tasks.complete(task_id, "bob", result_summary="Done.")
    await mesh.rest()
    record = node.tasks.get(task_id)
    assert (record.is_canceled, record.state) == (True, TaskState.ACCEPTED)
    (delivery,) = worker.store.deliveries_of(done.event_id)
    assert delivery.reason == "invalid_transition"


@pytest.mark.req("TASK-5")
async def test_a_task_that_has_ended_is_not_canceled(mesh: Mesh) -> None:
    """What was completed stays completed."""
    node = mesh.nodes["node-a"]
    await node.host("ada")
    await node.host("bob")
    offered = await node.tasks.create(NewTask(requester_agent_id="ada", title="Build it", to_agents=("bob",)))
    await mesh.rest()
    await node.tasks.claim(offered.task_id, "bob", eta_seconds=60)
    await node.tasks.complete(offered.task_id, "bob", result_summary="Done.")
    with pytest.raises(Refusal, match="asked for by ada"):
        await node.tasks.cancel(offered.task_id, "bob")
    with pytest.raises(Refusal) as refused:
        await node.tasks.cancel(offered.task_id, "ada")
    assert refused.value.code is Code.INVALID_TRANSITION
    assert node.tasks.get(offered.task_id).state is TaskState.COMPLETED
