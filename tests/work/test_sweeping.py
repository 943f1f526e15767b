"""What to do about a task that is late, without a gateway: every step, and who may have the task instead."""

from typing import Any

import pytest

from agentpost.protocol.ids import CorrId, EventId, TaskId
from agentpost.protocol.payloads import Priority
from agentpost.protocol.snapshot import AgentRecord, AgentStatus, CapabilityIndex, RoomSnapshot
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.tasks import TaskState
from agentpost.work.settings import WorkSettings
from agentpost.work.sweeping import Finding, Problem, Step, backups_for, next_step

pytestmark = pytest.mark.req("TASK-8")

NOW_MS = 1_772_000_000_000
SETTINGS = WorkSettings()
PATIENCE_MS = SETTINGS.reassign_after_seconds * 1000


def a_record(*to_agents: str, by: str | None = None, **more: Any) -> TaskRecord:
    fields: dict[str, Any] = {
        "task_id": TaskId("tsk_01JV3Q9A1V7M4R3N8E2W0D6Y5U"),
        "corr_id": CorrId("corr_01JV3Q9A1V7M4R3N8E2W0D6Y5U"),
        "round": 1,
        "state": TaskState.CREATED if by is None else TaskState.ACCEPTED,
        "requester_agent_id": "ada",
        "requester_node_id": "node-a",
        "create_event_id": EventId("evt_01JV3Q9A1V7M4R3N8E2W0D6Y5U"),
        "to_agents": to_agents,
        "priority": Priority.NORMAL,
        "response_required": True,
        "created_at_ms": NOW_MS,
        "offered_at_ms": NOW_MS,
        "accepted_by_agent_id": by,
        "accepted_by_node_id": None if by is None else f"node-of-{by}",
        "updated_at_ms": NOW_MS,
    }
    return TaskRecord(**fields | more)


def a_room(*agents: str, away: tuple[str, ...] = (), **capabilities: tuple[str, ...]) -> RoomSnapshot:
    return RoomSnapshot(
        routing_policy_version="rpv_1",
        capability_policy_version="cpv_1",
        agents={
            each: AgentRecord(
                owner_node_id=f"node-of-{each}", status=AgentStatus.INACTIVE if each in away else AgentStatus.ACTIVE
            )
            for each in (*agents, *away)
        },
        index={name: CapabilityIndex(eligible_agent_ids=able) for name, able in capabilities.items()},
    )


# By hand: round 1 and 2, asked or not, with another agent who could do it or without.
STEPS = {
    # problem: (not asked, asked just now, asked long ago) for (round 1 with a backup), (without one, or round 2)
    Problem.MISSED_CLAIM: (("ask", "wait", "reassign"), ("ask", "wait", "escalate")),
    Problem.MISSED_ETA: (("ask", "wait", "reassign"), ("ask", "wait", "escalate")),
    Problem.MISSED_DEADLINE: (("ask", "wait", "reassign"), ("ask", "wait", "escalate")),
    Problem.STALE: (("ask", "wait", "reassign"), ("ask", "wait", "escalate")),
    Problem.WORKER_GONE: (("reassign", "wait", "reassign"), ("ask", "wait", "escalate")),
    Problem.OFFER_ENDED: (("reassign", "reassign", "reassign"), ("escalate", "escalate", "escalate")),
    Problem.MISSED_CADENCE: (("ask", "wait", "wait"), ("ask", "wait", "wait")),
}


@pytest.mark.parametrize("problem", Problem)
@pytest.mark.parametrize(("round_", "has_backup"), [(1, True), (1, False), (2, True), (2, False), (3, True)])
def test_what_is_done_about_each_problem(problem: Problem, round_: int, has_backup: bool) -> None:
    """Ask once, give the task away once, then call a person; a missed cadence is only asked about."""
    expected = STEPS[problem][0 if (round_, has_backup) == (1, True) else 1]
    finding = Finding(record=a_record("bob", by="bob", round=round_), problem=problem, since_ms=NOW_MS)
    asked = (None, NOW_MS - PATIENCE_MS + 1, NOW_MS - PATIENCE_MS)
    steps = [
        next_step(finding, asked_at_ms=at_ms, has_backup=has_backup, now_ms=NOW_MS, settings=SETTINGS)
        for at_ms in asked
    ]
    assert steps == [Step(each) for each in expected]


@pytest.mark.parametrize(
    ("record", "named", "backups"),
    [
        (a_record("bob"), {"bob": "cid"}, ["cid"]),
        (a_record("bob", "dan", by="dan"), {"bob": "cid", "dan": "eve"}, ["eve"]),
        (a_record("bob", "dan", by="dan"), {"bob": "cid"}, ["bob"]),
        (a_record("bob", "dan"), {"bob": "dan"}, []),
        (a_record("bob", "dan"), {"bob": "gone"}, []),
        (a_record("bob", "dan"), {"bob": "nobody"}, []),
        (a_record("bob", "gone", by="bob"), {}, []),
        (a_record("bob", required_capabilities=("cook",)), {}, ["cid", "dan"]),
        (a_record("bob", required_capabilities=("cook", "clean")), {}, ["cid"]),
        (a_record("bob", required_capabilities=("clean", "cook")), {}, ["cid"]),
        (a_record("bob", required_capabilities=("cook", "fly")), {}, []),
        (a_record("bob", by="bob", required_capabilities=("cook",)), {"bob": "gone"}, ["cid", "dan"]),
    ],
)
def test_who_may_have_a_task_instead(record: TaskRecord, named: dict[str, str], backups: list[str]) -> None:
    """The backup of the agent that has it, if it is active; else others that have all of its capabilities."""
    room = a_room("bob", "cid", "dan", "eve", away=("gone",), cook=("bob", "cid", "dan", "gone"), clean=("cid", "eve"))
    assert list(backups_for(record, room, named)) == backups
