"""Tasks between gateways: asked for, claimed, worked on, ended."""

from collections.abc import Coroutine
from typing import Any

import pytest

from agentpost.delivery.ports import Content, Engagement
from agentpost.protocol.envelope import (
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
    resend_of,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind, Priority
from agentpost.protocol.taskbook import Verdict
from agentpost.protocol.tasks import TaskState
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import Settlement
from agentpost.work.offering import NewTask
from agentpost.work.tasks import Role
from tests.work.meshing import Mesh


async def silent(_: Engagement) -> None:
    return None


def a_task(*to: str, title: str = "Build it", **more: Any) -> NewTask:
    return NewTask(requester_agent_id="ada", title=title, description="All of it.", to_agents=to, **more)


@pytest.mark.req("TASK-1", "TASK-2", "TASK-3", "TASK-4", "TASK-5", "TASK-7")
async def test_a_task_from_the_wish_to_the_end(mesh: Mesh) -> None:
    """An agent asks, another one accepts with an ETA, reports progress and completes; both see the same task."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    deadline = format_ms(mesh.clock.now_ms() + 3_600_000)
    offered = await a.tasks.create(a_task("bob", deadline_at=deadline, priority=Priority.HIGH, input={"ref": "v2"}))
    await mesh.rest()
    (create,) = [event for event in b.inbox("bob") if isinstance(event, TaskCreateEvent)]
    assert create.payload.requester_agent_id == "ada"
    assert (create.payload.title, create.payload.description) == (None, None), "content is sealed"

    claimed = await b.tasks.claim(offered.task_id, "bob", eta_seconds=600, plan_summary="With care.")
    assert claimed.verdict is Verdict.WON, "there is nobody else who could have it"
    await mesh.rest()
    assert a.tasks.get(offered.task_id).state is TaskState.ACCEPTED
    assert a.tasks.get(offered.task_id).eta_at_ms == mesh.clock.now_ms() + 600_000

    await b.tasks.update(offered.task_id, "bob", progress=60, note="Links are next.", revised_eta_seconds=1200)
    await mesh.rest()
    record = a.tasks.get(offered.task_id)
    assert (record.state, record.progress) == (TaskState.IN_PROGRESS, 60)
    assert record.eta_at_ms == mesh.clock.now_ms() + 1_200_000
    assert a.open_mail("ada") == [], "nobody asked to be told of it"

    await b.tasks.complete(offered.task_id, "bob", result_summary="Built.", output={"files": 3})
    await mesh.rest()
    assert a.tasks.get(offered.task_id).state is TaskState.COMPLETED
    (told,) = a.open_mail("ada")
    assert isinstance(told, TaskCompleteEvent)
    assert a.engine.sealer.open(told).output == {"files": 3}
    assert [step.kind for step in a.tasks.show(offered.task_id).steps] == [
        Kind.TASK_CREATE,
        Kind.TASK_ACCEPT,
        Kind.TASK_UPDATE,
        Kind.TASK_COMPLETE,
    ]
    states = [each.state for event in b.outbox() for each in b.store.deliveries_of(event.event_id)]
    assert DeliveryState.DEAD_LETTER not in states


@pytest.mark.req("TASK-3", "TASK-7")
async def test_an_update_reaches_the_requester_if_it_is_to_be_told(mesh: Mesh) -> None:
    """An update with notify is mail for the requester; one without stands in the task and wakes nobody."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada", silent)
    await b.host("bob")
    offered = await a.tasks.create(a_task("bob"))
    await mesh.rest()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=600)
    await b.tasks.update(offered.task_id, "bob", progress=10)
    await b.tasks.update(offered.task_id, "bob", progress=20, note="half way to half way", notify=True)
    await mesh.rest()
    (told,) = a.engaged
    assert told.kind is Kind.TASK_UPDATE
    assert told.task is not None
    assert (told.task.progress, told.content.note) == (20, "half way to half way")


