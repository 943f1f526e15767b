"""Agents that fail: what their senders are told of each try and of the end, and what their own gateway shows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.delivery.deadletters import DeadLetterLine, Filter
from agentpost.delivery.failing import AGENT_FAILING
from agentpost.delivery.keeping import Keeper
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.delivery.publish import SendRequest
from agentpost.delivery.sent import SentTo, sent_message
from agentpost.delivery.trace import Step, TraceStep, trace
from agentpost.protocol.codec import encode_event
from agentpost.protocol.delivery import Change
from agentpost.protocol.envelope import SignalEvent
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import Subscriber
from agentpost.work.offering import NewTask
from tests.delivery.dispatching import AGAIN, DONE, NEVER, Gateway, Scripted, until
from tests.work.meshing import Mesh, Node

TRIES = 8  # as DISPATCH_RETRY has it
EVIL = "broken \x1b[31mred\x00 \ud800"


class Builder:
    """An agent that fails for as long as it is told to."""

    def __init__(self) -> None:
        self.error: str | None = "no compiler"

    async def work(self, engagement: Engagement) -> str:
        if self.error is not None:
            raise RuntimeError(self.error)
        return f"built: {engagement.content.body}"


@pytest.fixture(params=["memory", "sqlite"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mesh]:
    mesh = Mesh(tmp_path if request.param == "sqlite" else None)
    await mesh.add("node-a", "node-b")
    yield mesh
    await mesh.close()


@pytest.fixture
async def sender(mesh: Mesh) -> Node:
    """The gateway of ada, who asks and fetches her mail by herself."""
    node = mesh.nodes["node-a"]
    await node.host("ada")
    return node


@pytest.fixture
async def builder() -> Builder:
    return Builder()


@pytest.fixture
async def worker(mesh: Mesh, builder: Builder) -> Node:
    """The gateway of bob, who is engaged and fails."""
    node = mesh.nodes["node-b"]
    await node.host("bob", builder.work)
    return node


async def send(node: Node, body: str = "Build it.", *, ttl_seconds: float | None = None) -> EventId:
    expires_at = None if ttl_seconds is None else format_ms(node.mesh.clock.now_ms() + round(ttl_seconds * 1000))
    receipt = await node.engine.publisher.send(
        SendRequest(source_agent_id="ada", to_agents=("bob",), content=Content(body=body), expires_at=expires_at)
    )
    return receipt.event_id


async def rest_until(mesh: Mesh, is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            await mesh.rest()
            if is_so():
                return
            await asyncio.sleep(0.01)


async def try_again(mesh: Mesh) -> None:
    """The next try is due."""
    await mesh.rest()
    mesh.clock.advance(400_000)
    mesh.nodes["node-b"].engine.wakeups.inbox_grew("bob")
    await mesh.rest()


async def until_given_up(mesh: Mesh, sender: Node, event_id: EventId) -> None:
    for _ in range(TRIES + 2):
        await try_again(mesh)
        if shown(sender, event_id).is_over:
            return
    raise AssertionError("it is still being tried")


def shown(node: Node, event_id: EventId) -> SentTo:
    sent = sent_message(node.store, node.engine.sealer, event_id, now_ms=node.mesh.clock.now_ms())
    return sent.deliveries[0]


def has_failed_try(node: Node, event_id: EventId, attempt: int) -> Callable[[], bool]:
    def is_so() -> bool:
        failing = shown(node, event_id).failing
        return failing is not None and failing.attempt == attempt

    return is_so


def notices(node: Node) -> list[SignalEvent]:
    return [each for each in node.outbox() if isinstance(each, SignalEvent) and each.payload.signal == "attempt_failed"]


def incidents(node: Node) -> list[tuple[str, str]]:
    return [(each.kind, each.subject) for each in node.store.incidents()]


async def dead(node: Node) -> list[DeadLetterLine]:
    return await node.engine.dead_letters.list(actor="op")


@pytest.mark.req("RTY-4", "PIPE-4")
async def test_a_sender_sees_each_try_that_fails(mesh: Mesh, sender: Node, worker: Node) -> None:
    """While an agent fails, `show` and `trace` of its sender tell attempt n of m, the error and the next try."""
    event_id = await send(sender)
    await rest_until(mesh, has_failed_try(sender, event_id, 1))
    first = shown(sender, event_id)
    assert first.state is DeliveryState.ACCEPTED
    assert first.failing is not None
    assert (first.failing.attempt, first.failing.most_attempts) == (1, TRIES)
    assert first.failing.error == "RuntimeError: no compiler"
    entry = worker.store.ledger_entry(event_id, "bob")
    assert entry is not None
    assert first.failing.next_try_at_ms == entry.due_at_ms
    await try_again(mesh)
    await rest_until(mesh, has_failed_try(sender, event_id, 2))
    (step,) = [each for each in trace(sender.store, event_id) if each.what is Step.ATTEMPT_FAILED]
    assert "attempt 2 of 8" in (step.detail or "")
    assert step.error is None, "who may not read content is told no error"
    (step,) = failed_steps(sender, event_id)
    assert step.error == "RuntimeError: no compiler"
    for raw in [encode_event(each) for each in worker.outbox()]:
        assert b"no compiler" not in raw


def failed_steps(node: Node, event_id: EventId) -> list[TraceStep]:
    found = trace(node.store, event_id, sealer=node.engine.sealer)
    return [each for each in found if each.what is Step.ATTEMPT_FAILED]


@pytest.mark.req("RTY-4", "OPS-6")
async def test_at_the_end_everybody_is_told(mesh: Mesh, sender: Node, worker: Node, builder: Builder) -> None:
    """A message that is given up is a report to its sender, an incident at the agent's gateway, and a dead letter."""
    event_id = await send(sender)
    await rest_until(mesh, has_failed_try(sender, event_id, 1))
    failing = worker.engine.dispatcher.turns.failing
    since = failing.of("bob")
    assert since is not None
    assert incidents(worker) == [], "one try that failed is no incident yet"
    await until_given_up(mesh, sender, event_id)
    ended = shown(sender, event_id)
    assert (ended.state, ended.has_failed, ended.reason) == (DeliveryState.PROCESSED, True, "max_attempts")
    assert ended.failing is not None
    assert (ended.failing.attempt, ended.failing.most_attempts) == (TRIES, TRIES)
    assert (ended.failing.next_try_at_ms, ended.failing.error) == (None, "RuntimeError: no compiler")
    # The sender's inbox.
    await rest_until(mesh, lambda: len(sender.open_mail("ada")) == 1)
    (report,) = sender.open_mail("ada")
    said = sender.engine.sealer.open(report)
    assert report.source_agent_id == "postmaster"
    assert said.subject == "Not handled by bob: max_attempts"
    assert event_id in (said.body or "")
    assert "RuntimeError: no compiler" in (said.body or "")
    # The agent's gateway.
    await rest_until(mesh, lambda: incidents(worker) == [(AGENT_FAILING, "bob")])
    known = failing.of("bob")
    assert known is not None
    assert (known.since_ms, known.tries, known.given_up) == (since.since_ms, TRIES, 1)
    assert known.error == "RuntimeError: no compiler"
    (incident,) = worker.store.incidents()
    assert "no compiler" not in str(incident.detail)
    assert [(each.event_id, each.reason, each.was_accepted, each.attempts) for each in await dead(sender)] == [
        (event_id, "max_attempts", True, TRIES)
    ]
    assert len(notices(worker)) < TRIES, "a notice for each try that is not the last, at most"
    # And it is over by itself.
    builder.error = None
    await send(sender, "Once more.")
    await rest_until(mesh, lambda: incidents(worker) == [] and failing.of("bob") is None)


