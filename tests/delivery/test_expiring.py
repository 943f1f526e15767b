"""Mail whose time runs out while nobody comes for it (ENV-7)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.delivery.expiring import Expiring
from agentpost.delivery.ports import Engagement, Result
from agentpost.delivery.pull import Pull
from agentpost.protocol.payloads import AckType
from agentpost.store.interface import Store
from agentpost.store.values import LedgerState, Outcome
from agentpost.testing import START_MS, MemoryStore
from tests.delivery.dispatching import AGAIN, DONE, NODE, Gateway, Scripted
from tests.store.building import EPOCH, open_sqlite

SOON_MS = START_MS + 1_000
PAGE_AND_MORE = 300


@pytest.fixture(params=["sqlite", "memory"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Gateway]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store: Store = open_sqlite(home) if request.param == "sqlite" else MemoryStore(node_id=NODE, epoch=EPOCH)
    gateway = Gateway(store)
    await gateway.hire("ada", Scripted(), kind="pull", leaseSeconds=60)
    yield gateway
    await gateway.close()
    await store.close()


def parts(gateway: Gateway) -> tuple[Pull, Expiring]:
    dispatcher = gateway.start()
    pull = Pull(store=gateway.store, turns=dispatcher.turns, clock=gateway.clock, wakeups=gateway.wakeups)
    return pull, Expiring(
        store=gateway.store, turns=dispatcher.turns, clock=gateway.clock, is_busy_with=dispatcher.is_busy_with
    )


@pytest.mark.req("ENV-7")
async def test_mail_that_nobody_fetches_ends_when_its_time_is_over(gateway: Gateway) -> None:
    """Its sender hears of it without anybody having come, once; what has more time, or no end, waits on."""
    pull, expiring = parts(gateway)
    short, longer, endless = await gateway.arrive(
        gateway.message(1, expires_at_ms=SOON_MS), gateway.message(2, expires_at_ms=SOON_MS + 1), gateway.message(3)
    )
    assert await expiring.look() == 0
    gateway.clock.advance(1_000)
    assert [await expiring.look(), await expiring.look()] == [1, 0]
    (ack,) = gateway.outcomes(short)
    assert (ack.payload.ack_type, ack.payload.reason) == (AckType.FAILED_TERMINAL, "expired")
    entry = gateway.store.ledger_entry(short.event_id, "ada")
    assert entry is not None
    assert (entry.state, entry.outcome, entry.attempts) == (LedgerState.SETTLED, Outcome.EXPIRED, 0)
    fetched = await pull.fetch("ada", limit=3)
    assert [each.event_id for each in fetched] == [longer.event_id, endless.event_id]


@pytest.mark.req("ENV-7")
async def test_mail_that_is_with_an_agent_stays_with_it(gateway: Gateway) -> None:
    """It was fetched in time, so its outcome counts, whenever it comes; given back, it is over."""
    pull, expiring = parts(gateway)
    kept, given_back = await gateway.arrive(*(gateway.message(number, expires_at_ms=SOON_MS) for number in (1, 2)))
    await pull.fetch("ada", limit=2)
    gateway.clock.advance(120_000)
    assert await expiring.look() == 0
    assert await pull.settle(kept.event_id, "ada", DONE)
    assert await pull.settle(given_back.event_id, "ada", AGAIN)
    assert await expiring.look() == 1
    outcomes = [[ack.payload.ack_type for ack in gateway.outcomes(event)] for event in (kept, given_back)]
    assert outcomes == [[AckType.PROCESSED], [AckType.FAILED_TERMINAL]]


@pytest.mark.req("ENV-7")
async def test_a_long_backlog_expires_as_a_whole(gateway: Gateway) -> None:
    """Also beyond one page."""
    _, expiring = parts(gateway)
    events = await gateway.arrive(*(gateway.message(number, expires_at_ms=SOON_MS) for number in range(1, 301)))
    gateway.clock.advance(1_000)
    assert await expiring.look() == 300
    assert all(gateway.is_settled(event) for event in events)


@pytest.mark.req("ENV-7")
async def test_mail_of_a_paused_agent_expires(gateway: Gateway) -> None:
    """It is handed to nobody, so nobody else would notice."""
    eve = Scripted()
    await gateway.hire("eve", eve)
    hired = gateway.store.local_agent("eve")
    assert hired is not None
    await gateway.store.put_agent(replace(hired, is_paused=True))
    _, expiring = parts(gateway)
    (event,) = await gateway.arrive(gateway.message(1, to=("eve",), expires_at_ms=SOON_MS))
    gateway.clock.advance(1_000)
    assert await expiring.look() == 1
    assert (len(gateway.outcomes(event, "eve")), eve.engaged) == (1, [])


@pytest.mark.req("ENV-7")
async def test_expired_mail_behind_a_long_turn_holds_back_no_expiry_of_other_agents(gateway: Gateway) -> None:
    """Over a page of one agent's mail waits in memory while a turn runs; mail of another agent ends all the same."""
    begun, release = asyncio.Event(), asyncio.Event()

    async def work(_engagement: Engagement) -> Result:
        begun.set()
        await release.wait()
        return DONE

    await gateway.hire("eve", Scripted(work))
    _, expiring = parts(gateway)
    await gateway.arrive(gateway.message(1, to=("eve",), expires_at_ms=SOON_MS))
    await begun.wait()
    *_, last = await gateway.arrive(
        *(gateway.message(number, to=("eve",), expires_at_ms=SOON_MS) for number in range(2, PAGE_AND_MORE)),
        gateway.message(PAGE_AND_MORE, expires_at_ms=SOON_MS + 1),
    )
    gateway.clock.advance(2_000)
    await expiring.look()
    release.set()
    assert [ack.payload.reason for ack in gateway.outcomes(last)] == ["expired"]


