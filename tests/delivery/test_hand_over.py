"""Mail on its way to a caller that goes away: what it never got was not handed over."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentpost.delivery.dispatch import Resolution
from agentpost.delivery.pull import Pull
from agentpost.protocol.ids import EventId
from agentpost.store.interface import Store
from agentpost.store.values import LedgerEntry, LedgerState
from agentpost.testing import MemoryStore
from tests.delivery.dispatching import AGAIN, DONE, NODE, Gateway, Scripted
from tests.store.building import EPOCH, open_sqlite

LEASE_MS = 60_000


@pytest.fixture(params=["sqlite", "memory"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Gateway]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store: Store = open_sqlite(home) if request.param == "sqlite" else MemoryStore(node_id=NODE, epoch=EPOCH)
    gateway = Gateway(store)
    await gateway.hire("ada", Scripted(), kind="pull", leaseSeconds=LEASE_MS // 1000)
    yield gateway
    await gateway.close()
    await store.close()


def a_pull(gateway: Gateway) -> Pull:
    return Pull(store=gateway.store, turns=gateway.start().turns, clock=gateway.clock, wakeups=gateway.wakeups)


def entry_of(gateway: Gateway, event_id: EventId) -> LedgerEntry:
    entry = gateway.store.ledger_entry(event_id, "ada")
    assert entry is not None
    return entry


@pytest.mark.req("RTY-3", "RTY-4")
async def test_mail_that_did_not_reach_its_caller_was_not_handed_over(gateway: Gateway) -> None:
    """It costs no attempt, and the next caller gets it before later mail."""
    pull = a_pull(gateway)
    first, second = await gateway.arrive(gateway.message(1), gateway.message(2))
    fresh = entry_of(gateway, first.event_id)
    lost = await pull.hand_over("ada")
    assert [each.event_id for each in lost.engagements] == [first.event_id]
    lost.connection_lost()
    fetched = await pull.fetch("ada", limit=2)
    assert [(each.event_id, each.attempt) for each in fetched] == [(first.event_id, 1), (second.event_id, 1)]
    # Too late, and to no effect.
    lost.connection_lost()
    await pull.close()
    assert entry_of(gateway, first.event_id).state is LedgerState.ENGAGED
    assert fresh.attempts == 0


@pytest.mark.req("RTY-3", "RTY-4")
async def test_who_waits_gets_what_another_callers_connection_lost(gateway: Gateway) -> None:
    """A caller that dies with mail on its way makes room for one that waits, without the time of a lease."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    lost = await pull.hand_over("ada")
    waiting = asyncio.ensure_future(pull.fetch("ada", wait_seconds=300))
    await asyncio.sleep(0)
    lost.connection_lost()
    (fetched,) = await asyncio.wait_for(waiting, 30)
    assert (fetched.event_id, fetched.attempt) == (event.event_id, 1)


@pytest.mark.req("RTY-3", "RTY-4")
async def test_a_caller_that_is_cancelled_while_its_attempt_is_written_gets_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait ends during the commit: what the commit handed over is undone."""
    pull = a_pull(gateway)
    first, second = await gateway.arrive(gateway.message(1), gateway.message(2))
    engage = gateway.store.engage

    def engage_and_cancel(*args: Any, **named: Any) -> Any:
        asyncio.get_running_loop().call_soon(fetching.cancel)
        return engage(*args, **named)

    monkeypatch.setattr(gateway.store, "engage", engage_and_cancel)
    fetching = asyncio.ensure_future(pull.fetch("ada", limit=2))
    with pytest.raises(asyncio.CancelledError):
        await fetching
    monkeypatch.setattr(gateway.store, "engage", engage)
    fetched = await pull.fetch("ada", limit=2, wait_seconds=30)
    fetched += await pull.fetch("ada", limit=2 - len(fetched), wait_seconds=30) if len(fetched) < 2 else []
    assert [(each.event_id, each.attempt) for each in fetched] == [(first.event_id, 1), (second.event_id, 1)]


@pytest.mark.req("RTY-3")
async def test_mail_that_its_caller_confirmed_stays_with_it(gateway: Gateway) -> None:
    """From then on the lease counts, whatever becomes of the connection."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    handed = await pull.hand_over("ada")
    assert pull.took("ada", [event.event_id]) == [event.event_id]
    assert handed.done.is_set()
    handed.connection_lost()
    await pull.close()
    assert await pull.fetch("ada") == []
    assert await pull.settle(event.event_id, "ada", DONE)


@pytest.mark.req("RTY-4")
async def test_an_attempt_whose_agent_dies_with_it_is_repeated_soon(gateway: Gateway) -> None:
    """It counts, so that mail that kills its agent ends; the next one comes after the pause of any failed attempt."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    for attempt in range(1, 9):
        handed = await pull.hand_over("ada")
        assert [each.attempt for each in handed.engagements] == [attempt]
        assert pull.took("ada", [event.event_id], hold=True) == [event.event_id]
        assert not handed.done.is_set()
        handed.connection_lost()
        await pull.close()
        assert await pull.fetch("ada") == []
        assert "connection ended" in (entry_of(gateway, event.event_id).error or "")
        gateway.clock.advance(300_000)
    assert [ack.payload.reason for ack in gateway.outcomes(event)] == ["max_attempts"]


@pytest.mark.req("RTY-3")
async def test_mail_that_was_settled_is_not_given_back(gateway: Gateway) -> None:
    """An agent that settles what it holds, and hangs up, has settled it."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    handed = await pull.hand_over("ada")
    pull.took("ada", [event.event_id], hold=True)
    assert await pull.settle(event.event_id, "ada", DONE)
    assert handed.done.is_set()
    handed.connection_lost()
    await pull.close()
    assert len(gateway.outcomes(event)) == 1


