"""Tasks over HTTP, for the agents and people of this machine (`/ansible/tasks…`).

Served on the operator's socket: whoever can open that owns the home.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter
from msgspec import Struct
from msgspec.structs import asdict

from agentpost.edges.http.parameters import CARRIES_CONTENT, IdempotencyKey, key_in
from agentpost.edges.operations.tasks import Claim, Complete, Fail, Update
from agentpost.gateway import Gateway
from agentpost.store.values import TasksRebuilt
from agentpost.work.context import ContextBlock
from agentpost.work.offering import NewTask, Offered
from agentpost.work.tasks import Moved, Role, TaskLine, TaskView

__all__ = ["task_routes"]

_MOST_LINES: Final = 500

Limit = Annotated[int, Parameter(ge=1, le=_MOST_LINES, description="How many at most.")]
Before = Annotated[str, Parameter(description="The last task id of the page before.")]


class ClaimTask(Claim, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    agent_id: str


class UpdateTask(Update, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    agent_id: str


class CompleteTask(Complete, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    agent_id: str


class FailTask(Fail, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    agent_id: str


class CancelTask(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Who asked for it."""

    agent_id: str


class Rebuild(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    check: bool = False


def task_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    """The routes of one gateway's tasks."""

    @post("/ansible/tasks", status_code=202, summary="Create a task", tags=["tasks"], **CARRIES_CONTENT)
    async def create(data: Annotated[NewTask, Body()], idempotency_key: IdempotencyKey = None) -> Offered:
        """Answered once the task is durable here. With several targets the first one that claims it has it."""
        return await gateway.office.tasks.create(data, key=key_in(idempotency_key))

    @post(
        "/ansible/tasks/each",
        status_code=202,
        summary="Create a task for each target",
        tags=["tasks"],
        **CARRIES_CONTENT,
    )
    async def create_each(data: Annotated[NewTask, Body()], idempotency_key: IdempotencyKey = None) -> list[Offered]:
        """For work that all targets have to do: one task for each of them, in one conversation."""
        return await gateway.office.tasks.create_each(data, key=key_in(idempotency_key))

    @get("/ansible/tasks", sync_to_thread=False, summary="List tasks", tags=["tasks"])
    def list_tasks(
        agent: str | None = None,
        role: Role | None = None,
        only_open: bool = False,
        limit: Limit = 50,
        before: Before = "",
    ) -> list[TaskLine]:
        """The tasks that this gateway knows, the newest first."""
        return gateway.office.tasks.list(agent_id=agent, role=role, open_only=only_open, limit=limit, before=before)

    @get("/ansible/tasks/{task_id:str}", sync_to_thread=False, summary="Show a task", tags=["tasks"])
    def show(task_id: str) -> TaskView:
        """Where it stands, and what was said about it."""
        return gateway.office.tasks.show(task_id)

    @post(
        "/ansible/tasks/{task_id:str}/claim", status_code=200, summary="Claim a task", tags=["tasks"], **CARRIES_CONTENT
    )
    async def claim(task_id: str, data: Annotated[ClaimTask, Body()], idempotency_key: IdempotencyKey = None) -> Moved:
        """Accept it, with an ETA. While the verdict is `pending` the work must not begin."""
        return await gateway.office.tasks.claim(task_id, key=key_in(idempotency_key), **asdict(data))

    @post(
        "/ansible/tasks/{task_id:str}/update",
        status_code=200,
        summary="Report progress",
        tags=["tasks"],
        **CARRIES_CONTENT,
    )
    async def update(
        task_id: str, data: Annotated[UpdateTask, Body()], idempotency_key: IdempotencyKey = None
    ) -> Moved:
        """How it goes, and when it will be done if that has changed. Only who accepted it may."""
        return await gateway.office.tasks.update(task_id, key=key_in(idempotency_key), **asdict(data))

    @post(
        "/ansible/tasks/{task_id:str}/complete",
        status_code=200,
        summary="Complete a task",
        tags=["tasks"],
        **CARRIES_CONTENT,
    )
    async def complete(
        task_id: str, data: Annotated[CompleteTask, Body()], idempotency_key: IdempotencyKey = None
    ) -> Moved:
        """The requester always hears of it. Output that breaks the contract of the capability is refused."""
        return await gateway.office.tasks.complete(task_id, key=key_in(idempotency_key), **asdict(data))

    @post(
        "/ansible/tasks/{task_id:str}/fail", status_code=200, summary="Fail a task", tags=["tasks"], **CARRIES_CONTENT
    )
    async def fail(task_id: str, data: Annotated[FailTask, Body()], idempotency_key: IdempotencyKey = None) -> Moved:
        """The requester always hears of it."""
        return await gateway.office.tasks.fail(task_id, key=key_in(idempotency_key), **asdict(data))

    @post("/ansible/tasks/{task_id:str}/cancel", status_code=200, summary="Cancel a task", tags=["tasks"])
    async def cancel(
        task_id: str, data: Annotated[CancelTask, Body()], idempotency_key: IdempotencyKey = None
    ) -> Moved:
        """Only who asked for it may, until it is over. What its worker says later is refused."""
        return await gateway.office.tasks.cancel(task_id, data.agent_id, key=key_in(idempotency_key))

    @post("/ansible/rebuild", status_code=200, summary="Rebuild the tasks from their events", tags=["tasks"])
    async def rebuild(data: Annotated[Rebuild, Body()]) -> TasksRebuilt:
        """What is listed is a projection. This makes it anew, and says which tasks were kept otherwise."""
        return await gateway.office.tasks.rebuild(check_only=data.check)

    @get(
        "/ansible/agents/{agent_id:str}/context",
        sync_to_thread=False,
        summary="What an agent should know before its next turn",
        tags=["tasks"],
    )
    def context(agent_id: str, max_bytes: int | None = None) -> ContextBlock:
        """One bounded block: unread mail, open tasks, who is there. All of it is data, marked as such."""
        return gateway.office.contexts.block(agent_id, max_bytes=max_bytes)

    return [context, create, create_each, list_tasks, show, claim, update, complete, fail, cancel, rebuild]
