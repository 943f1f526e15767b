"""The life of a task (TASK-5): created → accepted → in_progress → completed | failed.

Knows nothing of storage. A task is what its events made of it: `advance_task` folds one event into the task, so that
every gateway that reads the same events sees the same task. A `task_complete` straight after the acceptance walks
through in_progress; a claim by somebody else, a move by a stranger or a move after the end is refused.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct, structs

from agentpost.protocol.envelope import (
    SignalEvent,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.machine import Table, walk
from agentpost.protocol.payloads import Kind

__all__ = ["SAID_OF_TASKS", "TASK", "TASK_EVENTS", "Task", "TaskEvent", "TaskState", "advance_task", "open_task"]


class TaskState(StrEnum):
    CREATED = "created"
    ACCEPTED = "accepted"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


_S = TaskState

TASK: Final = Table[TaskState, Kind](
    name="task",
    initial=_S.CREATED,
    terminal=frozenset({_S.COMPLETED, _S.FAILED}),
    arrows=frozenset(
        {
            (_S.CREATED, _S.ACCEPTED),
            (_S.ACCEPTED, _S.IN_PROGRESS),
            (_S.IN_PROGRESS, _S.COMPLETED),
            (_S.IN_PROGRESS, _S.FAILED),
        }
    ),
    signals={
        (_S.CREATED, Kind.TASK_ACCEPT): (_S.ACCEPTED,),
        (_S.ACCEPTED, Kind.TASK_UPDATE): (_S.IN_PROGRESS,),
        (_S.ACCEPTED, Kind.TASK_COMPLETE): (_S.IN_PROGRESS, _S.COMPLETED),
        (_S.ACCEPTED, Kind.TASK_FAILED): (_S.IN_PROGRESS, _S.FAILED),
        (_S.IN_PROGRESS, Kind.TASK_UPDATE): (),
        (_S.IN_PROGRESS, Kind.TASK_COMPLETE): (_S.COMPLETED,),
        (_S.IN_PROGRESS, Kind.TASK_FAILED): (_S.FAILED,),
    },
)

TaskEvent = TaskAcceptEvent | TaskUpdateEvent | TaskCompleteEvent | TaskFailedEvent

# The classes of all events that a task is made of.
TASK_EVENTS: Final[frozenset[type]] = frozenset(
    {TaskCreateEvent, TaskAcceptEvent, TaskUpdateEvent, TaskCompleteEvent, TaskFailedEvent}
)

# What a gateway says may concern a task: an event of one, or the signal that it is canceled.
SAID_OF_TASKS: Final[frozenset[type]] = TASK_EVENTS | {SignalEvent}


class Task(Struct, frozen=True, kw_only=True):
    """What the events of a task have made of it so far. `applied` tells a repeat from a second try."""

    task_id: TaskId
    state: TaskState = TaskState.CREATED
    requester_agent_id: str
    accepted_by_agent_id: str | None = None
    applied: frozenset[EventId] = frozenset()


def open_task(event: TaskCreateEvent) -> Task:
    """The task that a task_create starts."""
    return Task(
        task_id=event.payload.task_id,
        requester_agent_id=event.payload.requester_agent_id,
        applied=frozenset({event.event_id}),
    )


def advance_task(task: Task, event: TaskEvent) -> Task:
    """The task after `event`. The same event again changes nothing; a forbidden move is `invalid_transition`."""
    if event.payload.task_id != task.task_id:
        raise Refusal(Code.CONFLICT, f"event {event.event_id} belongs to another task", field="payload.taskId")
    if event.event_id in task.applied:
        return task
    path = walk(TASK, task.state, event.kind)
    mover = _mover(event)
    if task.accepted_by_agent_id is not None and mover != task.accepted_by_agent_id:
        raise Refusal(
            Code.INVALID_TRANSITION,
            f"task {task.task_id} was accepted by {task.accepted_by_agent_id}; {mover} cannot move it",
        )
    return structs.replace(
        task,
        state=path[-1] if path else task.state,
        accepted_by_agent_id=mover,
        applied=task.applied | {event.event_id},
    )


def _mover(event: TaskEvent) -> str:
    """The agent that moves the task: the one the event is from, which its payload must not contradict."""
    match event:
        case TaskAcceptEvent(payload=payload):
            named = payload.accepted_by_agent_id
        case TaskUpdateEvent(payload=payload):
            named = payload.updated_by_agent_id
        case TaskCompleteEvent(payload=payload):
            named = payload.completed_by_agent_id
        case TaskFailedEvent(payload=payload):
            named = payload.failed_by_agent_id
    if named is not None and named != event.source_agent_id:
        raise Refusal(Code.INVALID_TRANSITION, f"{event.source_agent_id} cannot move a task in the name of {named}")
    return event.source_agent_id