@pytest.mark.req("RTY-3")
async def test_a_connection_that_is_lost_late_undoes_no_later_attempt(gateway: Gateway) -> None:
    """A caller that was silent for longer than its lease has nothing to give back: another one has the mail."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    silent = await pull.hand_over("ada")
    gateway.clock.advance(LEASE_MS)
    (again,) = await pull.fetch("ada")
    assert again.attempt == 2
    silent.connection_lost()
    await pull.close()
    assert await pull.fetch("ada") == []
    assert await pull.settle(event.event_id, "ada", DONE)


@pytest.mark.req("RTY-3")
async def test_a_gateway_that_stops_keeps_what_callers_have(gateway: Gateway) -> None:
    """Over the restart a held message stays with its agent for the lease; what nobody confirmed is free."""
    pull = a_pull(gateway)
    held, unread = await gateway.arrive(gateway.message(1), gateway.message(2))
    first, second = await pull.hand_over("ada"), await pull.hand_over("ada")
    for each in (first, second):
        each.is_held_open = True
    pull.took("ada", [held.event_id], hold=True)
    pull.release()
    await pull.close()
    pull = a_pull(gateway)
    assert [each.event_id for each in await pull.fetch("ada", limit=5)] == [unread.event_id]
    assert await pull.settle(held.event_id, "ada", DONE)


@pytest.mark.req("RTY-3")
async def test_a_lease_does_not_follow_a_clock_that_is_set(gateway: Gateway) -> None:
    """The time of day goes back an hour, or ahead: mail whose lease is over can be fetched again, and not before."""
    pull = a_pull(gateway)
    back, ahead = await gateway.arrive(gateway.message(1), gateway.message(2))
    await pull.fetch("ada")
    gateway.clock.step_back(3_600_000)
    gateway.clock.advance(LEASE_MS - 1)
    assert [each.event_id for each in await pull.fetch("ada")] == [ahead.event_id]
    gateway.clock.advance(1)
    assert [(each.event_id, each.attempt) for each in await pull.fetch("ada")] == [(back.event_id, 2)]
    gateway.clock.step_ahead(3_600_000)
    assert await pull.fetch("ada") == []
    gateway.clock.advance(LEASE_MS - 1)
    assert [(each.event_id, each.attempt) for each in await pull.fetch("ada")] == [(ahead.event_id, 2)]


@pytest.mark.req("RTY-3")
async def test_a_lease_from_before_a_restart_follows_no_clock_that_is_set_after_it(gateway: Gateway) -> None:
    """What is left of it is read from the ledger once; an hour back makes it no hour longer."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    await pull.fetch("ada")
    pull = a_pull(gateway)
    assert await pull.fetch("ada") == []
    gateway.clock.step_back(3_600_000)
    gateway.clock.advance(LEASE_MS)
    assert [(each.event_id, each.attempt) for each in await pull.fetch("ada")] == [(event.event_id, 2)]


@pytest.mark.req("RTY-3")
async def test_a_lease_of_an_agent_that_was_changed_follows_no_clock_that_is_set(gateway: Gateway) -> None:
    """Its new program gets what had been fetched when the lease is over, also if the time of day went back."""
    dispatcher = gateway.start()
    pull = Pull(store=gateway.store, turns=dispatcher.turns, clock=gateway.clock, wakeups=gateway.wakeups)
    (event,) = await gateway.arrive(gateway.message(1))
    await pull.fetch("ada")
    program = Scripted(is_idempotent=True)
    await gateway.hire("ada", program)
    dispatcher.refresh()
    (other,) = await gateway.arrive(gateway.message(2))
    await gateway.settled(other)
    gateway.clock.step_back(3_600_000)
    gateway.pass_time(LEASE_MS)
    await gateway.settled(event)
    assert program.bodies == ["bob 2", "bob 1"]


@pytest.mark.req("RTY-4")
@pytest.mark.parametrize("is_pulling", [True, False], ids=["pull", "program"])
async def test_a_retry_from_before_a_restart_waits_no_longer_than_any_retry(gateway: Gateway, is_pulling: bool) -> None:
    """A gateway is started anew after its clock went back an hour: what failed once is tried again in minutes."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    await pull.fetch("ada")
    await pull.settle(event.event_id, "ada", AGAIN)
    gateway.clock.step_back(3_600_000)
    await gateway.close()
    if is_pulling:
        pull = a_pull(gateway)
        assert await pull.fetch("ada") == []
        gateway.clock.advance(300_000)
        assert [each.attempt for each in await pull.fetch("ada")] == [2]
        return
    program = Scripted()
    await gateway.hire("ada", program)
    gateway.start()
    (other,) = await gateway.arrive(gateway.message(2, sender="cyd"))
    await gateway.settled(other)
    gateway.pass_time(300_000)
    await gateway.settled(event)
    assert program.bodies == ["cyd 2", "bob 1"]


@pytest.mark.req("RTY-3")
async def test_mail_that_an_operator_has_tried_again_is_there_at_once(gateway: Gateway) -> None:
    """Also if the time of day goes back an hour right after."""
    dispatcher = gateway.start()
    pull = Pull(store=gateway.store, turns=dispatcher.turns, clock=gateway.clock, wakeups=gateway.wakeups)
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.store.engage(event.event_id, "ada", at_ms=gateway.clock.now_ms())
    await dispatcher.resolve(event.event_id, "ada", Resolution.RETRY, actor="operator")
    gateway.clock.step_back(3_600_000)
    assert [each.attempt for each in await pull.fetch("ada")] == [2]
