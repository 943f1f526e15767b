"""What makes a review item, when the gateways concerned do not agree on the time."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.protocol.envelope import TaskFailedEvent
from agentpost.protocol.ids import TaskId
from agentpost.work.offering import NewTask
from agentpost.work.reviews.reporter import Case
from agentpost.work.reviews.triggers import ReviewTriggers
from tests.work.meshing import Mesh


class Reporter:
    def __init__(self) -> None:
        self.cases: list[Case] = []

    async def report(self, case: Case) -> str:
        self.cases.append(case)
        return "rev_1"


async def a_failure(mesh: Mesh, *, at: str | None = None) -> TaskId:
    """A task that bob could not do; `at` is what his gateway says when that was."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    task = NewTask(requester_agent_id="ada", title="Build it", to_agents=("bob",), capability_id="cap.build")
    task_id = (await a.tasks.create(task)).task_id
    await mesh.rest()
    await b.tasks.claim(task_id, "bob", eta_seconds=60)
    mesh.clock.advance(1000)
    move = await b.engine.task_moves.fail(b.tasks.get(task_id), "bob", failure_class="broken", error_summary="It fell.")
    event = move.event
    assert isinstance(event, TaskFailedEvent)
    if at is not None:
        event = replace(event, payload=replace(event.payload, failed_at=at))
    await b.store.append((event,), deliveries=(move.delivery,))
    b.engine.wakeups.outbox_grew()
    await mesh.rest()
    return task_id


@pytest.mark.req("CAP-6")
async def test_a_worker_whose_clock_is_ahead_hides_no_later_failure(mesh: Mesh) -> None:
    """One says that it failed in a hundred years; what fails while the gateway is down is reported at its start."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    reporter: Any = Reporter()
    room: Any = mesh.room
    triggers = ReviewTriggers(store=a.store, room=room, moves=a.engine.task_moves, reporter=reporter, clock=mesh.clock)
    await triggers.tasks_moved([await a_failure(mesh, at="2126-01-01T00:00:00.000Z")])
    assert len(reporter.cases) == 1
    later = await a_failure(mesh)
    await triggers.catch_up()
    assert [case.corr_id for case in reporter.cases[1:]] == [a.tasks.get(later).corr_id]
    await triggers.catch_up()
    assert len(reporter.cases) == 2
