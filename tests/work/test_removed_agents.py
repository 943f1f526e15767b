"""An agent is removed from its gateway: what it had not done ends at once, and whoever waits for it hears of that."""

import asyncio
from pathlib import Path

import pytest

from agentpost.delivery.ports import Content, Engagement
from agentpost.delivery.publish import SendRequest
from agentpost.protocol.delivery import Delivery, has_failed
from agentpost.protocol.envelope import TaskFailedEvent
from agentpost.protocol.ids import EventId
from agentpost.protocol.tasks import TaskState
from agentpost.store.values import LedgerState
from agentpost.testing import FixedRoom
from agentpost.work.offering import NewTask
from agentpost.work.tasks import Role
from tests.work.meshing import Mesh, Node


async def send(node: Node, to: str, body: str = "hello") -> EventId:
    request = SendRequest(source_agent_id="ada", to_agents=(to,), content=Content(body=body))
    return (await node.engine.publisher.send(request)).event_id


def delivery(node: Node, event_id: EventId) -> Delivery:
    (found,) = node.store.deliveries_of(event_id)
    return found


def open_incidents(node: Node, kind: str) -> list[str]:
    return [each.subject for each in node.store.incidents() if each.kind == kind]


async def a_mesh_with_bob(mesh: Mesh) -> tuple[Node, Node]:
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    return a, b


@pytest.mark.req("ROUTE-3")
async def test_mail_that_was_accepted_before_its_agent_was_removed_ends_as_no_route(mesh: Mesh) -> None:
    """Queued and fetched mail alike: its sender hears at once that it failed, and the operator has an incident."""
    a, b = await a_mesh_with_bob(mesh)
    sent = [await send(a, "bob", str(number)) for number in range(3)]
    await mesh.rest()
    (fetched,) = await b.engine.pull.fetch("bob")
    assert await b.engine.agents.remove("bob") == 3
    await mesh.rest()
    for event_id in sent:
        end = delivery(a, event_id)
        assert (has_failed(end), end.reason) == (True, "no_route")
    assert b.open_mail("bob") == []
    assert open_incidents(b, "no_route") == ["bob"]
    reports = [a.engine.sealer.open(event).subject for event in a.open_mail("ada")]
    assert reports == ["Not handled by bob: no_route"] * 3, "their sender has it in the inbox"
    assert len(await a.engine.dead_letters.list(actor="op")) == 3, "and can send them again"
    entry = b.store.ledger_entry(fetched.event_id, "bob")
    assert entry is not None
    assert (entry.state, entry.error) == (LedgerState.SETTLED, "bob was removed from node-b")


@pytest.mark.req("ROUTE-3")
async def test_mail_that_arrives_after_its_agent_was_removed_ends_as_no_route(mesh: Mesh) -> None:
    """It was sent while the gateway was cut off, and its agent was removed meanwhile: no half hour of tries."""
    a, b = await a_mesh_with_bob(mesh)
    await mesh.rest()
    mesh.cut("node-b")
    event_id = await send(a, "bob")
    await mesh.rest()
    await b.engine.agents.remove("bob")
    mesh.mend("node-b")
    await mesh.rest()
    end = delivery(a, event_id)
    assert (has_failed(end), end.reason, end.attempts) == (True, "no_route", 1)
    assert open_incidents(b, "no_route") == ["bob"]
    await b.host("bob")
    assert open_incidents(b, "no_route") == [], "it is here again"
    later = await send(a, "bob", "again")
    await mesh.rest()
    (item,) = b.open_mail("bob")
    assert item.event_id == later


@pytest.mark.req("ROUTE-2", "ROUTE-3")
async def test_mail_for_an_agent_that_moved_is_not_ended_where_it_was(mesh: Mesh) -> None:
    """Removed here and added elsewhere before its mail arrived: the sender's gateway sends it on, and nothing fails."""
    a, b = await a_mesh_with_bob(mesh)
    await mesh.rest()
    mesh.cut("node-b")
    event_id = await send(a, "bob")
    await mesh.rest()
    await b.engine.agents.remove("bob")
    await mesh.nodes["node-c"].host("bob")
    mesh.mend("node-b")
    await mesh.rest()
    assert b.inbox("bob") == []
    assert open_incidents(b, "no_route") == []
    assert not has_failed(delivery(a, event_id))