@pytest.mark.req("RTY-7")
async def test_what_an_agent_failed_with_is_sent_again(
    mesh: Mesh, sender: Node, worker: Node, builder: Builder
) -> None:
    """Once the cause is gone, `deadletters resend` gives the agent the same words as a new event, once."""
    event_id = await send(sender)
    await until_given_up(mesh, sender, event_id)
    builder.error = None
    (done,) = (await sender.engine.dead_letters.resend(Filter(event_id=event_id), actor="op")).resent
    await rest_until(mesh, lambda: shown(sender, done.resent_as).is_over)
    assert shown(sender, done.resent_as).answer == "built: Build it."
    assert shown(sender, event_id).resent_as == done.resent_as
    again = await sender.engine.dead_letters.resend(Filter(event_id=event_id), actor="op")
    assert (again.resent, again.refused) == ((), ())
    assert await sender.engine.dead_letters.purge(Filter(event_id=event_id), actor="op") == 1
    assert await dead(sender) == []


@pytest.mark.req("ENV-7", "RTY-7")
async def test_mail_that_was_accepted_and_then_expired_is_told_too(mesh: Mesh, sender: Node) -> None:
    """An agent that never comes for its mail: when that expires its sender gets a report, and can send it again."""
    worker = mesh.nodes["node-b"]
    await worker.host("bob")
    event_id = await send(sender, ttl_seconds=60)
    await mesh.rest()
    assert shown(sender, event_id).state is DeliveryState.ACCEPTED
    mesh.clock.advance(61_000)
    assert await worker.engine.expiring.look() == 1
    await rest_until(mesh, lambda: len(sender.open_mail("ada")) == 1)
    said = sender.engine.sealer.open(sender.open_mail("ada")[0])
    assert said.subject == "Not handled by bob: expired"
    assert [(each.reason, each.was_accepted) for each in await dead(sender)] == [("expired", True)]
    (again,) = (await sender.engine.dead_letters.resend(Filter(event_id=event_id), actor="op")).resent
    await rest_until(mesh, lambda: len(worker.open_mail("bob")) == 1)
    assert worker.open_mail("bob")[0].event_id == again.resent_as
    assert incidents(worker) == [], "nobody failed"


