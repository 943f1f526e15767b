"""An offer that reaches nobody: what the requester sees of it, and how the task comes to life again."""

import pytest

from agentpost.delivery.deadletters import Filter
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.payloads import AckType
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.tasks import TaskState
from agentpost.store.values import Outcome, Settlement
from agentpost.work.offering import NewTask
from agentpost.work.sweep import TASK_LATE, TASK_STUCK
from tests.work.meshing import Mesh, Node


async def an_offer(mesh: Mesh, *to_agents: str) -> TaskRecord:
    """A task of ada at node-a, for agents of node-b and node-c."""
    homes = {"bob": "node-b", "cid": "node-c"}
    a = mesh.nodes["node-a"]
    await a.host("ada")
    for agent_id in to_agents:
        await mesh.nodes[homes[agent_id]].host(agent_id)
    mesh.cut("node-b")
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build it", to_agents=to_agents))
    await mesh.rest()
    return a.tasks.get(offered.task_id)


async def lose(mesh: Mesh, record: TaskRecord) -> None:
    """The gateway of bob is out of the mesh for good before it has read the offer."""
    a = mesh.nodes["node-a"]
    mesh.room.revoke("node-b")
    mesh.clock.advance(60_000)
    while await a.engine.retrier.work():
        await mesh.rest()
    dead = [each.to_agent_id for each in await a.engine.dead_letters.list(actor="op")]
    assert dead == ["bob"], record.task_id


def told(node: Node, agent_id: str) -> list[str]:
    return [
        node.engine.sealer.open(event).subject or ""
        for event in node.inbox(agent_id)
        if isinstance(event, MessageEvent) and event.source_agent_id == POSTMASTER
    ]


def incidents(node: Node, task_id: str) -> list[str]:
    return [each.kind for each in node.store.incidents() if each.subject == task_id]


@pytest.mark.req("TASK-5", "ACK-5")
async def test_a_task_that_reaches_nobody_says_so(mesh: Mesh) -> None:
    """Its requester sees in the list, in the task and in its context why nobody has it. It is not over for that."""
    a = mesh.nodes["node-a"]
    record = await an_offer(mesh, "bob")
    assert a.tasks.show(record.task_id).offer_ended is None, "it waits for bob"
    await lose(mesh, record)
    view = a.tasks.show(record.task_id)
    assert (view.task.state, view.is_open, view.offer_ended) == (TaskState.CREATED, True, "no_route")
    assert [line.offer_ended for line in a.tasks.list(open_only=True)] == ["no_route"]
    assert "created, offer ended: no_route" in a.office.contexts.block("ada").text
    await a.engine.dead_letters.purge(Filter(event_id=record.create_event_id), actor="op")
    assert a.tasks.show(record.task_id).offer_ended == "forgotten"
    await a.tasks.cancel(record.task_id, "ada")
    assert a.tasks.show(record.task_id).offer_ended is None


@pytest.mark.req("ENV-7", "TASK-5")
async def test_an_offer_that_expires_at_its_gateway_has_ended_until_somebody_claims_it(mesh: Mesh) -> None:
    """The gateway of the only target says that the time was over. An agent that takes the task all the same has it."""
    a, c = mesh.nodes["node-a"], mesh.nodes["node-c"]
    record = await an_offer(mesh, "cid")
    (offer,) = c.open_mail("cid")
    ack = c.engine.maker.ack(offer, AckType.FAILED_TERMINAL, agent_id="cid", reason="expired")
    await c.store.settle(
        Settlement(
            event_id=offer.event_id,
            to_agent_id="cid",
            outcome=Outcome.EXPIRED,
            at_ms=mesh.clock.now_ms(),
            events=(ack,),
        )
    )
    c.engine.wakeups.outbox_grew()
    await mesh.rest()
    assert a.tasks.show(record.task_id).offer_ended == "expired"
    assert c.tasks.show(record.task_id).offer_ended is None, "the requester's gateway decides"
    await c.tasks.claim(record.task_id, "cid", eta_seconds=60)
    await mesh.rest()
    view = a.tasks.show(record.task_id)
    assert (view.task.state, view.offer_ended) == (TaskState.ACCEPTED, None)