@pytest.mark.req("TASK-5")
async def test_a_forbidden_move_is_refused_and_changes_nothing(mesh: Mesh) -> None:
    """Completing before accepting, moving another's task, and moving one that is over are 409 invalid_transition."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    await b.host("bea")
    offered = await a.tasks.create(a_task("bob"))
    await mesh.rest()

    async def refused(move: Coroutine[Any, Any, object]) -> None:
        before = b.store.head()
        with pytest.raises(Refusal) as caught:
            await move
        assert caught.value.code is Code.INVALID_TRANSITION
        assert caught.value.status == 409
        assert b.store.head() == before

    await refused(b.tasks.complete(offered.task_id, "bob", result_summary="done"))
    await refused(b.tasks.claim(offered.task_id, "bea", eta_seconds=60))
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=60)
    await refused(b.tasks.claim(offered.task_id, "bob", eta_seconds=60))
    await refused(b.tasks.update(offered.task_id, "bea", progress=1))
    await b.tasks.fail(offered.task_id, "bob", failure_class="dependency_missing", error_summary="No changelog.")
    await refused(b.tasks.complete(offered.task_id, "bob", result_summary="done"))
    await mesh.rest()
    assert a.tasks.get(offered.task_id).failure_class == "dependency_missing"
    (told,) = a.open_mail("ada")
    assert isinstance(told, TaskFailedEvent)


async def test_bad_input_is_refused_with_the_name_of_the_field(mesh: Mesh) -> None:
    """What makes no sense is a refusal that says which field, and nothing is written."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    past = format_ms(mesh.clock.now_ms() - 1)
    for task, field in (
        (a_task("bob", title="  "), "title"),
        (a_task("bob", deadline_at=past), "deadlineAt"),
        (a_task("bob", deadline_at="tomorrow"), "deadlineAt"),
        (a_task(), "toAgents"),
        (a_task("nobody"), "toAgents"),
    ):
        with pytest.raises(Refusal) as caught:
            await a.tasks.create(task)
        assert caught.value.field == field
    offered = await a.tasks.create(a_task("bob"))
    await mesh.rest()
    wrong: list[dict[str, Any]] = [{}, {"eta_seconds": 0}, {"eta_at": past}, {"eta_seconds": 5, "eta_at": past}]
    for eta in wrong:
        with pytest.raises(Refusal) as caught:
            await b.tasks.claim(offered.task_id, "bob", **eta)
        assert caught.value.code is Code.INVALID_FIELD
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=60)
    with pytest.raises(Refusal) as caught:
        await b.tasks.update(offered.task_id, "bob", progress=101)
    assert caught.value.field == "progress"
    with pytest.raises(Refusal) as caught:
        b.tasks.show("tsk_nothing")
    assert caught.value.code is Code.NOT_FOUND


@pytest.mark.req("TASK-6", "ROUTE-5")
async def test_the_first_claim_that_is_read_wins(mesh: Mesh) -> None:
    """Two agents on two gateways claim at the same instant: one has it, the other is told, a third is not asked."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await a.host("abe")
    await b.host("bob")
    await c.host("cid")
    mesh.room.add_capability("cap.build", "bob", "cid", "abe")
    offered = await a.tasks.create(
        NewTask(requester_agent_id="ada", title="Build", required_capabilities=("cap.build",))
    )
    await mesh.rest()
    assert (await b.tasks.claim(offered.task_id, "bob", eta_seconds=60)).verdict is Verdict.PENDING
    assert (await c.tasks.claim(offered.task_id, "cid", eta_seconds=60)).verdict is Verdict.PENDING
    with pytest.raises(Refusal) as caught:
        await b.tasks.complete(offered.task_id, "bob", result_summary="too early")
    assert caught.value.code is Code.INVALID_TRANSITION
    await mesh.rest()

    record = a.tasks.get(offered.task_id)
    verdicts = {claim.agent_id: claim.verdict for claim in record.claims}
    assert sorted(verdicts.values()) == [Verdict.LOST, Verdict.WON]
    winner, loser = (b, c) if verdicts["bob"] is Verdict.WON else (c, b)
    assert winner.tasks.get(offered.task_id).accepted_by_agent_id == record.accepted_by_agent_id
    assert not loser.tasks.get(offered.task_id).is_open
    for node, agent in ((a, "abe"), (b, "bob"), (c, "cid")):
        assert node.open_mail(agent) == [], "the offer is closed everywhere"
    with pytest.raises(Refusal):
        await loser.tasks.claim(offered.task_id, "cid" if loser is c else "bob", eta_seconds=60)


@pytest.mark.req("TASK-2", "TASK-6")
async def test_a_runtime_is_engaged_after_its_claim_was_won(mesh: Mesh) -> None:
    """Of two agents that are engaged by runtimes one gets the task, after its acceptance; what it answers ends it."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))

    async def work(engagement: Engagement) -> Content:
        return Content(result_summary=f"{engagement.to_agent_id} did it", output={"ok": True})

    await a.host("ada")
    await b.host("bob", work)
    await c.host("cid", work)
    offered = await a.tasks.create(a_task("bob", "cid"))
    await mesh.rest()
    engaged = [each.to_agent_id for node in (b, c) for each in node.engaged]
    record = a.tasks.get(offered.task_id)
    assert engaged == [record.accepted_by_agent_id]
    assert record.state is TaskState.COMPLETED
    (told,) = a.open_mail("ada")
    assert a.engine.sealer.open(told).result_summary == f"{engaged[0]} did it"
    worker = b if engaged == ["bob"] else c
    kinds = [type(event) for event in worker.outbox() if isinstance(event, TaskAcceptEvent | TaskCompleteEvent)]
    assert kinds == [TaskAcceptEvent, TaskCompleteEvent]
    assert b.open_mail("bob") == []
    assert c.open_mail("cid") == []


