"""An agent of the mesh that reads a mailbox: its acks and nacks settle what it was sent."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.edges.runtimes.mailbox import MailboxOptions, MailboxRuntime
from agentpost.mailbox.file import FileMailbox
from agentpost.protocol.ids import CorrId, EventId
from agentpost.protocol.payloads import AckType, Kind
from agentpost.testing import FakeClock, MemoryStore
from tests.delivery.dispatching import EXACT, NODE, Gateway, Scripted, is_postponed, until

EVENT = EventId("evt_01ARZ3NDEKTSV4RRFFQ69G5FAV")
ENGAGEMENT = Engagement(
    event_id=EVENT,
    corr_id=CorrId("corr_01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    kind=Kind.MESSAGE,
    to_agent_id="builder",
    from_agent_id="ada",
    from_node_id="laptop",
    created_at="2026-02-25T16:22:10.000Z",
    attempt=1,
    content=Content(subject="build", body="make all", context={"branch": "main"}),
)


@pytest.mark.req("MBX-5")
async def test_an_ack_settles_the_mesh_message(tmp_path: Path, clock: FakeClock) -> None:
    """The agent finds the body as the payload and an address to answer to; its ack is the outcome."""
    runtime = MailboxRuntime(MailboxOptions(file=str(tmp_path / "mail.db")), clock=clock)
    turn = asyncio.ensure_future(runtime.engage(ENGAGEMENT))
    async with FileMailbox.open(tmp_path / "mail.db", clock=clock) as mailbox:
        got = await mailbox.dequeue("builder", wait_seconds=30)
        assert got is not None
        assert (got.msg_id, got.sender, got.payload) == (EVENT, "ada@laptop", "make all")
        assert got.extra["subject"] == "build"
        assert got.extra["context"] == {"branch": "main"}
        assert not turn.done()
        await mailbox.ack("builder", EVENT)
        assert (await turn).kind is ResultKind.PROCESSED
        # After a crash it is handed over again, and the agent is not bothered a second time.
        assert (await runtime.engage(ENGAGEMENT)).kind is ResultKind.PROCESSED
        assert await mailbox.dequeue("builder") is None
    await runtime.close()


@pytest.mark.req("RTY-4")
async def test_what_no_mailbox_can_hold_has_failed(tmp_path: Path, clock: FakeClock) -> None:
    """A body above a mailbox message's size will never fit: the mesh is told so, and does not try again."""
    runtime = MailboxRuntime(MailboxOptions(file=str(tmp_path / "mail.db")), clock=clock)
    content = replace(ENGAGEMENT.content, body="x" * 2_000_000)
    result = await asyncio.wait_for(runtime.engage(replace(ENGAGEMENT, content=content)), 30)
    assert result.kind is ResultKind.FAILED
    assert "bytes" in (result.error or "")
    await runtime.close()


@pytest.mark.req("MBX-5", "RTY-4")
async def test_a_dead_letter_of_the_mailbox_has_failed(tmp_path: Path, clock: FakeClock) -> None:
    """Nacked until the mailbox gives up: the mesh is told that it failed, with the agent's reason."""
    runtime = MailboxRuntime(MailboxOptions(file=str(tmp_path / "mail.db"), session="desk"), clock=clock)
    turn = asyncio.ensure_future(runtime.engage(ENGAGEMENT))
    async with FileMailbox.open(tmp_path / "mail.db", clock=clock) as mailbox:
        for _ in range(4):
            assert await mailbox.dequeue("desk", wait_seconds=30) is not None
            await mailbox.nack("desk", EVENT, "no compiler")
            clock.advance(60_000)
        result = await turn
    assert result.kind is ResultKind.FAILED
    assert "no compiler" in (result.error or "")
    await runtime.close()


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    store = MemoryStore(node_id=NODE, epoch="first")
    gateway = Gateway(store)
    yield gateway
    await gateway.close()
    await store.close()


def a_runtime(tmp_path: Path, clock: FakeClock) -> MailboxRuntime:
    return MailboxRuntime(MailboxOptions(file=str(tmp_path / "mail.db")), clock=clock)