@pytest.mark.req("RTY-4")
async def test_a_failing_message_holds_back_later_ones_and_their_sender_is_told(
    mesh: Mesh, sender: Node, worker: Node, builder: Builder
) -> None:
    """What a sender says after a message that fails waits behind it, knows which, and is next when that is given up."""
    first = await send(sender, "first")
    second = await send(sender, "second")
    await rest_until(mesh, has_failed_try(sender, first, 1))
    assert shown(sender, second).held_by == first
    assert shown(sender, first).held_by is None
    assert [each.content.body for each in worker.engaged] == ["first"]
    await until_given_up(mesh, sender, first)
    await rest_until(mesh, has_failed_try(sender, second, 1))
    assert [each.content.body for each in worker.engaged] == ["first"] * TRIES + ["second"]
    assert shown(sender, second).held_by is None


@pytest.mark.req("RTY-4", "PIPE-4")
async def test_errors_are_bounded_and_can_be_read(mesh: Mesh, sender: Node, worker: Node, builder: Builder) -> None:
    """However much an agent prints, and whatever: its sender gets the beginning, as text."""
    builder.error = EVIL + "x" * 1_000_000
    event_id = await send(sender)
    await rest_until(mesh, has_failed_try(sender, event_id, 1))
    failing = shown(sender, event_id).failing
    assert failing is not None
    assert failing.error is not None
    assert len(failing.error) <= 2000
    failing.error.encode()
    assert max(len(encode_event(each)) for each in notices(worker)) < 8_000


@pytest.mark.req("PIPE-2")
async def test_only_the_agents_gateway_tells_of_its_tries(mesh: Mesh, sender: Node, worker: Node) -> None:
    """A notice of a gateway that a message did not go to, or without sense, changes nothing."""
    (stranger,) = await mesh.add("node-c")
    event_id = await send(sender)
    await rest_until(mesh, has_failed_try(sender, event_id, 1))
    before = shown(sender, event_id).failing
    details = {"toAgentId": "bob", "attempt": 7, "mostAttempts": 8, "nextTryAt": format_ms(mesh.clock.now_ms())}
    for node, said in (
        (stranger, details),
        (worker, {**details, "attempt": "7"}),
        (worker, {**details, "attempt": 9}),
        (worker, {**details, "nextTryAt": "soon"}),
        (worker, {**details, "toAgentId": "eve"}),
    ):
        signal = node.engine.maker.signal("attempt_failed", to_nodes=("node-a",), details=dict(said))
        signal = replace(signal, payload=replace(signal.payload, ref_event_id=event_id))
        await node.store.append([signal])
        node.engine.wakeups.outbox_grew()
    await mesh.rest()
    assert shown(sender, event_id).failing == before
    assert len(sender.store.failed_attempts_of(event_id)) == 1


