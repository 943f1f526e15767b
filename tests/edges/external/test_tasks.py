"""Tasks of agents outside the mesh: asked for, claimed, reported on and ended, each with its own scope."""

from typing import Any

import pytest

from tests.edges.external.client import CONTEXT, AgentClient, code_of
from tests.edges.external.conftest import Door
from tests.edges.meshing import eventually

ASKS = ("ansible.task.create", "ansible.task.read")
WORKS = ("ansible.task.read", "ansible.task.claim", "ansible.task.update", "ansible.task.complete")


@pytest.fixture(scope="module")
def agents(gate: Door) -> tuple[AgentClient, AgentClient, AgentClient]:
    return (
        gate.agent("architect", scopes=ASKS),
        gate.agent("builder", scopes=WORKS),
        gate.agent("mallory", scopes=(*ASKS, *WORKS)),
    )


def delegate(client: AgentClient, **more: Any) -> str:
    return client.ask("ansible_delegate_task", title="Build it", toAgents=["builder"], **more)["taskId"]


def task(client: AgentClient, task_id: str) -> dict[str, Any]:
    return client.ask("ansible_list_tasks", taskId=task_id)["task"]


@pytest.mark.req("EXT-2", "TASK-2", "TASK-3", "TASK-4")
def test_a_task_between_two_agents_outside(agents: tuple[AgentClient, ...]) -> None:
    """Delegated, claimed with an ETA, reported on, completed; the requester sees each step, and who asks no more."""
    architect, builder, _ = agents
    task_id = delegate(architect, description="with care", input={"branch": "main"})
    eventually(lambda: any(line["taskId"] == task_id for line in builder.ask("ansible_list_tasks")["tasks"]))
    claimed = builder.ask("ansible_claim_task", taskId=task_id, etaSeconds=600, planSummary="make")
    assert claimed["verdict"] == "won"
    assert builder.ask("ansible_update_task", taskId=task_id, progress=50, note="half")["state"] == "in_progress"
    done = builder.ask("ansible_complete_task", taskId=task_id, resultSummary="built", output={"artifact": "a.whl"})
    assert done["state"] == "completed"
    seen = task(architect, task_id)
    assert [step["kind"] for step in seen["steps"]] == ["task_create", "task_accept", "task_update", "task_complete"]
    assert seen["steps"][-1]["content"]["resultSummary"] == "built"
    assert all(line["taskId"] != task_id for line in architect.ask("ansible_list_tasks")["tasks"])
    assert code_of(builder.invoke("ansible_complete_task", {"taskId": task_id, "resultSummary": "x"})) in (
        (409, "invalid_transition"),
        (409, "conflict"),
    )


@pytest.mark.req("EXT-2", "TASK-4")
def test_a_task_that_fails(agents: tuple[AgentClient, ...]) -> None:
    """Who works on it says why, and the requester sees it."""
    architect, builder, _ = agents
    task_id = delegate(architect)
    builder.ask("ansible_claim_task", taskId=task_id, etaSeconds=60)
    assert builder.ask("ansible_fail_task", taskId=task_id, errorSummary="no compiler", failureClass="missing_tool")
    assert task(architect, task_id)["task"]["failureClass"] == "missing_tool"


@pytest.mark.req("EXT-1", "EXT-5")
def test_the_task_of_others_does_not_exist(agents: tuple[AgentClient, ...]) -> None:
    """Neither to be seen, nor claimed, nor ended by an agent that has nothing to do with it, whatever its scopes."""
    architect, builder, mallory = agents
    task_id = delegate(architect)
    for operation, args in (
        ("ansible_list_tasks", {"taskId": task_id}),
        ("ansible_claim_task", {"taskId": task_id, "etaSeconds": 60}),
        ("ansible_update_task", {"taskId": task_id, "progress": 99}),
        ("ansible_complete_task", {"taskId": task_id, "resultSummary": "mine"}),
        ("ansible_fail_task", {"taskId": task_id, "errorSummary": "mine"}),
    ):
        assert code_of(mallory.invoke(operation, args)) == (404, "not_found")
    assert mallory.ask("ansible_list_tasks")["tasks"] == []
    # Who asked for it does not do it, and who does it not before the claim.
    assert architect.invoke("ansible_claim_task", {"taskId": task_id, "etaSeconds": 60}).status_code == 403
    assert code_of(builder.invoke("ansible_complete_task", {"taskId": task_id, "resultSummary": "x"}))[0] == 409
    assert code_of(mallory.invoke("ansible_delegate_task", {"title": "x", "requesterAgentId": "builder"})) == (
        400,
        "invalid_field",
    )
    assert task(builder, task_id)["task"]["state"] == "created"


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize(
    ("operation", "args"),
    [
        ("ansible_delegate_task", {"title": "x", "toAgents": ["builder"]}),
        ("ansible_claim_task", {"taskId": "tsk_x", "etaSeconds": 60}),
        ("ansible_update_task", {"taskId": "tsk_x"}),
        ("ansible_complete_task", {"taskId": "tsk_x", "resultSummary": "x"}),
        ("ansible_fail_task", {"taskId": "tsk_x", "errorSummary": "x"}),
        ("ansible_list_tasks", {"taskId": "tsk_x"}),
    ],
)
def test_each_move_needs_its_scope(gate: Door, operation: str, args: dict[str, Any]) -> None:
    """A session for mail does nothing with tasks, and does not see them."""
    mailer = gate.agent("mailer")
    assert code_of(mailer.invoke(operation, args)) == (403, "scope_denied")
    assert "tasks" not in mailer.ask("ansible_status")


@pytest.mark.req("EXT-6")
def test_a_context_token_sees_the_task_of_its_conversation_only(agents: tuple[AgentClient, ...]) -> None:
    """The other task of the same agent is not there for it."""
    architect, builder, _ = agents
    mine, other = delegate(architect), delegate(architect)
    corr_id = task(builder, mine)["task"]["corrId"]
    granted = builder.call(CONTEXT, {"contextId": corr_id, "scopes": list(WORKS)}).json()
    builder.secrets.add(granted["contextToken"])

    def within(operation: str, **args: Any) -> Any:
        return builder.invoke(operation, args, token=granted["contextToken"])

    assert [line["taskId"] for line in within("ansible_list_tasks").json()["result"]["tasks"]] == [mine]
    assert code_of(within("ansible_claim_task", taskId=other, etaSeconds=60)) == (404, "not_found")
    assert within("ansible_claim_task", taskId=mine, etaSeconds=60).status_code == 200