@pytest.mark.req("TASK-6", "RTY-7")
async def test_an_offer_that_is_sent_again_revives_its_task(mesh: Mesh) -> None:
    """The dead letter goes to where the agent is now: the next round of the task, which somebody can take."""
    a, c = mesh.nodes["node-a"], mesh.nodes["node-c"]
    record = await an_offer(mesh, "bob")
    await lose(mesh, record)
    mesh.room.remove_agent("bob")
    await c.host("bob")
    done = await a.engine.dead_letters.resend(Filter(event_id=record.create_event_id), actor="op")
    assert len(done.resent) == 1
    assert a.tasks.show(record.task_id).offer_ended is None
    await mesh.rest()
    await c.tasks.claim(record.task_id, "bob", eta_seconds=60)
    await mesh.rest()
    after = a.tasks.get(record.task_id)
    assert (after.round, after.state, after.accepted_by_agent_id) == (2, TaskState.ACCEPTED, "bob")


@pytest.mark.req("TASK-6", "RTY-7")
async def test_an_offer_that_is_sent_again_takes_the_task_from_nobody(mesh: Mesh) -> None:
    """Of two targets one has the task and the other never got it: sending that dead letter again is refused."""
    a, c = mesh.nodes["node-a"], mesh.nodes["node-c"]
    record = await an_offer(mesh, "bob", "cid")
    await c.tasks.claim(record.task_id, "cid", eta_seconds=60)
    await lose(mesh, record)
    mesh.room.remove_agent("bob")
    await c.host("bob")
    done = await a.engine.dead_letters.resend(Filter(event_id=record.create_event_id), actor="op")
    assert done.resent == ()
    assert [each.to_agents for each in done.refused] == [("bob",)]
    assert "accepted, by cid" in done.refused[0].reason
    await mesh.rest()
    await c.tasks.complete(record.task_id, "cid", result_summary="Mine.")
    await mesh.rest()
    assert a.tasks.get(record.task_id).state is TaskState.COMPLETED


@pytest.mark.req("TASK-6", "RTY-7")
async def test_an_offer_that_is_sent_again_stays_an_offer_for_all(mesh: Mesh) -> None:
    """Of two targets one never got the task, and the other thinks about it: the next round is for both."""
    a, c = mesh.nodes["node-a"], mesh.nodes["node-c"]
    record = await an_offer(mesh, "bob", "cid")
    await lose(mesh, record)
    assert a.tasks.show(record.task_id).offer_ended is None, "cid may take it"
    mesh.room.remove_agent("bob")
    await c.host("bob")
    done = await a.engine.dead_letters.resend(Filter(event_id=record.create_event_id), actor="op")
    assert [each.to_agents for each in done.resent] == [("bob",)]
    await mesh.rest()
    assert set(a.tasks.get(record.task_id).to_agents) == {"bob", "cid"}
    await c.tasks.claim(record.task_id, "cid", eta_seconds=60)
    await mesh.rest()
    assert a.tasks.get(record.task_id).accepted_by_agent_id == "cid"


@pytest.mark.req("TASK-8")
async def test_nobody_is_asked_about_a_task_that_he_never_got(mesh: Mesh) -> None:
    """A sweep calls a person at once, who hears of it once; when the task is taken back, all is well."""
    a = mesh.nodes["node-a"]
    record = await an_offer(mesh, "bob")
    await lose(mesh, record)
    reports = len(told(a, "ada"))
    mesh.clock.advance(300_000)
    for turn in (1, 2):
        report = await a.office.sweeper.sweep(turn, mesh.board.state)
        await mesh.rest()
        assert (report.problems, report.asked, report.needs_action) == ({"offer_ended": 1}, 0, 1)
    assert incidents(a, record.task_id) == [TASK_STUCK]
    assert TASK_LATE not in incidents(a, record.task_id)
    assert told(a, "ada")[reports:] == ["1 of your tasks need a decision"]
    await a.tasks.cancel(record.task_id, "ada")
    await a.office.sweeper.sweep(3, mesh.board.state)
    assert incidents(a, record.task_id) == []