@pytest.mark.req("ENV-7")
@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_a_program_that_runs_gets_no_mail_that_expired_on_the_way(gateway: Gateway, is_idempotent: bool) -> None:
    """Expired when it arrives, while the agent is idle and could have it at once: it is ended, not handed over."""
    eve = Scripted(is_idempotent=is_idempotent)
    await gateway.hire("eve", eve)
    gateway.start()
    (first,) = await gateway.arrive(gateway.message(1, to=("eve",)))
    await gateway.settled(first, agent_id="eve")
    gateway.clock.advance(1_000)
    late, good = await gateway.arrive(
        gateway.message(2, to=("eve",), expires_at_ms=SOON_MS), gateway.message(3, to=("eve",))
    )
    await gateway.settled(late, good, agent_id="eve")
    assert eve.bodies == ["bob 1", "bob 3"]
    assert [ack.payload.reason for ack in gateway.outcomes(late, "eve")] == ["expired"]


@pytest.mark.req("ENV-7")
@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_a_program_that_runs_gets_no_mail_that_expired_while_it_worked(
    gateway: Gateway, is_idempotent: bool
) -> None:
    """What waits behind a long turn, in time when it came, is ended when its turn comes too late."""
    begun, release = asyncio.Event(), asyncio.Event()

    async def work() -> Result:
        begun.set()
        await release.wait()
        return DONE

    eve = Scripted(
        lambda engagement: work() if engagement.content.body == "bob 2" else DONE, is_idempotent=is_idempotent
    )
    await gateway.hire("eve", eve)
    gateway.start()
    (first,) = await gateway.arrive(gateway.message(1, to=("eve",)))
    await gateway.settled(first, agent_id="eve")
    long, late, good = await gateway.arrive(
        gateway.message(2, to=("eve",)),
        gateway.message(3, to=("eve",), expires_at_ms=SOON_MS),
        gateway.message(4, to=("eve",)),
    )
    await begun.wait()
    gateway.clock.advance(1_000)
    release.set()
    await gateway.settled(long, late, good, agent_id="eve")
    assert eve.bodies == ["bob 1", "bob 2", "bob 4"]
    assert [ack.payload.reason for ack in gateway.outcomes(late, "eve")] == ["expired"]