@pytest.mark.req("TASK-7", "RTY-4")
async def test_a_runtime_that_fails_fails_its_task(mesh: Mesh) -> None:
    """An agent whose attempts are used up has failed its task, and the requester hears why."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]

    async def break_down(_: Engagement) -> str:
        raise RuntimeError("no compiler")

    await a.host("ada")
    await b.host("bob", break_down)
    offered = await a.tasks.create(a_task("bob"))
    for _ in range(20):
        await mesh.rest()
        mesh.clock.advance(600_000)
        b.engine.wakeups.inbox_grew("bob")
    record = a.tasks.get(offered.task_id)
    assert (record.state, record.failure_class) == (TaskState.FAILED, "max_attempts")
    (told,) = a.open_mail("ada")
    assert "no compiler" in (a.engine.sealer.open(told).error_summary or "")


@pytest.mark.req("TASK-7", "RTY-4")
async def test_a_failure_that_comes_too_late_for_its_task_is_an_outcome_all_the_same(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was ended while its failure was written stays as it ended; the mail that offered it is closed."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]

    async def break_down(_: Engagement) -> str:
        raise RuntimeError("no compiler")

    await a.host("ada")
    await b.host("bob", break_down)
    settle = b.store.settle

    async def settle_after_the_end(settlement: Settlement) -> bool:
        if any(isinstance(event, TaskFailedEvent) for event in settlement.events):
            monkeypatch.setattr(b.store, "settle", settle)
            record = b.tasks.get(offered.task_id)
            move = await b.engine.task_moves.complete(record, "bob", result_summary="Done by hand.", output=None)
            await b.store.append((move.event,), deliveries=(move.delivery,))
        return await settle(settlement)

    monkeypatch.setattr(b.store, "settle", settle_after_the_end)
    offered = await a.tasks.create(a_task("bob"))
    for _ in range(20):
        await mesh.rest()
        mesh.clock.advance(600_000)
        b.engine.wakeups.inbox_grew("bob")
    assert a.tasks.get(offered.task_id).state is TaskState.COMPLETED
    assert b.open_mail("bob") == []
    assert {incident.kind for incident in b.store.incidents()} == {"reply_refused", "agent_failing"}


async def test_a_runtime_that_says_nothing_keeps_its_task(mesh: Mesh) -> None:
    """An agent that answers a task with nothing has it, and ends it later with a word of its own."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob", silent)
    offered = await a.tasks.create(a_task("bob"))
    await mesh.rest()
    assert a.tasks.get(offered.task_id).state is TaskState.ACCEPTED
    assert b.open_mail("bob") == []
    await b.tasks.complete(offered.task_id, "bob", result_summary="Took a while.")
    await mesh.rest()
    assert a.tasks.get(offered.task_id).state is TaskState.COMPLETED


async def test_work_for_each_of_several_agents_is_a_task_for_each(mesh: Mesh) -> None:
    """A task that all targets have to do becomes one task for each of them, in one conversation."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await b.host("bob")
    await c.host("cid")
    offered = await a.tasks.create_each(a_task("bob", "cid"))
    await mesh.rest()
    assert len({each.task_id for each in offered}) == 2
    assert len({each.receipt.corr_id for each in offered}) == 1
    for node, agent in ((b, "bob"), (c, "cid")):
        (line,) = node.tasks.list(agent_id=agent, role=Role.WORKER, open_only=True)
        assert line.title == "Build it"
        assert (await node.tasks.claim(line.task.task_id, agent, eta_seconds=60)).verdict is Verdict.WON
        await node.tasks.complete(line.task.task_id, agent, result_summary="done")
    await mesh.rest()
    assert [line.task.state for line in a.tasks.list()] == [TaskState.COMPLETED] * 2


@pytest.mark.req("TASK-6", "TASK-5")
async def test_a_task_that_is_offered_again_has_one_worker(mesh: Mesh) -> None:
    """The claimant's gateway is gone, the task goes to another agent; what the first one says later counts no more."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await b.host("bob")
    await c.host("cid")
    offered = await a.tasks.create(a_task("bob"))
    await mesh.rest()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=60)
    await mesh.rest()
    mesh.cut("node-b")
    await a.tasks.offering.offer_again(a.tasks.get(offered.task_id), ["cid"])
    await mesh.rest()
    await b.tasks.complete(offered.task_id, "bob", result_summary="I was away")
    await c.tasks.claim(offered.task_id, "cid", eta_seconds=60)
    mesh.mend("node-b")
    await mesh.rest()
    record = a.tasks.get(offered.task_id)
    assert (record.round, record.state, record.accepted_by_agent_id) == (2, TaskState.ACCEPTED, "cid")
    assert a.open_mail("ada") == []
    assert c.tasks.show(offered.task_id).steps[0].content.title == "Build it"
    await c.tasks.complete(offered.task_id, "cid", result_summary="Mine.")
    await mesh.rest()
    assert a.tasks.get(offered.task_id).state is TaskState.COMPLETED
    assert len(a.open_mail("ada")) == 1


