"""The life of a task."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpost.protocol.envelope import (
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
    check,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId, TaskId, UlidSource
from agentpost.protocol.payloads import Kind, TaskAccept, TaskComplete, TaskCreate, TaskFailed, TaskUpdate
from agentpost.protocol.tasks import TASK, Task, TaskEvent, TaskState, advance_task, open_task

pytestmark = pytest.mark.req("TASK-5")

AT = "2026-03-01T09:00:00.000Z"
TASK_ID = TaskId("tsk_01K2H7PZX97B4VT1R3K6PJSAEY")
OTHER_TASK_ID = TaskId("tsk_01K2H7PZX97B4VT1R3K6PJSAEZ")
S = TaskState

ids = UlidSource()

# created → accepted → in_progress → completed | failed, and what each kind of event makes of each state.
MOVES = {
    (S.CREATED, Kind.TASK_ACCEPT): S.ACCEPTED,
    (S.ACCEPTED, Kind.TASK_UPDATE): S.IN_PROGRESS,
    (S.ACCEPTED, Kind.TASK_COMPLETE): S.COMPLETED,
    (S.ACCEPTED, Kind.TASK_FAILED): S.FAILED,
    (S.IN_PROGRESS, Kind.TASK_UPDATE): S.IN_PROGRESS,
    (S.IN_PROGRESS, Kind.TASK_COMPLETE): S.COMPLETED,
    (S.IN_PROGRESS, Kind.TASK_FAILED): S.FAILED,
}
KINDS = [Kind.TASK_ACCEPT, Kind.TASK_UPDATE, Kind.TASK_COMPLETE, Kind.TASK_FAILED]


def event(kind: Kind, agent: str = "ann", *, task_id: TaskId = TASK_ID, named: str | None = "") -> Any:
    """A new event of `kind` by `agent`; its payload names the same agent unless told otherwise."""
    who: Any = agent if named == "" else named
    head: dict[str, Any] = {
        "event_id": ids.make(EventId, now_ms=1_772_000_000_000, entropy=bytes(10)),
        "corr_id": CorrId("corr_01K2H7Q0YA8C5WV2S4M7QKTBFZ"),
        "source_node_id": "mars",
        "source_agent_id": agent,
        "created_at": AT,
    }
    match kind:
        case Kind.TASK_CREATE:
            create = TaskCreate(task_id=task_id, requester_agent_id=agent, title="Check", description="All of it")
            made: Any = TaskCreateEvent(**head, payload=create)
        case Kind.TASK_ACCEPT:
            accept = TaskAccept(task_id=task_id, accepted_by_agent_id=who, eta_seconds=60)
            made = TaskAcceptEvent(**head, payload=accept)
        case Kind.TASK_UPDATE:
            made = TaskUpdateEvent(**head, payload=TaskUpdate(task_id=task_id, updated_by_agent_id=who))
        case Kind.TASK_COMPLETE:
            complete = TaskComplete(task_id=task_id, completed_by_agent_id=who, completed_at=AT, result_summary="Done")
            made = TaskCompleteEvent(**head, payload=complete)
        case _:
            failed = TaskFailed(
                task_id=task_id, failed_by_agent_id=who, failed_at=AT, failure_class="bug", error_summary="Broken"
            )
            made = TaskFailedEvent(**head, payload=failed)
    check(made)
    return made


def task(state: TaskState, by: str = "ann") -> Task:
    """A task that was brought to `state` by its events."""
    made = open_task(event(Kind.TASK_CREATE, "carl"))
    ways = {
        S.CREATED: [],
        S.ACCEPTED: [Kind.TASK_ACCEPT],
        S.IN_PROGRESS: [Kind.TASK_ACCEPT, Kind.TASK_UPDATE],
        S.COMPLETED: [Kind.TASK_ACCEPT, Kind.TASK_COMPLETE],
        S.FAILED: [Kind.TASK_ACCEPT, Kind.TASK_FAILED],
    }
    for kind in ways[state]:
        made = advance_task(made, event(kind, by))
    assert made.state is state
    return made


def refusal(before: Task, moved_by: TaskEvent) -> Refusal:
    with pytest.raises(Refusal) as caught:
        advance_task(before, moved_by)
    return caught.value


def test_the_arrows_are_those_of_the_rule():
    """A task is created, accepted, worked on, and then completed or failed; there is no other way."""
    assert TASK.arrows == {
        (S.CREATED, S.ACCEPTED),
        (S.ACCEPTED, S.IN_PROGRESS),
        (S.IN_PROGRESS, S.COMPLETED),
        (S.IN_PROGRESS, S.FAILED),
    }
    assert (TASK.initial, TASK.terminal, TASK.states) == (S.CREATED, {S.COMPLETED, S.FAILED}, set(TaskState))


def test_a_task_starts_as_its_requester_made_it():
    """A new task is created, belongs to its requester and is accepted by nobody."""
    create = event(Kind.TASK_CREATE, "carl")
    assert open_task(create) == Task(task_id=TASK_ID, requester_agent_id="carl", applied=frozenset({create.event_id}))


@pytest.mark.parametrize(("state", "kind"), [*product(TaskState, KINDS)])
def test_every_event_in_every_state(state: TaskState, kind: Kind):
    """In every state an event of the accepting agent moves the task as the rule says, or is a forbidden move."""
    before = task(state)
    moved_by = event(kind)
    if (state, kind) in MOVES:
        after = advance_task(before, moved_by)
        assert (after.state, after.accepted_by_agent_id) == (MOVES[state, kind], "ann")
        assert after.applied == before.applied | {moved_by.event_id}
    else:
        refused = refusal(before, moved_by)
        assert (refused.code, refused.status) == (Code.INVALID_TRANSITION, 409)


@pytest.mark.parametrize(("state", "kind"), MOVES)
def test_the_same_event_again_changes_nothing(state: TaskState, kind: Kind):
    """An event that is read twice moves the task once."""
    moved_by = event(kind)
    after = advance_task(task(state), moved_by)
    assert advance_task(after, moved_by) is after


def test_an_old_event_again_changes_nothing():
    """A repeat is known also when the task has moved on, or ended, in between."""
    accept = event(Kind.TASK_ACCEPT)
    ended = advance_task(advance_task(task(S.CREATED), accept), event(Kind.TASK_COMPLETE))
    assert advance_task(ended, accept) is ended


@pytest.mark.parametrize(("state", "kind"), [*product([S.ACCEPTED, S.IN_PROGRESS], KINDS)])
def test_only_the_accepting_agent_moves_a_task(state: TaskState, kind: Kind):
    """An agent that did not accept the task can neither move it nor take it over."""
    refused = refusal(task(state, by="ann"), event(kind, "bob"))
    assert (refused.code, refused.status) == (Code.INVALID_TRANSITION, 409)


@pytest.mark.parametrize(("state", "kind"), MOVES)
def test_nobody_moves_a_task_in_the_name_of_another(state: TaskState, kind: Kind):
    """An event whose payload names another agent than the one it is from is refused, for both of them."""
    for agent, named in (("ann", "bob"), ("bob", "ann")):
        refused = refusal(task(state, by="ann"), event(kind, agent, named=named))
        assert (refused.code, refused.status) == (Code.INVALID_TRANSITION, 409)


def test_an_update_need_not_name_its_agent():
    """An update says by its sender whose it is."""
    assert advance_task(task(S.ACCEPTED), event(Kind.TASK_UPDATE, named=None)).state is S.IN_PROGRESS


@pytest.mark.parametrize(("state", "kind"), [*product(TaskState, KINDS)])
def test_an_event_of_another_task_is_a_conflict(state: TaskState, kind: Kind):
    """An event that belongs to another task is refused, whatever the state, and the refusal names the field."""
    refused = refusal(task(state), event(kind, task_id=OTHER_TASK_ID))
    assert (refused.code, refused.status, refused.field) == (Code.CONFLICT, 409, "payload.taskId")


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(["ann", "bob"])), max_size=20))
def test_the_first_to_accept_keeps_the_task(moves: list[tuple[Kind, str]]):
    """However events come, a task has one accepting agent for good, and an ended task stays as it ended."""
    now = task(S.CREATED)
    for kind, agent in moves:
        before = now
        try:
            now = advance_task(before, event(kind, agent))
        except Refusal:
            continue
        assert before.state not in TASK.terminal
        assert before.accepted_by_agent_id in (None, agent)
        assert now.accepted_by_agent_id == agent
        assert now.state is MOVES[before.state, kind]
