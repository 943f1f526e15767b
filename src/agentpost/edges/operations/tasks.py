"""Tasks as one agent sees them: those that it asked for, was offered, or does. Others are not found."""

from typing import Any, Final

from msgspec import Struct, to_builtins

from agentpost.edges.operations.calling import Caller, Desk, Done, Operation
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import TaskId
from agentpost.protocol.payloads import Priority
from agentpost.protocol.taskbook import TaskRecord
from agentpost.work.offering import NewTask
from agentpost.work.tasks import Moved, TaskLine

__all__ = ["TASKS", "expect_task", "tasks_of"]

_MOST_TASKS: Final = 50


class DelegateArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A task for agents by name, or for whoever has the capabilities. The first that claims it has it."""

    title: str
    description: str = ""
    to_agents: tuple[str, ...] = ()
    required_capabilities: tuple[str, ...] = ()
    input: Any = None
    priority: Priority = Priority.NORMAL
    response_required: bool = True
    deadline_at: str | None = None
    task_type: str | None = None
    capability_id: str | None = None
    corr_id: str | None = None


class ClaimArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Accept a task, and say when it will be done: one of `eta_seconds` and `eta_at`."""

    task_id: str
    eta_seconds: int | None = None
    eta_at: str | None = None
    plan_summary: str | None = None


class UpdateArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How it goes. `revised_eta_seconds` counts from now."""

    task_id: str
    status: str = "in_progress"
    progress: int | None = None
    revised_eta_at: str | None = None
    revised_eta_seconds: int | None = None
    note: str | None = None
    notify: bool = False


class CompleteArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How it ended. `installed_version` and `installed_at` are for tasks that distribute a skill."""

    task_id: str
    result_summary: str
    output: Any = None
    result_ref: str | None = None
    installed_version: str | None = None
    installed_at: str | None = None


class FailArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Why it ended: a word that programs sort by, and a sentence for people."""

    task_id: str
    error_summary: str
    failure_class: str = "failed"


def tasks_of(desk: Desk, caller: Caller) -> list[TaskLine]:
    """The open tasks of the caller, the newest first."""
    found = desk.tasks.list(agent_id=caller.agent_id, open_only=True, limit=_MOST_TASKS)
    return [line for line in found if caller.context in (None, line.task.corr_id)]


def expect_task(desk: Desk, caller: Caller, task_id: str) -> TaskRecord:
    """The task, if it is one of the caller's. Whether others have it is not told."""
    record = desk.engine.store.task(TaskId(task_id))
    agents = () if record is None else (record.requester_agent_id, record.accepted_by_agent_id, *record.to_agents)
    if record is None or caller.agent_id not in agents or caller.context not in (None, record.corr_id):
        raise Refusal(Code.NOT_FOUND, f"task {task_id!r:.40} is not one of {caller.agent_id}", field="taskId")
    return record


async def _delegate(desk: Desk, caller: Caller, args: DelegateArgs) -> Done:
    offered = await desk.tasks.create(
        NewTask(
            requester_agent_id=caller.agent_id,
            title=args.title,
            description=args.description,
            to_agents=args.to_agents,
            required_capabilities=args.required_capabilities,
            input=args.input,
            priority=args.priority,
            response_required=args.response_required,
            deadline_at=args.deadline_at,
            task_type=args.task_type,
            capability_id=args.capability_id,
            corr_id=caller.conversation(args.corr_id),
        )
    )
    return Done(to_builtins(offered), offered.receipt.corr_id)


async def _claim(desk: Desk, caller: Caller, args: ClaimArgs) -> Done:
    record = expect_task(desk, caller, args.task_id)
    return _moved(
        record,
        await desk.tasks.claim(
            record.task_id,
            caller.agent_id,
            eta_seconds=args.eta_seconds,
            eta_at=args.eta_at,
            plan_summary=args.plan_summary,
        ),
    )


async def _update(desk: Desk, caller: Caller, args: UpdateArgs) -> Done:
    record = expect_task(desk, caller, args.task_id)
    return _moved(
        record,
        await desk.tasks.update(
            record.task_id,
            caller.agent_id,
            status=args.status,
            progress=args.progress,
            revised_eta_at=args.revised_eta_at,
            revised_eta_seconds=args.revised_eta_seconds,
            note=args.note,
            notify=args.notify,
        ),
    )


async def _complete(desk: Desk, caller: Caller, args: CompleteArgs) -> Done:
    record = expect_task(desk, caller, args.task_id)
    return _moved(
        record,
        await desk.tasks.complete(
            record.task_id,
            caller.agent_id,
            result_summary=args.result_summary,
            output=args.output,
            result_ref=args.result_ref,
            installed_version=args.installed_version,
            installed_at=args.installed_at,
        ),
    )


async def _fail(desk: Desk, caller: Caller, args: FailArgs) -> Done:
    record = expect_task(desk, caller, args.task_id)
    moved = await desk.tasks.fail(
        record.task_id, caller.agent_id, failure_class=args.failure_class, error_summary=args.error_summary
    )
    return _moved(record, moved)


def _moved(record: TaskRecord, moved: Moved) -> Done:
    return Done(to_builtins(moved), record.corr_id)


TASKS: Final[dict[str, Operation]] = {
    "ansible_delegate_task": Operation(DelegateArgs, _delegate),
    "ansible_claim_task": Operation(ClaimArgs, _claim),
    "ansible_update_task": Operation(UpdateArgs, _update),
    "ansible_complete_task": Operation(CompleteArgs, _complete),
    "ansible_fail_task": Operation(FailArgs, _fail),
}
