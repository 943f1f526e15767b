"""The states of A2A and ours, in one table. Pure: knows neither the SDK nor what a task is about."""

from enum import StrEnum
from typing import Final

from agentpost.protocol.tasks import TaskState

__all__ = ["ENDS", "FAILURES", "INTERRUPTIONS", "STATES", "STATUSES", "A2aState", "a2a_state"]


class A2aState(StrEnum):
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    REJECTED = "TASK_STATE_REJECTED"


# What each state of ours is, if nothing below says it better.
STATES: Final[dict[TaskState, A2aState]] = {
    TaskState.CREATED: A2aState.SUBMITTED,
    TaskState.ACCEPTED: A2aState.WORKING,
    TaskState.IN_PROGRESS: A2aState.WORKING,
    TaskState.COMPLETED: A2aState.COMPLETED,
    TaskState.FAILED: A2aState.FAILED,
}

# In progress: words for `task update --status` that A2A has a state for. Until the peer says something, that is.
STATUSES: Final[dict[str, A2aState]] = {
    "input_required": A2aState.INPUT_REQUIRED,
    "auth_required": A2aState.AUTH_REQUIRED,
}

# Failed: classes of failures that A2A has a state for.
FAILURES: Final[dict[str, A2aState]] = {
    "rejected": A2aState.REJECTED,
    "canceled": A2aState.CANCELED,
}

ENDS: Final = frozenset({A2aState.COMPLETED, A2aState.FAILED, A2aState.CANCELED, A2aState.REJECTED})
INTERRUPTIONS: Final = frozenset({A2aState.INPUT_REQUIRED, A2aState.AUTH_REQUIRED})


def a2a_state(
    state: TaskState, *, status: str | None = None, failure_class: str | None = None, is_canceled: bool = False
) -> A2aState:
    """The state that a peer is shown. `status` is the word of the last update, `failure_class` that of a failure."""
    if is_canceled:
        return A2aState.CANCELED
    if state is TaskState.IN_PROGRESS:
        return STATUSES.get(status or "", STATES[state])
    if state is TaskState.FAILED:
        return FAILURES.get(failure_class or "", STATES[state])
    return STATES[state]
