"""Tools for tasks: delegated to others, and done for others. The requester always hears the end."""

from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from pydantic import Field
from typing_extensions import TypedDict

from agentpost.edges.mcp.telling import CHANGES, LOOKS, NOTICE, ago, told
from agentpost.edges.sdk.client import Client
from agentpost.protocol.payloads import Priority
from agentpost.protocol.taskbook import Verdict
from agentpost.protocol.timestamps import format_ms
from agentpost.work.tasks import Moved, Role, TaskLine

__all__ = ["add_task_tools", "task_lines"]

TaskArgument = Annotated[str, Field(description="The task: tsk_…")]


class Delegated(TypedDict):
    task_id: str
    corr_id: str
    offered_to: list[str]
    next: str


class TaskMoved(TypedDict):
    task_id: str
    state: str
    verdict: str | None
    next: str


class TaskDigest(TypedDict):
    task_id: str
    title: str
    state: str
    requester: str
    accepted_by: str | None
    progress: int | None
    eta_at: str | None
    deadline_at: str | None
    age: str


class TaskList(TypedDict):
    tasks: list[TaskDigest]
    notice: str


def add_task_tools(server: MCPServer, client: Client) -> None:
    @server.tool(name="ansible_list_tasks", title="List tasks", annotations=LOOKS)
    @told
    async def list_tasks(
        role: Annotated[Role | None, Field(description="Tasks that you asked for, or that you are to do.")] = None,
        only_open: bool = True,
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> TaskList:
        """The tasks that concern you, the newest first."""
        return TaskList(tasks=await task_lines(client, role, only_open=only_open, limit=limit), notice=NOTICE)

    @server.tool(name="ansible_delegate_task", title="Delegate a task", annotations=CHANGES)
    @told
    async def delegate_task(
        title: Annotated[str, Field(description="The work in a line.")],
        description: Annotated[str, Field(description="All that somebody needs to do it.")] = "",
        to: Annotated[list[str], Field(description="Agents who may claim it; the first one has it.")] = [],  # noqa: B006 - never changed
        capabilities: Annotated[
            list[str], Field(description="Instead of agents: what somebody must be able to do.")
        ] = [],  # noqa: B006 - never changed
        task_input: Annotated[Any, Field(description="What the work begins with, as its contract has it.")] = None,
        priority: Priority = Priority.NORMAL,
        deadline_at: Annotated[str | None, Field(description="RFC 3339, UTC: 2026-03-01T12:00:00.000Z")] = None,
    ) -> Delegated:
        """Ask another agent for work. You hear of its end in any case; ansible_list_tasks shows how it goes."""
        made = await client.tasks.create(
            title,
            to=to,
            capabilities=capabilities,
            description=description,
            input=task_input,
            priority=priority,
            deadline_at=deadline_at,
        )
        return Delegated(
            task_id=made.task_id,
            corr_id=made.receipt.corr_id,
            offered_to=[f"{each.agent_id}@{each.node_id}" for each in made.receipt.recipients],
            next="Go on with your own work: the outcome comes as a message.",
        )

    @server.tool(name="ansible_claim_task", title="Claim a task", annotations=CHANGES)
    @told
    async def claim_task(
        task_id: TaskArgument,
        eta_seconds: Annotated[int, Field(ge=1, description="In how many seconds it will be done.")],
        plan: Annotated[str | None, Field(description="What you are going to do, in a sentence.")] = None,
    ) -> TaskMoved:
        """Accept a task, and say when it will be done. Do not begin while the verdict is `pending`."""
        return _moved(await client.tasks.claim(task_id, eta_seconds=eta_seconds, plan_summary=plan))

    @server.tool(name="ansible_update_task", title="Report progress", annotations=CHANGES)
    @told
    async def update_task(
        task_id: TaskArgument,
        progress: Annotated[int | None, Field(ge=0, le=100, description="In per cent.")] = None,
        note: str | None = None,
        revised_eta_seconds: Annotated[int | None, Field(ge=1, description="A new ETA, from now.")] = None,
        notify: Annotated[bool, Field(description="Whether the requester is to be told.")] = False,
    ) -> TaskMoved:
        """Say how a task goes that you have accepted."""
        return _moved(
            await client.tasks.update(
                task_id, progress=progress, note=note, revised_eta_seconds=revised_eta_seconds, notify=notify
            )
        )

    @server.tool(name="ansible_complete_task", title="Complete a task", annotations=CHANGES)
    @told
    async def complete_task(
        task_id: TaskArgument,
        result_summary: Annotated[str, Field(description="What came of it.")],
        output: Annotated[Any, Field(description="The result, as its contract has it.")] = None,
        result_ref: Annotated[str | None, Field(description="Where the result is: a path, a commit, a URL.")] = None,
    ) -> TaskMoved:
        """The work is done. Its requester is told."""
        return _moved(await client.tasks.complete(task_id, result_summary, output=output, result_ref=result_ref))

    @server.tool(name="ansible_fail_task", title="Fail a task", annotations=CHANGES)
    @told
    async def fail_task(
        task_id: TaskArgument,
        error_summary: Annotated[str, Field(description="Why it cannot be done.")],
        failure_class: Annotated[str, Field(description="One word that programs sort by.")] = "failed",
    ) -> TaskMoved:
        """The work cannot be done. Its requester is told why."""
        return _moved(await client.tasks.fail(task_id, error_summary, failure_class=failure_class))

    # The decorators have them; without this they look unused.
    _ = (list_tasks, delegate_task, claim_task, update_task, complete_task, fail_task)


async def task_lines(client: Client, role: Role | None, *, only_open: bool, limit: int) -> list[TaskDigest]:
    return [_line(each) for each in await client.tasks.list(role=role, only_open=only_open, limit=limit)]


def _line(line: TaskLine) -> TaskDigest:
    task = line.task
    return TaskDigest(
        task_id=task.task_id,
        title=line.title or "",
        state=task.state.value,
        requester=f"{task.requester_agent_id}@{task.requester_node_id}",
        accepted_by=task.accepted_by_agent_id,
        progress=task.progress,
        eta_at=None if task.eta_at_ms is None else format_ms(task.eta_at_ms),
        deadline_at=None if task.deadline_at_ms is None else format_ms(task.deadline_at_ms),
        age=ago(task.created_at_ms),
    )


def _moved(moved: Moved) -> TaskMoved:
    is_pending = moved.verdict is Verdict.PENDING
    return TaskMoved(
        task_id=moved.task_id,
        state=moved.state,
        verdict=None if moved.verdict is None else moved.verdict.value,
        next="Others were offered it too: look again with ansible_list_tasks before you begin." if is_pending else "",
    )
