"""Tasks as one agent sees them: those that it asked for, was offered, or does. Others are not found.

`Claim`, `Update`, `Complete` and `Fail` are what is said of a task, over whichever edge.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict

from agentpost.edges.operations.calling import NOTICE, Caller, Desk, Done, Effect, IdempotencyKey, Operation
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import TaskId
from agentpost.protocol.payloads import Priority
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.timestamps import format_ms
from agentpost.work.offering import NewTask, Offered
from agentpost.work.tasks import Moved, Role, TaskLine, TaskView

__all__ = ["TASKS", "Claim", "Complete", "Fail", "Update"]

_LONGEST_TITLE: Final = 120
_MOST_LOOKED_AT: Final = 500

TaskArgument = Annotated[str, Meta(description="The task: tsk_…")]


class Claim(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Accept a task, and say when it will be done: one of `etaSeconds` and `etaAt`.

    Begin when the verdict is `won`; while it is `pending` others were offered it too, and it is not yours yet.
    """

    eta_seconds: Annotated[int | None, Meta(description="In how many seconds it will be done.")] = None
    eta_at: Annotated[str | None, Meta(description="RFC 3339, UTC: 2026-03-01T12:00:00.000Z")] = None
    plan_summary: Annotated[str | None, Meta(description="What you are going to do, in a sentence.")] = None


