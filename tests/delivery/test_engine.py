"""The whole engine of one gateway, put together: local mail from send to answer, and what people ask about it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from agentpost.delivery.engine import Engine
from agentpost.delivery.incidents import STATUS
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.delivery.publish import SendRequest
from agentpost.edges.runtimes.handler import HandlerRuntime
from agentpost.edges.runtimes.pull import PullRuntime
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Change
from agentpost.protocol.envelope import SignalEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.snapshot import AgentStatus, Failover, NodeTier
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import LedgerState, LocalAgent, Settlement
from agentpost.testing import FakeClock, FixedRoom, MemoryStore, SeededChance

NODE = "node-a"
PATIENCE_SECONDS = 30


class Directory:
    """The list of agents, straight into the room of the test."""

    def __init__(self, room: FixedRoom) -> None:
        self._room = room

    def owner_of(self, agent_id: str) -> str | None:
        agent = self._room.snapshot().agents.get(agent_id)
        return None if agent is None else agent.owner_node_id

    def publish(self, agent_id: str, status: AgentStatus) -> None:
        self._room.add_agent(agent_id, NODE, active=status is AgentStatus.ACTIVE)

    def withdraw(self, agent_id: str) -> None:
        self._room.remove_agent(agent_id)

    def stands_in(self, agent_id: str) -> bool:
        rule = self._room.snapshot().routing.get(agent_id)
        return rule is not None and NODE in rule.fallback_node_ids and self.owner_of(agent_id) not in (None, NODE)

    def name_stand_ins(self, agent_id: str, node_ids: Sequence[str], failover: Failover) -> None:
        self._room.add_fallback(agent_id, *node_ids, failover=failover)


async def answer(engagement: Engagement) -> str:
    return f"done: {engagement.content.body}"


def make_runtime(agent: LocalAgent) -> HandlerRuntime | PullRuntime:
    if agent.runtime == "pull":
        return PullRuntime()
    return HandlerRuntime(answer, max_concurrent=1, is_idempotent=True, timeout_seconds=None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory that is its owner's alone."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def room(clock: FakeClock) -> FixedRoom:
    return FixedRoom(clock)


@pytest.fixture(params=["sqlite", "memory"])
async def engine(
    request: pytest.FixtureRequest, home: Path, clock: FakeClock, room: FixedRoom
) -> AsyncIterator[Engine]:
    chance = SeededChance(1)
    identity = room.add_node(NODE, tier=NodeTier.BACKBONE)
    store: Store = MemoryStore(node_id=NODE, epoch="epoch_1")
    if request.param == "sqlite":
        store = SqliteStore.open(home, node_id=NODE, epoch="epoch_1", now_ms=clock.now_ms())
    made = Engine(
        store=store,
        room=room,
        directory=Directory(room),
        copies=None,
        signing=identity.signing,
        sealing=identity.sealing,
        tier=NodeTier.BACKBONE,
        clock=clock,
        chance=chance,
        runtimes=make_runtime,
    )
    await made.start()
    await made.agents.add("ada", "pull")
    await made.agents.add("bob", "handler")
    yield made
    await made.drain()
    await made.close()
    await store.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - whoever changes it does not know of this test
            await asyncio.sleep(0)


def to(agent_id: str, body: str = "hello") -> SendRequest:
    return SendRequest(source_agent_id="ada", to_agents=(agent_id,), content=Content(body=body))


@pytest.mark.req("ACK-2", "ACK-3", "ROUTE-10")
async def test_a_message_to_an_agent_of_the_same_gateway_is_answered(engine: Engine) -> None:
    """Local mail takes the same way as any other: outbox, inbox, agent, answer; and whoever waits hears of the end."""
    receipt = await engine.publisher.send(to("bob"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        (delivery,) = await engine.outcomes.ended(receipt.event_id)
    assert delivery.state is DeliveryState.REPLIED
    await until(lambda: len(engine.mailroom.inbox("ada")) == 1)
    (line,) = engine.mailroom.inbox("ada")
    message = await engine.mailroom.read("ada", line.event_id)
    assert message.content.body == "done: hello"


@pytest.mark.req("ACK-5")
async def test_who_sends_and_waits_hears_the_last_word_of_each_recipient(engine: Engine) -> None:
    """A message to two agents has ended when both have; a message that is refused is waited for by nobody."""
    await engine.agents.add("carl", "handler")
    request = SendRequest(source_agent_id="ada", to_agents=("bob", "carl"), content=Content(body="hello"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        receipt, last_words = await engine.outcomes.send(request)
    assert {agent: change.signal for agent, change in last_words.items()} == {
        "bob": DeliverySignal.REPLY,
        "carl": DeliverySignal.REPLY,
    }
    assert {each.state for each in engine.store.deliveries_of(receipt.event_id)} == {DeliveryState.REPLIED}
    with pytest.raises(Refusal):
        await engine.outcomes.send(to("nobody"))


@pytest.mark.req("ACK-5", "ROUTE-3")
async def test_who_sends_and_waits_hears_of_a_recipient_without_a_route(engine: Engine, room: FixedRoom) -> None:
    """An agent whose gateway is not in the mesh is a dead letter at once; nobody waits for its word."""
    room.add_agent("ghost", "node-gone")
    request = SendRequest(source_agent_id="ada", to_agents=("bob", "ghost"), content=Content(body="hello"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, last_words = await engine.outcomes.send(request)
    assert {agent: change.signal for agent, change in last_words.items()} == {
        "bob": DeliverySignal.REPLY,
        "ghost": DeliverySignal.UNROUTABLE,
    }


@pytest.mark.req("ACK-5")
async def test_the_word_of_an_agent_that_was_not_asked_ends_nothing(engine: Engine) -> None:
    """Whoever waits hears of the recipients only, whatever another agent's gateway says of the message."""
    await engine.agents.add("carl", "pull")
    waiting = asyncio.ensure_future(engine.outcomes.send(to("carl")))
    await until(lambda: bool(engine.mailroom.inbox("carl")))
    (line,) = engine.mailroom.inbox("carl")
    engine.wakeups.deliveries_heard(
        [Change(event_id=line.event_id, to_agent_id="eve", signal=DeliverySignal.PROCESSED, at_ms=0)]
    )
    await engine.mailroom.reply("carl", line.event_id, Content(body="yes"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, last_words = await waiting
    assert set(last_words) == {"carl"}


async def test_waiting_for_what_was_never_sent_is_refused(engine: Engine) -> None:
    """Nobody waits for ever for an event that does not exist."""
    with pytest.raises(Refusal) as refused:
        await engine.outcomes.ended(EventId("evt_01JZZZZZZZZZZZZZZZZZZZZZZZ"))
    assert refused.value.code is Code.NOT_FOUND


SAID = Result(kind=ResultKind.PROCESSED, reply=Content(body="yes"))
BY_HAND: list[Callable[[Engine, EventId], Awaitable[object]]] = [
    lambda engine, event_id: engine.mailroom.reply("carl", event_id, Content(body="yes")),
    lambda engine, event_id: engine.mailroom.dismiss("carl", event_id),
    lambda engine, event_id: engine.pull.settle(event_id, "carl", SAID),
]


@pytest.mark.parametrize("settle", BY_HAND, ids=["reply", "dismiss", "settle"])
async def test_who_gives_up_while_an_answer_is_written_has_given_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, settle: Callable[[Engine, EventId], Awaitable[object]]
) -> None:
    """An agent that is cut off during the commit has settled its mail, and the sender hears of it at once."""
    await engine.agents.add("carl", "pull")
    receipt = await engine.publisher.send(to("carl"))
    await until(lambda: bool(engine.mailroom.inbox("carl")))
    await engine.pull.fetch("carl")
    write = engine.store.settle

    def write_and_give_up(settlement: Settlement) -> Awaitable[bool]:
        settling.cancel()
        return write(settlement)

    monkeypatch.setattr(engine.store, "settle", write_and_give_up)
    settling = asyncio.ensure_future(settle(engine, receipt.event_id))
    with pytest.raises(asyncio.CancelledError):
        await settling
    async with asyncio.timeout(PATIENCE_SECONDS):
        (delivery,) = await engine.outcomes.ended(receipt.event_id)
    assert delivery.state in (DeliveryState.REPLIED, DeliveryState.PROCESSED)


@pytest.mark.req("OPS-6")
async def test_reading_never_consumes_and_a_reply_settles(engine: Engine) -> None:
    """A message can be read as often as one likes; the answer closes it, and a second answer is just another reply."""
    await engine.agents.add("carl", "pull")
    receipt = await engine.publisher.send(to("carl"))
    await until(lambda: bool(engine.mailroom.inbox("carl")))
    peeked = await engine.mailroom.read("carl", receipt.event_id, mark=False)
    assert not peeked.line.is_read
    read = await engine.mailroom.read("carl", receipt.event_id)
    assert (read.line.is_read, read.line.state) == (True, LedgerState.QUEUED)
    assert (await engine.mailroom.reply("carl", receipt.event_id, Content(body="yes"))).settled
    assert not (await engine.mailroom.reply("carl", receipt.event_id, Content(body="and yes"))).settled
    await until(lambda: len(engine.mailroom.inbox("ada")) == 2)
    assert engine.mailroom.inbox("carl", only_open=True) == []


async def test_an_inbox_of_nobody_is_refused(engine: Engine) -> None:
    """An unknown agent, or a message that did not come for it, is a refusal that says what there is."""
    with pytest.raises(Refusal, match="not an agent of this gateway") as refused:
        engine.mailroom.inbox("nobody")
    assert "ada, bob" in refused.value.hint
    with pytest.raises(Refusal, match="is not in the inbox of ada"):
        await engine.mailroom.read("ada", EventId("evt_01JZZZZZZZZZZZZZZZZZZZZZZZ"))


async def test_whoever_watches_sees_it_happen(engine: Engine) -> None:
    """A watcher sees the message, its ACKs, the reply and the states, and not a word of the content."""
    seen: list[str] = []
    watching = asyncio.Event()

    async def watch() -> None:
        happenings = engine.watchers.watch()
        watching.set()
        async for happening in happenings:
            assert "hello" not in repr(happening)
            seen.append(happening.what)
            if DeliveryState.REPLIED.value in seen:
                await happenings.aclose()
                return

    task = asyncio.ensure_future(watch())
    await watching.wait()
    await asyncio.sleep(0)
    await engine.publisher.send(to("bob"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await task
    assert {"message", "ack:accepted", "reply", "Replied"} <= set(seen)


@pytest.mark.req("ACK-4")
async def test_a_question_about_the_status_is_answered(engine: Engine) -> None:
    """A gateway that is asked how far an event is says so in its own outbox."""
    await engine.agents.add("carl", "pull")
    receipt = await engine.publisher.send(to("carl"))
    await until(lambda: bool(engine.mailroom.inbox("carl")))
    stored = engine.store.find_event(receipt.event_id)
    assert stored is not None
    request = engine.maker.signal(
        "status_request", to_nodes=(NODE,), ref=decode_event(stored.raw), details={"toAgentId": "carl"}
    )
    await engine.store.append([request])
    engine.wakeups.outbox_grew()

    def answers() -> list[SignalEvent]:
        events = [decode_event(each.raw) for each in engine.store.read_outbox(0).events]
        return [each for each in events if isinstance(each, SignalEvent) and each.payload.signal == STATUS]

    await until(lambda: bool(answers()))
    assert answers()[0].payload.details["state"] == "queued"


@pytest.mark.req("OBS-1", "OBS-2")
async def test_the_metrics_count_what_happened(engine: Engine) -> None:
    """After one answered message the reading has one delivery of it, its latency, and no lag."""
    receipt = await engine.publisher.send(to("bob"))
    await engine.outcomes.ended(receipt.event_id)
    reading = engine.metrics()
    assert reading.deliveries["Replied"] == 1
    assert reading.closed_latency["message"].count == 1
    assert reading.dead_letters == 0