@pytest.mark.req("RTY-3")
async def test_a_changed_agent_does_not_wait_for_its_mailbox(gateway: Gateway, tmp_path: Path) -> None:
    """Mail in a mailbox that nobody reads is unclear once the agent has another runtime, which has the rest at once."""
    await gateway.hire("ada", a_runtime(tmp_path, gateway.clock), kind="mailbox")
    dispatcher = gateway.start()
    (first,) = await gateway.arrive(gateway.message(1))
    async with FileMailbox.open(tmp_path / "mail.db", clock=gateway.clock) as mailbox:
        assert await mailbox.dequeue("ada", wait_seconds=30) is not None
    program = Scripted()
    await gateway.hire("ada", program, kind="program")
    dispatcher.refresh()
    (second,) = await gateway.arrive(gateway.message(2))
    await gateway.settled(second)
    assert program.bodies == ["bob 2"]
    await until(lambda: [each.subject for each in gateway.store.incidents()] == [f"{first.event_id}/ada"])


@pytest.mark.req("RTY-3", "MBX-5")
async def test_a_gateway_that_stops_does_not_wait_for_a_mailbox(gateway: Gateway, tmp_path: Path) -> None:
    """What was handed over stays in the mailbox, and what the agent says of it is heard after the next start."""
    await gateway.hire("ada", a_runtime(tmp_path, gateway.clock), kind="mailbox")
    dispatcher = gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    async with FileMailbox.open(tmp_path / "mail.db", clock=gateway.clock) as mailbox:
        assert await mailbox.dequeue("ada", wait_seconds=30) is not None
        assert await dispatcher.drain(timeout_seconds=5)
        await dispatcher.close()
        await mailbox.ack("ada", event.event_id)
        gateway.runtimes["ada"] = a_runtime(tmp_path, gateway.clock)
        gateway.start()
        await gateway.settled(event)
        assert await mailbox.dequeue("ada") is None


@pytest.mark.req("RTY-4")
@pytest.mark.parametrize("is_drained", [True, False], ids=["stopped", "killed"])
async def test_mail_that_waits_in_a_mailbox_outlives_any_number_of_restarts(
    gateway: Gateway, tmp_path: Path, is_drained: bool
) -> None:
    """A gateway that is started ten times while nobody reads the mailbox has tried once, and then hears the ack."""
    await gateway.hire("ada", a_runtime(tmp_path, gateway.clock), kind="mailbox")
    dispatcher = gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    async with FileMailbox.open(tmp_path / "mail.db", clock=gateway.clock) as mailbox:
        for _ in range(10):
            await until(lambda: _attempts(gateway, event.event_id) == 1)
            if is_drained:
                assert await dispatcher.drain(timeout_seconds=5)
            await dispatcher.close()
            runtime = gateway.runtimes["ada"] = _Counted(a_runtime(tmp_path, gateway.clock))
            dispatcher = gateway.start()
            await until(lambda runtime=runtime: runtime.attempts or gateway.is_settled(event))
            assert runtime.attempts == [1]
        assert not gateway.is_settled(event)
        assert await mailbox.dequeue("ada", wait_seconds=30) is not None
        await mailbox.ack("ada", event.event_id)
        await gateway.settled(event)
    assert _attempts(gateway, event.event_id) == 1
    assert [ack.payload.ack_type for ack in gateway.outcomes(event)] == [AckType.PROCESSED]


@pytest.mark.req("RTY-4")
async def test_a_mailbox_that_cannot_be_opened_after_a_restart_is_a_failed_attempt(
    gateway: Gateway, tmp_path: Path
) -> None:
    """What goes on is no attempt; what has to be tried again is, and ends when there are enough of them."""
    await gateway.hire("ada", a_runtime(tmp_path, gateway.clock), kind="mailbox")
    dispatcher = gateway.start(policy=EXACT)
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: _attempts(gateway, event.event_id) == 1)
    await dispatcher.drain(timeout_seconds=5)
    await dispatcher.close()
    gateway.runtimes["ada"] = MailboxRuntime(MailboxOptions(file=str(tmp_path)), clock=gateway.clock)
    gateway.start(policy=EXACT)
    for attempt in (1, 2):
        await until(lambda attempt=attempt: is_postponed(gateway, event.event_id, attempt))
        gateway.pass_time(60_000)
    await gateway.settled(event)
    assert _attempts(gateway, event.event_id) == EXACT.max_attempts


class _Counted:
    """A mailbox runtime that notes which attempts it was asked for."""

    is_idempotent = True

    def __init__(self, inner: MailboxRuntime) -> None:
        self._inner = inner
        self.max_concurrent = inner.max_concurrent
        self.release, self.ask, self.close = inner.release, inner.ask, inner.close
        self.attempts: list[int] = []

    async def engage(self, engagement: Engagement) -> Result:
        self.attempts.append(engagement.attempt)
        return await self._inner.engage(engagement)


def _attempts(gateway: Gateway, event_id: EventId) -> int:
    entry = gateway.store.ledger_entry(event_id, "ada")
    assert entry is not None
    return entry.attempts