class Update(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Say how a task goes that you have accepted. `revisedEtaSeconds` counts from now."""

    status: str = "in_progress"
    progress: Annotated[int | None, Meta(description="In per cent.")] = None
    revised_eta_at: Annotated[str | None, Meta(description="A new ETA.")] = None
    revised_eta_seconds: Annotated[int | None, Meta(description="A new ETA, from now.")] = None
    note: str | None = None
    notify: Annotated[bool, Meta(description="Whether the requester is to be told.")] = False


class Complete(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The work is done. Its requester is told. `installedVersion` and `installedAt` are for skills."""

    result_summary: Annotated[str, Meta(description="What came of it.")]
    output: Annotated[Any, Meta(description="The result, as its contract has it.")] = None
    result_ref: Annotated[str | None, Meta(description="Where the result is: a path, a commit, a URL.")] = None
    installed_version: str | None = None
    installed_at: str | None = None


class Fail(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The work cannot be done. Its requester is told why."""

    error_summary: Annotated[str, Meta(description="Why, in a sentence for people.")]
    failure_class: Annotated[str, Meta(description="One word that programs sort by.")] = "failed"


class ClaimArgs(Claim, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    task_id: TaskArgument
    idempotency_key: IdempotencyKey = None


class UpdateArgs(Update, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    task_id: TaskArgument
    idempotency_key: IdempotencyKey = None


class CompleteArgs(Complete, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    task_id: TaskArgument
    idempotency_key: IdempotencyKey = None


class FailArgs(Fail, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    task_id: TaskArgument
    idempotency_key: IdempotencyKey = None


class ListArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The tasks that concern you, the newest first; with `taskId`, one of them with all that was said."""

    task_id: Annotated[str | None, Meta(description="One task, whole.")] = None
    role: Annotated[Role | None, Meta(description="Those that you asked for, or those that you are to do.")] = None
    only_open: bool = True
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class TaskDigest(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One task in a line. `offerEnded` says why nobody has it whom it was offered to: it waits for nobody."""

    task_id: TaskId
    corr_id: str
    title: str
    state: str
    from_agent_id: str
    from_node_id: str
    created_at: str
    accepted_by_agent_id: str | None = None
    progress: int | None = None
    eta_at: str | None = None
    deadline_at: str | None = None
    offer_ended: str | None = None


class TaskList(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`task` is the one that was asked for."""

    tasks: list[TaskDigest]
    notice: str
    task: TaskView | None = None


class DelegateArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Ask other agents for work: by name, or whoever has the capabilities. The first that claims it has it.

    You hear of its end in any case; ansible_list_tasks shows how it goes.
    """

    title: Annotated[str, Meta(description="The work in a line.")]
    description: Annotated[str, Meta(description="All that somebody needs to do it.")] = ""
    to_agents: Annotated[tuple[str, ...], Meta(description="Agents who may claim it.")] = ()
    required_capabilities: Annotated[tuple[str, ...], Meta(description="Instead of agents: what they can do.")] = ()
    input: Annotated[Any, Meta(description="What the work begins with, as its contract has it.")] = None
    priority: Priority = Priority.NORMAL
    response_required: bool = True
    deadline_at: Annotated[str | None, Meta(description="RFC 3339, UTC: 2026-03-01T12:00:00.000Z")] = None
    task_type: str | None = None
    capability_id: str | None = None
    corr_id: Annotated[str | None, Meta(description="The conversation; a new one without it.")] = None
    idempotency_key: IdempotencyKey = None


def _expect_task(desk: Desk, caller: Caller, task_id: str) -> TaskRecord:
    """The task, if it is one of the caller's. Whether others have it is not told."""
    record = desk.engine.store.task(TaskId(task_id))
    agents = () if record is None else (record.requester_agent_id, record.accepted_by_agent_id, *record.to_agents)
    if record is None or caller.agent_id not in agents or caller.context not in (None, record.corr_id):
        raise Refusal(Code.NOT_FOUND, f"task {task_id!r:.40} is not one of {caller.agent_id}", field="taskId")
    return record


async def _list(desk: Desk, caller: Caller, args: ListArgs) -> Done:
    if args.task_id is not None:
        record = _expect_task(desk, caller, args.task_id)
        view = desk.tasks.show(record.task_id, agent_id=caller.agent_id)
        return Done(TaskList(tasks=[], notice=NOTICE, task=view), record.corr_id)
    # Within a context its tasks are looked for among the newest.
    limit = args.limit if caller.context is None else _MOST_LOOKED_AT
    found = desk.tasks.list(agent_id=caller.agent_id, role=args.role, open_only=args.only_open, limit=limit)
    own = [_digest(line) for line in found if caller.context in (None, line.task.corr_id)]
    return Done(TaskList(tasks=own[: args.limit], notice=NOTICE), caller.context)


def _digest(line: TaskLine) -> TaskDigest:
    task = line.task
    return TaskDigest(
        task_id=task.task_id,
        corr_id=task.corr_id,
        title=(line.title or "")[:_LONGEST_TITLE],
        state=task.state.value,
        from_agent_id=task.requester_agent_id,
        from_node_id=task.requester_node_id,
        created_at=format_ms(task.created_at_ms),
        accepted_by_agent_id=task.accepted_by_agent_id,
        progress=task.progress,
        eta_at=None if task.eta_at_ms is None else format_ms(task.eta_at_ms),
        deadline_at=None if task.deadline_at_ms is None else format_ms(task.deadline_at_ms),
        offer_ended=line.offer_ended,
    )


async def _delegate(desk: Desk, caller: Caller, args: DelegateArgs) -> Done:
    said, key = _said(args, caller)
    said["corr_id"] = caller.conversation(args.corr_id)
    offered = await desk.tasks.create(NewTask(requester_agent_id=caller.agent_id, **said), key=key)
    return Done(offered, offered.receipt.corr_id)


def _said(args: Struct, caller: Caller) -> tuple[dict[str, Any], str | None]:
    """What an operation says, and the idempotency key that it came with."""
    said = asdict(args)
    return said, said.pop("idempotency_key") or caller.idempotency_key


async def _claim(desk: Desk, caller: Caller, args: ClaimArgs) -> Done:
    record = _expect_task(desk, caller, args.task_id)
    said, key = _said(args, caller)
    return Done(await desk.tasks.claim(agent_id=caller.agent_id, key=key, **said), record.corr_id)


async def _update(desk: Desk, caller: Caller, args: UpdateArgs) -> Done:
    record = _expect_task(desk, caller, args.task_id)
    said, key = _said(args, caller)
    return Done(await desk.tasks.update(agent_id=caller.agent_id, key=key, **said), record.corr_id)


async def _complete(desk: Desk, caller: Caller, args: CompleteArgs) -> Done:
    record = _expect_task(desk, caller, args.task_id)
    said, key = _said(args, caller)
    return Done(await desk.tasks.complete(agent_id=caller.agent_id, key=key, **said), record.corr_id)


async def _fail(desk: Desk, caller: Caller, args: FailArgs) -> Done:
    record = _expect_task(desk, caller, args.task_id)
    said, key = _said(args, caller)
    return Done(await desk.tasks.fail(agent_id=caller.agent_id, key=key, **said), record.corr_id)


TASKS: Final[dict[str, Operation]] = {
    "ansible_list_tasks": Operation("List tasks", ListArgs, TaskList, _list, Effect.LOOKS),
    "ansible_delegate_task": Operation("Delegate a task", DelegateArgs, Offered, _delegate),
    "ansible_claim_task": Operation("Claim a task", ClaimArgs, Moved, _claim),
    "ansible_update_task": Operation("Report progress", UpdateArgs, Moved, _update),
    "ansible_complete_task": Operation("Complete a task", CompleteArgs, Moved, _complete),
    "ansible_fail_task": Operation("Fail a task", FailArgs, Moved, _fail),
}