@pytest.mark.req("ROUTE-3", "TASK-7", "TASK-8")
async def test_the_tasks_of_a_removed_agent_end_with_it(mesh: Mesh) -> None:
    """A task that it had has failed; one that it was offered waits for another offer, and says why."""
    a, b = await a_mesh_with_bob(mesh)
    had, offered = [
        (await a.tasks.create(NewTask(requester_agent_id="ada", title=title, to_agents=("bob",)))).task_id
        for title in ("Build", "Test")
    ]
    await mesh.rest()
    await b.tasks.claim(had, "bob", eta_seconds=3600)
    await mesh.rest()
    assert await b.engine.agents.remove("bob") == 2
    await mesh.rest()
    record = a.tasks.get(had)
    assert (record.state, record.failure_class) == (TaskState.FAILED, "no_route")
    (told,) = [event for event in a.open_mail("ada") if isinstance(event, TaskFailedEvent)]
    assert a.engine.sealer.open(told).error_summary == "bob was removed from node-b"
    (line,) = a.tasks.list(agent_id="ada", role=Role.REQUESTER, open_only=True)
    assert (line.task.task_id, line.offer_ended) == (offered, "no_route")
    for node in (a, b):
        assert (await node.tasks.rebuild(check_only=True)).differing == ()


@pytest.mark.req("TASK-6", "TASK-7")
async def test_a_claim_that_is_won_after_its_agent_was_removed_fails_the_task(mesh: Mesh) -> None:
    """The verdict comes too late for the agent: its requester hears that the task failed, and does not wait for it."""
    a, b = await a_mesh_with_bob(mesh)
    await mesh.nodes["node-c"].host("cid")
    offered = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=("bob", "cid")))
    await mesh.rest()
    await b.tasks.claim(offered.task_id, "bob", eta_seconds=3600)
    await b.engine.agents.remove("bob")
    await mesh.rest()
    record = a.tasks.get(offered.task_id)
    assert (record.state, record.failure_class) == (TaskState.FAILED, "no_route")


@pytest.mark.req("ROUTE-3", "RTY-4")
@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_turn_that_runs_while_its_agent_is_removed_ends_as_it_ends(mesh: Mesh, *, succeeds: bool) -> None:
    """What the agent is busy with counts as it says; if it fails, nobody is there to try again."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(_: Engagement) -> str:
        begun.set()
        await go_on.wait()
        if not succeeds:
            raise RuntimeError("not now")
        return "done"

    await a.host("ada")
    await b.host("bob", work)
    first, second = [await send(a, "bob", str(number)) for number in range(2)]
    for _ in range(200):
        if begun.is_set():
            break
        for pipe in mesh.pipes.values():
            await pipe.step()
        await asyncio.sleep(0.005)
    await mesh.rest()
    assert await b.engine.agents.remove("bob") == 1, "the other one"
    await mesh.rest()
    assert not has_failed(delivery(a, first))
    go_on.set()
    async with asyncio.timeout(30):
        while b.open_mail("bob"):  # noqa: ASYNC110 - the turn does not know of this test
            await asyncio.sleep(0.01)
    await mesh.rest()
    assert delivery(a, second).reason == "no_route"
    assert has_failed(delivery(a, first)) is not succeeds
    assert delivery(a, first).reason == (None if succeeds else "no_route")


@pytest.mark.req("ROUTE-3", "RTY-5")
async def test_a_gateway_that_stopped_while_an_agent_was_removed_ends_its_mail_at_the_start(tmp_path: Path) -> None:
    """The process died after the agent was removed and before its mail was ended: the next start does it."""
    mesh = Mesh(tmp_path)
    try:
        await mesh.add("node-a", "node-b")
        a, b = await a_mesh_with_bob(mesh)
        event_id = await send(a, "bob")
        task = await a.tasks.create(NewTask(requester_agent_id="ada", title="Build", to_agents=("bob",)))
        await mesh.rest()
        await b.tasks.claim(task.task_id, "bob", eta_seconds=3600)
        await mesh.rest()
        mesh.pipes.pop(("node-a", "node-b")).cut()
        await b.engine.close()
        await b.store.remove_agent("bob")
        room: FixedRoom = mesh.room
        room.remove_agent("bob")
        b.wake_up()
        await b.engine.start()
        mesh.join("node-a", "node-b")
        await mesh.rest()
        assert delivery(a, event_id).reason == "no_route"
        assert a.tasks.get(task.task_id).failure_class == "no_route"
    finally:
        await mesh.close()
