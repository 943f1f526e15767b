"""What is over is shown as over: incidents close by themselves once their cause has gone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.delivery.publish import SendRequest
from agentpost.delivery.sent import SentTo, sent_message
from agentpost.protocol.codec import decode_event
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.values import Incident
from agentpost.work.offering import NewTask
from tests.delivery.dispatching import until
from tests.work.meshing import Mesh, Node

DAY_MS = 86_400_000


@pytest.fixture(params=["memory", "sqlite"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mesh]:
    mesh = Mesh(tmp_path if request.param == "sqlite" else None)
    await mesh.add("node-a", "node-b")
    yield mesh
    await mesh.close()


async def answer(engagement: Engagement) -> str:
    return f"yes: {engagement.content.body}"


async def send(node: Node, *, ttl_ms: int | None = None) -> EventId:
    receipt = await node.engine.publisher.send(
        SendRequest(source_agent_id="ada", to_agents=("bob",), content=Content(body="Well?"))
    )
    return receipt.event_id


async def let_days_pass(mesh: Mesh, days: int = 3) -> None:
    """Days go by, and the timers of every gateway do what is due."""
    await mesh.rest()
    mesh.clock.advance(days * DAY_MS)
    for node in mesh.nodes.values():
        while await node.engine.retrier.work():
            pass
    await mesh.rest()


def shown(node: Node, event_id: EventId) -> SentTo:
    sent = sent_message(node.store, node.engine.sealer, event_id, now_ms=node.mesh.clock.now_ms())
    return sent.deliveries[0]


def open_incidents(node: Node) -> list[str]:
    return [each.kind for each in node.store.incidents()]


@pytest.mark.req("ACK-4")
async def test_an_answer_that_nobody_fetches_is_no_missed_outcome(mesh: Mesh) -> None:
    """A reply asks for nothing: whether and when the asking agent reads it is no concern of who answered."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob", answer)
    event_id = await send(a)
    await let_days_pass(mesh)
    assert shown(a, event_id).state is DeliveryState.REPLIED
    assert len(a.open_mail("ada")) == 1
    assert (open_incidents(a), open_incidents(b)) == ([], [])


@pytest.mark.req("ACK-4", "TASK-7")
async def test_how_a_task_ended_is_no_question_either(mesh: Mesh) -> None:
    """The end of a task that its requester never fetches is an open loop there, and no incident at the worker's."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob", answer)
    task = NewTask(requester_agent_id="ada", to_agents=("bob",), title="Build", description="All of it.")
    await a.tasks.create(task)
    await let_days_pass(mesh)
    assert [each.kind for each in a.open_mail("ada")] == ["task_complete"]
    assert (open_incidents(a), open_incidents(b)) == ([], [])


@pytest.mark.req("ACK-4")
async def test_a_report_that_nobody_reads_is_no_missed_outcome(mesh: Mesh) -> None:
    """What the gateway itself tells an agent needs no answer."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    event_id = await send(a)
    await mesh.rest()
    await b.engine.pull.fetch("bob")
    item = b.store.inbox_item(event_id, "bob")
    assert item is not None

    await b.engine.dispatcher.turns.expire(decode_event(item.raw), "bob")
    await let_days_pass(mesh)
    assert [each.source_agent_id for each in a.open_mail("ada")] == ["postmaster"]
    assert (open_incidents(a), open_incidents(b)) == ([], [])


@pytest.mark.req("ACK-4")
async def test_a_message_without_an_outcome_is_still_missed(mesh: Mesh) -> None:
    """What does ask for something is an incident, as before, once its time is over."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    event_id = await send(a)
    await let_days_pass(mesh)
    assert shown(a, event_id).state is DeliveryState.INCIDENT
    assert open_incidents(a) == ["sla_missed"]


@pytest.mark.req("ACK-4", "RTY-6")
async def test_a_late_answer_closes_its_incident_and_is_shown(mesh: Mesh) -> None:
    """Mail that is answered after its time: the incident closes, and `show` has the state, that it came, and what."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    event_id = await send(a)
    await let_days_pass(mesh)
    assert open_incidents(a) == ["sla_missed"]
    await b.engine.mailroom.reply("bob", event_id, Content(body="At last."))
    await mesh.rest()
    assert open_incidents(a) == []
    late = shown(a, event_id)
    assert (late.state, late.reason) == (DeliveryState.INCIDENT, "sla_missed")
    assert (late.late, late.answer) == (DeliverySignal.REPLY, "At last.")
    assert late.late_at_ms == mesh.clock.now_ms()
    closed = [each for each in a.store.audit_log() if each.action == "incident.close"]
    assert [(each.actor, each.subject) for each in closed] == [("node-b", f"{event_id}/bob")]


