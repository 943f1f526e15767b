"""What is written to the outbox is announced, also if its caller goes away meanwhile."""

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import agentpost
from agentpost.delivery.dispatch import Resolution
from agentpost.delivery.outbox import OutboxWriter
from agentpost.protocol.envelope import Event
from agentpost.protocol.payloads import AckType
from agentpost.store.interface import Store
from agentpost.store.values import Outcome, Settlement
from agentpost.testing import MemoryStore
from tests.delivery.dispatching import NODE, Gateway, Scripted
from tests.store.building import EPOCH, open_sqlite

Write = Callable[[OutboxWriter, Gateway, Sequence[Event]], Awaitable[object]]


@pytest.fixture(params=["sqlite", "memory"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Gateway]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store: Store = open_sqlite(home) if request.param == "sqlite" else MemoryStore(node_id=NODE, epoch=EPOCH)
    gateway = Gateway(store)
    yield gateway
    await gateway.close()
    await store.close()


def settlement(gateway: Gateway, event: Event) -> Settlement:
    ack = gateway.maker.ack(event, AckType.PROCESSED, agent_id="ada")
    return Settlement(
        event_id=event.event_id,
        to_agent_id="ada",
        outcome=Outcome.PROCESSED,
        at_ms=gateway.clock.now_ms(),
        events=(ack,),
    )


WRITES: dict[str, Write] = {
    "append": lambda outbox, gateway, events: outbox.append(
        [gateway.maker.ack(each, AckType.PROCESSED, agent_id="ada") for each in events]
    ),
    "settle": lambda outbox, gateway, events: outbox.settle(settlement(gateway, events[0])),
    "settle_all": lambda outbox, gateway, events: outbox.settle_all([settlement(gateway, each) for each in events]),
}


async def cancelled_during_the_write(
    store: Store, name: str, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[object]]
) -> None:
    """Run the work, and cancel it while the store is about to write."""
    real = getattr(store, name)

    def write(*args: Any, **named: Any) -> Any:
        asyncio.get_running_loop().call_soon(task.cancel)
        return real(*args, **named)

    monkeypatch.setattr(store, name, write)
    task = asyncio.ensure_future(work())
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.req("PIPE-3")
@pytest.mark.parametrize("name", WRITES)
async def test_a_write_whose_caller_goes_away_is_announced(
    gateway: Gateway, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is cancelled during the commit: what is durable then is sent on at once, and not at the next write."""
    await gateway.hire("ada", Scripted(), kind="pull")
    events = await gateway.arrive(gateway.message(1), gateway.message(2))
    before, told = gateway.store.head().seq, asyncio.Event()
    gateway.wakeups.listen(outbox=lambda _: told.set())
    outbox = OutboxWriter(gateway.store, gateway.wakeups)
    await cancelled_during_the_write(gateway.store, name, monkeypatch, lambda: WRITES[name](outbox, gateway, events))
    async with asyncio.timeout(30):
        await told.wait()
    assert gateway.store.head().seq > before


@pytest.mark.req("ACK-3")
async def test_a_resolve_whose_caller_goes_away_is_told_to_the_sender(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator decides about an unclear message and its connection breaks: the outcome leaves, the audit has it."""
    dispatcher = gateway.start()
    await gateway.hire("ada", Scripted(), kind="pull")
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.store.engage(event.event_id, "ada", at_ms=gateway.clock.now_ms())
    told = asyncio.Event()
    gateway.wakeups.listen(outbox=lambda _: told.set())
    await cancelled_during_the_write(
        gateway.store,
        "settle",
        monkeypatch,
        lambda: dispatcher.resolve(event.event_id, "ada", Resolution.SETTLE, actor="operator"),
    )
    async with asyncio.timeout(30):
        await told.wait()
        while not gateway.store.audit_log():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)
    assert gateway.is_settled(event)
    assert [ack.payload.ack_type for ack in gateway.outcomes(event)] == [AckType.PROCESSED]


def test_whatever_is_said_goes_through_the_writer_of_the_outbox() -> None:
    """Nothing else appends by itself: it would have to survive its caller, too, and to announce what it wrote."""
    source = Path(agentpost.__file__).parent
    found = {
        path.relative_to(source).as_posix()
        for folder in ("delivery", "work", "edges")
        for path in (source / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "settle", "settle_all")
        and ast.unparse(call.func.value).endswith("store")
    }
    # The second has a task of its own, which no caller cancels; the third keeps notes, and says nothing.
    assert found == {"delivery/outbox.py", "delivery/gathering.py", "delivery/findings.py"}
