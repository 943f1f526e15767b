"""How things stand for one agent: its gateway, what waits, what became of a message, its tasks."""

from typing import Any, Final

from msgspec import Struct, to_builtins

from agentpost import __version__
from agentpost.auth.external.scopes import STATUS_READ, TASK_READ
from agentpost.edges.operations.calling import Caller, Desk, Done, Operation
from agentpost.edges.operations.tasks import expect_task, tasks_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.timestamps import format_ms

__all__ = ["STATUS"]


class StatusArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """With `event_id`, what became of a message that the agent sent; with `task_id`, a whole task of the agent."""

    event_id: str | None = None
    task_id: str | None = None


async def _status(desk: Desk, caller: Caller, args: StatusArgs) -> Done:
    if args.task_id is not None:
        _expect_scope(caller, TASK_READ)
        record = expect_task(desk, caller, args.task_id)
        return Done({"task": to_builtins(desk.tasks.show(record.task_id))}, record.corr_id)
    if args.event_id is not None:
        _expect_scope(caller, STATUS_READ)
        return _message(desk, caller, args.event_id)
    result: dict[str, Any] = {"agentId": caller.agent_id, "at": format_ms(desk.engine.clock.now_ms())}
    if STATUS_READ in caller.scopes:
        store = desk.engine.store
        result |= {"nodeId": store.node_id, "version": __version__, "waiting": store.backlog_size(caller.agent_id)}
    if TASK_READ in caller.scopes:
        result |= {"tasks": to_builtins(tasks_of(desk, caller))}
    return Done(result)


def _message(desk: Desk, caller: Caller, event_id: str) -> Done:
    found = [
        each
        for each in desk.engine.store.deliveries_of(EventId(event_id))
        if each.from_agent_id == caller.agent_id and caller.context in (None, each.corr_id)
    ]
    if not found:
        raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} was not sent by {caller.agent_id}", field="eventId")
    deliveries = [
        {"toAgentId": each.to_agent_id, "state": each.state.value, "attempts": each.attempts, "reason": each.reason}
        for each in found
    ]
    return Done({"eventId": event_id, "deliveries": deliveries}, found[0].corr_id)


def _expect_scope(caller: Caller, scope: str) -> None:
    if scope not in caller.scopes:
        raise Refusal(Code.SCOPE_DENIED, f"this needs the scope {scope}", field="args")


STATUS: Final[dict[str, Operation]] = {"ansible_status": Operation(StatusArgs, _status)}
