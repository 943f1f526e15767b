"""Something is said of a task while a sweep is about to give it to somebody else."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agentpost.protocol.coordination import CoordinationState
from agentpost.protocol.envelope import Event, TaskCreateEvent
from agentpost.protocol.ids import TaskId
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import Appended
from agentpost.work.offering import NewTask
from tests.work.meshing import Mesh

BACKUPS = CoordinationState(coordinator="node-c", backups={"bob": "cid"})


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    made = Mesh()
    await made.add("node-a", "node-b", "node-c", tier=NodeTier.BACKBONE)
    yield made
    await made.close()


async def tasks_that_are_asked_about(mesh: Mesh, count: int, *, are_claimed: bool) -> list[TaskId]:
    """Bob is late with claiming them, or with doing them, and was asked; the next sweep gives them to cid."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await b.host("bob")
    await c.host("cid")
    task_ids: list[TaskId] = []
    for _ in range(count):
        offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=("bob",)))
        task_ids.append(offered.task_id)
        await mesh.rest()
        if are_claimed:
            await b.tasks.claim(offered.task_id, "bob", eta_seconds=60)
            await mesh.rest()
    mesh.clock.advance(301_000)
    assert (await a.office.sweeper.sweep(1, BACKUPS)).asked == count
    await mesh.rest()
    mesh.clock.advance(301_000)
    return task_ids


@pytest.mark.req("TASK-6", "TASK-8")
async def test_a_task_that_is_claimed_at_the_last_moment_goes_to_nobody_else(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent claims it in the moment before a sweep offers it to the backup: the agent keeps it."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    (task_id,) = await tasks_that_are_asked_about(mesh, 1, are_claimed=False)
    append = a.store.append

    async def claimed_first(events: Sequence[Event], **also: Any) -> Appended:
        if any(isinstance(each, TaskCreateEvent) for each in events):
            await b.tasks.claim(task_id, "bob", eta_seconds=60)
            await mesh.rest()
        return await append(events, **also)

    monkeypatch.setattr(a.store, "append", claimed_first)
    report = await a.office.sweeper.sweep(2, BACKUPS)
    await mesh.rest()
    assert report.reassigned == 0
    record = a.tasks.get(task_id)
    assert (record.round, record.accepted_by_agent_id) == (1, "bob")
    assert b.tasks.get(task_id).is_held_by("bob", "node-b")
    assert c.open_mail("cid") == []


@pytest.mark.req("TASK-8")
async def test_a_worker_who_says_how_it_goes_while_a_sweep_is_busy_keeps_the_task(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of its tasks are late. The one is given away; of the other it promises a new time before its turn comes."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    first, second = await tasks_that_are_asked_about(mesh, 2, are_claimed=True)
    append = a.store.append

    async def said_meanwhile(events: Sequence[Event], **also: Any) -> Appended:
        if any(isinstance(each, TaskCreateEvent) and each.payload.task_id == first for each in events):
            await b.tasks.update(second, "bob", progress=90, revised_eta_seconds=3600)
            await mesh.rest()
        return await append(events, **also)

    monkeypatch.setattr(a.store, "append", said_meanwhile)
    report = await a.office.sweeper.sweep(2, BACKUPS)
    await mesh.rest()
    assert report.reassigned == 1
    assert [a.tasks.get(each).round for each in (first, second)] == [2, 1]
    assert b.tasks.get(second).is_held_by("bob", "node-b")
    assert len(c.open_mail("cid")) == 1