@pytest.mark.req("RTY-7", "PIPE-7")
async def test_failed_mail_stays_until_it_is_purged(mesh: Mesh, sender: Node, worker: Node) -> None:
    """What an agent failed with outlives the pruning of the outbox, as a dead letter does, and so does its error."""
    event_id = await send(sender)
    await until_given_up(mesh, sender, event_id)
    await mesh.rest()
    mesh.clock.advance(40 * 86_400_000)
    head = sender.store.head().seq
    lease = mesh.clock.now_ms() + 1_000_000
    reader = Subscriber(
        consumer_node_id="node-b",
        epoch=sender.store.epoch,
        last_seq=head,
        updated_at_ms=mesh.clock.now_ms(),
        lease_expires_at_ms=lease,
    )
    await sender.store.note_subscriber(reader)
    keeper = Keeper(
        store=sender.store,
        room=mesh.room,
        clock=mesh.clock,
        wakeups=sender.engine.wakeups,
        policy=DeliveryPolicy(retention_events=0),
    )
    await keeper.keep()
    assert sender.store.read_outbox(0).floor_seq > 0
    (letter,) = await dead(sender)
    assert (letter.event_id, letter.error) == (event_id, "RuntimeError: no compiler")
    view = await sender.engine.dead_letters.show(event_id, actor="op")
    assert view.content == Content(body="Build it.")
    await sender.engine.dead_letters.purge(Filter(event_id=event_id), actor="op")
    assert sender.store.find_event(event_id) is None
    assert sender.store.failed_attempts_of(event_id) == []


async def test_a_failed_task_is_told_once(mesh: Mesh, sender: Node, worker: Node) -> None:
    """Who asked for a task hears of its failure by the task itself, and by nothing else."""
    task = NewTask(requester_agent_id="ada", to_agents=("bob",), title="Build", description="All of it.")
    offered = await sender.tasks.create(task)
    for _ in range(TRIES + 2):
        await try_again(mesh)
    assert sender.tasks.get(offered.task_id).failure_class == "max_attempts"
    assert [each.kind for each in sender.open_mail("ada")] == ["task_failed"]


async def test_a_gateway_knows_after_a_restart_who_fails(mesh: Mesh, sender: Node, worker: Node) -> None:
    """Since when an agent fails is kept; an agent that was removed does not fail any more."""
    event_id = await send(sender)
    await until_given_up(mesh, sender, event_id)
    await rest_until(mesh, lambda: worker.store.note("failing_agents", "bob") is not None)
    await rest_until(mesh, lambda: incidents(worker) != [])
    before = worker.engine.dispatcher.turns.failing.of("bob")
    await asyncio.sleep(1.1)
    await worker.engine.close()
    worker.wake_up()
    worker.engine.dispatcher.start()
    failing = worker.engine.dispatcher.turns.failing
    assert before is not None
    known = failing.of("bob")
    assert known is not None
    assert (known.since_ms, known.tries) == (before.since_ms, before.tries)
    await worker.engine.agents.remove("bob")
    await rest_until(mesh, lambda: failing.of("bob") is None and incidents(worker) == [])


@pytest.mark.req("RTY-3", "RTY-7")
async def test_a_dead_letter_that_arrives_with_its_repeat_is_handled_once(mesh: Mesh, sender: Node) -> None:
    """Given up and sent again while nobody was heard: the agent gets both in one batch, and is engaged with one."""
    worker = mesh.nodes["node-b"]
    done: list[str | None] = []

    async def work(engagement: Engagement) -> str:
        done.append(engagement.content.body)
        return "done"

    await worker.host("bob", work)
    mesh.pipes.pop(("node-a", "node-b")).cut()
    event_id = await send(sender)
    for signal in (DeliverySignal.ACK_TIMEOUT, DeliverySignal.EXHAUSTED):
        at_ms = mesh.clock.now_ms()
        change = Change(event_id=event_id, to_agent_id="bob", signal=signal, at_ms=at_ms, reason="max_attempts")
        await sender.store.append([], changes=[change])
    assert shown(sender, event_id).state is DeliveryState.DEAD_LETTER
    (again,) = (await sender.engine.dead_letters.resend(Filter(event_id=event_id), actor="op")).resent
    mesh.join("node-a", "node-b")
    await rest_until(mesh, lambda: shown(sender, event_id).late is not None)
    for _ in range(3):
        mesh.clock.advance(10_000)
        worker.engine.wakeups.inbox_grew("bob")
        await mesh.rest()
    assert done == ["Build it."]
    first, second = shown(sender, event_id), shown(sender, again.resent_as)
    assert (first.state, first.late, first.answer) == (DeliveryState.DEAD_LETTER, DeliverySignal.REPLY, "done")
    assert (second.state, second.reason, second.has_failed) == (DeliveryState.PROCESSED, "repeated", False)


# The gateway of the agent alone


def told(gateway: Gateway) -> list[SignalEvent]:
    return [each for each in gateway.outbox() if isinstance(each, SignalEvent)]