@pytest.mark.req("TASK-5", "PIPE-7")
async def test_the_tasks_can_be_made_anew_from_their_events(mesh: Mesh) -> None:
    """Rebuilding gives the same tasks, byte for byte, on every gateway; a kept one that was altered is found."""
    a, b, c = (mesh.nodes[each] for each in ("node-a", "node-b", "node-c"))
    await a.host("ada")
    await a.host("abe")
    await b.host("bob")
    await c.host("cid")
    for to in (("bob",), ("bob", "cid"), ("abe", "bob", "cid"), ("abe",)):
        offered = await a.tasks.create(a_task(*to))
        await mesh.rest()
        for node, agent in ((c, "cid"), (a, "abe"), (b, "bob")):
            if agent in to:
                await node.tasks.claim(offered.task_id, agent, eta_seconds=60)
        await mesh.rest()
        worker = a.tasks.get(offered.task_id).accepted_by_agent_id or ""
        node = {"abe": a, "bob": b, "cid": c}[worker]
        await node.tasks.update(offered.task_id, worker, progress=50)
        if len(to) != 3:
            await node.tasks.complete(offered.task_id, worker, result_summary="done")
        await mesh.rest()
    for node in (a, b, c):
        before = node.store.tasks()
        rebuilt = await node.tasks.rebuild()
        assert rebuilt.differing == ()
        assert rebuilt.tasks == len(before)
        assert node.store.tasks() == before
        assert (await node.tasks.rebuild(check_only=True)).differing == ()


@pytest.mark.req("TASK-5", "RTY-3")
async def test_the_same_event_again_changes_nothing(mesh: Mesh) -> None:
    """A completion that is sent again is one completion: the task and the requester's inbox stay as they are."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    offered = await a.tasks.create(a_task("bob"))
    await mesh.rest()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=60)
    await b.tasks.update(offered.task_id, "bob", progress=5)
    # All of it is sent again.
    await b.store.append([resend_of(event) for event in b.outbox()])
    b.engine.wakeups.outbox_grew()
    assert len([event for event in b.outbox() if isinstance(event, TaskUpdateEvent)]) == 2
    await mesh.rest()
    record = a.tasks.get(offered.task_id)
    assert (record.state, record.progress, len(record.claims)) == (TaskState.IN_PROGRESS, 5, 1)
    assert (await a.tasks.rebuild(check_only=True)).differing == ()
    assert (await b.tasks.rebuild(check_only=True)).differing == ()


@pytest.mark.req("TASK-7", "TASK-4")
@pytest.mark.parametrize("failure_class", ["too_deep", "too_large"])
async def test_an_answer_that_cannot_be_told_fails_the_task(mesh: Mesh, failure_class: str) -> None:
    """The agent has had its turn, and its result cannot travel: its requester hears that, and waits no longer."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    output: Any = "x"
    if failure_class == "too_deep":
        for _ in range(100):
            output = [output]
    else:
        output = "x" * (65 * 1024 * 1024)

    async def answer(_: Engagement) -> Content:
        return Content(result_summary="Done.", output=output)

    await b.host("bob", answer)
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build it", to_agents=("bob",)))
    await mesh.rest()
    record = a.tasks.get(offered.task_id)
    assert (record.state, record.failure_class) == (TaskState.FAILED, failure_class)
    (told,) = a.open_mail("ada")
    assert isinstance(told, TaskFailedEvent)
    assert a.engine.sealer.open(told).error_summary