@pytest.mark.req("ACK-4", "RTY-7")
async def test_a_late_failure_closes_its_incident_and_can_be_sent_again(mesh: Mesh) -> None:
    """Mail whose agent gives up after its time is failed mail like any other."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    event_id = await send(a)
    await let_days_pass(mesh)
    await b.engine.pull.fetch("bob")

    await b.engine.pull.settle(event_id, "bob", Result(kind=ResultKind.FAILED, error="no"))
    await mesh.rest()
    assert open_incidents(a) == []
    assert shown(a, event_id).has_failed
    (letter,) = await a.engine.dead_letters.list(actor="op")
    assert (letter.event_id, letter.error) == (event_id, "no")


async def test_an_answer_by_hand_to_settled_mail_is_shown(mesh: Mesh) -> None:
    """A person who answers what an agent had dealt with in silence has answered it."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    event_id = await send(a)
    await mesh.rest()
    await b.engine.mailroom.dismiss("bob", event_id)
    await mesh.rest()
    assert shown(a, event_id).state is DeliveryState.PROCESSED
    await b.engine.mailroom.reply("bob", event_id, Content(body="By the way …"))
    await mesh.rest()
    assert (shown(a, event_id).state, shown(a, event_id).answer) == (DeliveryState.PROCESSED, "By the way …")


@pytest.mark.req("ROUTE-2")
async def test_an_owner_that_is_back_is_no_incident_any_more(mesh: Mesh) -> None:
    """Mail that a silent owner may have taken is an incident until its gateway is heard again, and no longer."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    (c,) = await mesh.add("node-c")
    await a.host("ada")
    await b.host("bob")
    await c.host("cid")
    mesh.room.add_fallback("bob", "node-c")
    a.engine.retrier.start()
    mesh.pipes.pop(("node-a", "node-b")).cut()
    await send(a)
    mesh.room.set_offline("node-b")
    mesh.clock.advance(60_000)
    a.engine.wakeups.timer_set()
    await until(lambda: open_incidents(a) == ["owner_silent"])
    mesh.room.set_online("node-b")
    await until(lambda: open_incidents(a) == [])


async def an_incident(node: Node, kind: str, subject: str) -> None:
    await node.store.raise_incident(Incident(kind=kind, subject=subject, at_ms=node.mesh.clock.now_ms()))


@pytest.mark.parametrize("kind", ["agent_conflict", "agent_failing", "runtime_unusable"])
async def test_incidents_of_an_agent_go_with_it(mesh: Mesh, kind: str) -> None:
    """Nobody has to look after an agent that was removed."""
    node = mesh.nodes["node-a"]
    await an_incident(node, kind, "ada")
    await until(lambda: open_incidents(node) == [])
    await until(node.store.audit_log)
    (closed,) = [each for each in node.store.audit_log() if each.action == "incident.close"]
    assert (closed.actor, closed.subject, closed.detail) == ("node-a", "ada", {"kind": kind})


@pytest.mark.req("ROUTE-3")
async def test_an_agent_that_has_come_is_no_missing_route(mesh: Mesh) -> None:
    """Mail for an agent that nobody hosts is an incident until some gateway does."""
    a = mesh.nodes["node-a"]
    await an_incident(a, "no_route", "eve")
    await a.engine.closer.look()
    assert open_incidents(a) == ["no_route"]
    await mesh.nodes["node-b"].host("eve")
    await a.engine.closer.look()
    assert open_incidents(a) == []


@pytest.mark.req("RTY-3")
async def test_an_unclear_outcome_that_is_settled_by_hand_is_clear(mesh: Mesh) -> None:
    """A message that was cut off by a crash is an incident until somebody says what became of it, however."""
    a, b = mesh.nodes["node-a"], mesh.nodes["node-b"]
    await a.host("ada")
    await b.host("bob")
    event_id = await send(a)
    await mesh.rest()
    await an_incident(b, "indeterminate", f"{event_id}/bob")
    await b.engine.closer.look()
    assert open_incidents(b) == ["indeterminate"]
    await b.engine.mailroom.reply("bob", event_id, Content(body="I did it."))
    await b.engine.closer.look()
    assert open_incidents(b) == []


async def test_what_was_once_seen_stays_open(mesh: Mesh) -> None:
    """An incident about something that happened has no cause that could go: a person closes it."""
    a = mesh.nodes["node-a"]
    await an_incident(a, "forged_sender", "node-b")
    assert await a.engine.closer.look() == 0
    assert open_incidents(a) == ["forged_sender"]