def is_failing(gateway: Gateway, agent_id: str = "ada") -> bool:
    return gateway.dispatchers[-1].turns.failing.of(agent_id) is not None


@pytest.mark.req("RTY-4")
async def test_a_flood_of_failures_is_no_flood_of_notices(gateway: Gateway) -> None:
    """Of several tries with one message only the last is told, and one write tells of 64 messages at most."""
    failing = gateway.start().turns.failing
    events = [gateway.message(number) for number in range(1, 101)]
    for attempt in (1, 2, 3):
        for event in events:
            failing.failed(event, "ada", attempt=attempt, most_attempts=8, due_at_ms=1, error="no", holds_back=False)
    await until(lambda: told(gateway))
    signals = told(gateway)
    assert len(signals) <= 64
    assert {each.payload.details["attempt"] for each in signals} == {3}
    await until(lambda: len(told(gateway)) == 100)
    assert {each.payload.ref_event_id for each in told(gateway)} == {each.event_id for each in events}


async def test_a_try_that_is_over_is_not_told(gateway: Gateway) -> None:
    """A message that is dealt with before anybody could be told of its tries is not spoken of."""
    results = iter([AGAIN, DONE])
    await gateway.hire("ada", Scripted(lambda _: next(results)))
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: is_failing(gateway))
    gateway.clock.advance(10_000)
    gateway.wakeups.inbox_grew("ada")
    await gateway.settled(event)
    await until(lambda: not is_failing(gateway))
    await until(lambda: gateway.store.note("failing_agents", "ada") is None)
    assert told(gateway) == []


async def test_nobody_is_told_that_a_report_fails(gateway: Gateway) -> None:
    """The gateways' own messages to agents cause no others, also if the agent fails with them."""
    await gateway.hire("ada", Scripted(lambda _: AGAIN))
    gateway.start()
    await gateway.arrive(gateway.message(1, sender="postmaster"))
    await until(lambda: gateway.store.note("failing_agents", "ada") is not None)
    assert told(gateway) == []


@pytest.mark.parametrize(
    ("result", "fails"),
    [
        (NEVER, False),
        (Result(kind=ResultKind.FAILED, error="it printed too much", is_defect=True), True),
    ],
)
async def test_an_agent_that_declines_does_not_fail(gateway: Gateway, result: Result, fails: bool) -> None:
    """Whoever says of a message that it is not for him works; a runtime that gives nonsense does not."""
    await gateway.hire("ada", Scripted(lambda _: result))
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(event)
    (ack,) = gateway.outcomes(event)
    assert (ack.payload.reason, ack.payload.attempts) == ("failed", 1)
    await until(lambda: is_failing(gateway) is fails)
    await until(lambda: [each.kind for each in gateway.store.incidents()] == [AGENT_FAILING] * fails)


@pytest.mark.req("RTY-3")
async def test_a_repeat_of_what_the_agent_had_is_not_given_to_it(gateway: Gateway) -> None:
    """A dead letter that arrived after all and its repeat: the agent gets one of them, and both have an outcome."""
    agent = Scripted(lambda _: DONE)
    await gateway.hire("ada", agent)
    gateway.start()
    first = gateway.message(1)
    again = gateway.message(2)
    again = replace(again, trace=replace(again.trace, instead_of=first.event_id))
    await gateway.arrive(first, again)
    await gateway.settled(first)
    gateway.clock.advance(10_000)
    gateway.wakeups.inbox_grew("ada")
    await gateway.settled(again)
    assert [each.event_id for each in agent.engaged] == [first.event_id]
    assert [each.payload.reason for each in gateway.outcomes(again)] == ["repeated"]


@pytest.mark.req("RTY-3", "RTY-7")
async def test_a_repeat_of_what_the_agent_failed_with_is_given_to_it(gateway: Gateway) -> None:
    """What the agent could not handle, or never had, is worth another try under its new id."""
    results = iter([NEVER, DONE, DONE])
    agent = Scripted(lambda _: next(results))
    await gateway.hire("ada", agent)
    gateway.start()
    (failed,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(failed)
    unknown = gateway.message(99).event_id
    for number, before in ((2, failed.event_id), (3, unknown)):
        again = gateway.message(number)
        again = replace(again, trace=replace(again.trace, instead_of=before))
        await gateway.arrive(again)
        await gateway.settled(again)
        assert agent.engaged[-1].event_id == again.event_id
