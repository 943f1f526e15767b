"""Agents that fetch their mail by themselves, under a lease."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.delivery.dispatch import Dispatcher
from agentpost.delivery.ports import Result, ResultKind
from agentpost.delivery.pull import Pull
from agentpost.protocol.errors import Code
from agentpost.protocol.payloads import AckType
from agentpost.store.interface import Store
from agentpost.store.values import LedgerState, Outcome
from agentpost.testing import START_MS, MemoryStore
from tests.delivery.dispatching import AGAIN, DONE, NODE, Gateway, Scripted, replied, turn_the_loop, until
from tests.store.building import EPOCH, open_sqlite, refused

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


def pull_beside(gateway: Gateway, dispatcher: Dispatcher) -> Pull:
    return Pull(
        store=gateway.store,
        turns=dispatcher.turns,
        clock=gateway.clock,
        wakeups=gateway.wakeups,
        is_busy_with=dispatcher.is_busy_with,
    )


@pytest.mark.req("ACK-2")
async def test_an_agent_fetches_works_and_settles(gateway: Gateway) -> None:
    """What is fetched comes oldest first, and is settled with a reply like any other turn."""
    pull = a_pull(gateway)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 4)))
    first, second = await pull.fetch("ada", limit=2)
    assert [first.content.body, second.content.body] == ["bob 1", "bob 2"]
    assert first.attempt == 1
    assert await pull.settle(first.event_id, "ada", replied("done"))
    assert [ack.payload.ack_type for ack in gateway.outcomes(events[0])] == [AckType.PROCESSED]
    assert len(gateway.replies(events[0])) == 1
    (third,) = await pull.fetch("ada", limit=10)
    assert third.content.body == "bob 3"
    assert await pull.fetch("ada") == []


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
async def test_mail_that_was_fetched_stays_with_an_agent_that_is_changed(gateway: Gateway, is_restarted: bool) -> None:
    """Its new program gets everything else at once, and what is with the agent only once the lease is over."""
    dispatcher = gateway.start()
    pull = pull_beside(gateway, dispatcher)
    first, second = await gateway.arrive(gateway.message(1), gateway.message(2))
    assert [each.event_id for each in await pull.fetch("ada", 2)] == [first.event_id, second.event_id]
    program = Scripted(is_idempotent=True)
    await gateway.hire("ada", program)
    if is_restarted:
        await dispatcher.close()
        dispatcher = gateway.start()
        pull = pull_beside(gateway, dispatcher)
    dispatcher.refresh()
    (third,) = await gateway.arrive(gateway.message(3))
    await gateway.settled(third)
    # Who works on it settles it, or says that it needs more time.
    assert await pull.settle(first.event_id, "ada", replied("done"))
    await pull.extend(second.event_id, "ada", seconds=2 * LEASE_MS / 1000)
    gateway.pass_time(2 * LEASE_MS - 1)
    await turn_the_loop()
    assert program.bodies == ["bob 3"]
    gateway.pass_time(1)
    await gateway.settled(second)
    assert [(each.content.body, each.attempt) for each in program.engaged] == [("bob 3", 1), ("bob 2", 2)]
    assert len(gateway.replies(first)) == 1


@pytest.mark.req("RTY-3")
async def test_mail_that_a_changed_agent_settles_in_time_is_no_incident(gateway: Gateway) -> None:
    """A program that must get nothing twice is not asked about what the agent had fetched, settled or given back."""
    dispatcher = gateway.start()
    pull = pull_beside(gateway, dispatcher)
    done, again, lost = await gateway.arrive(*(gateway.message(number) for number in (1, 2, 3)))
    await pull.fetch("ada", 3)
    program = Scripted()
    await gateway.hire("ada", program)
    dispatcher.refresh()
    (last,) = await gateway.arrive(gateway.message(4))
    await gateway.settled(last)
    assert gateway.store.incidents() == []
    assert await pull.settle(done.event_id, "ada", DONE)
    assert await pull.settle(again.event_id, "ada", AGAIN)
    gateway.pass_time(LEASE_MS)
    await gateway.settled(done, again)
    # What it neither settled nor gave back may be done: nobody knows, and an operator decides.
    await until(lambda: [each.subject for each in gateway.store.incidents()] == [f"{lost.event_id}/ada"])
    assert program.bodies == ["bob 4", "bob 2"]


@pytest.mark.req("RTY-3")
async def test_whoever_settles_first_has_settled(gateway: Gateway) -> None:
    """A second word on the same mail changes nothing."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    await pull.fetch("ada")
    assert await pull.settle(event.event_id, "ada", DONE)
    assert not await pull.settle(event.event_id, "ada", Result(kind=ResultKind.FAILED, error="late"))
    assert len(gateway.outcomes(event)) == 1


async def test_mail_can_be_fetched_again_when_its_lease_is_over(gateway: Gateway) -> None:
    """An agent that crashed with its mail is made up for by the next one that fetches."""
    pull = a_pull(gateway)
    await gateway.arrive(gateway.message(1))
    (first,) = await pull.fetch("ada")
    gateway.clock.advance(LEASE_MS - 1)
    assert await pull.fetch("ada") == []
    gateway.clock.advance(1)
    (again,) = await pull.fetch("ada")
    assert (again.event_id, again.attempt) == (first.event_id, 2)


async def test_a_lease_can_be_extended_while_it_lasts(gateway: Gateway) -> None:
    """Who works long says so in time."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    with refused(Code.INVALID_TRANSITION):
        await pull.extend(event.event_id, "ada", seconds=10)
    await pull.fetch("ada")
    gateway.clock.advance(LEASE_MS - 1)
    assert await pull.extend(event.event_id, "ada", seconds=100) == gateway.clock.now_ms() + 100_000
    gateway.clock.advance(99_999)
    assert await pull.fetch("ada") == []
    gateway.clock.advance(1)
    with refused(Code.INVALID_TRANSITION):
        await pull.extend(event.event_id, "ada", seconds=10)
    assert len(await pull.fetch("ada")) == 1
    with refused(Code.INVALID_FIELD):
        await pull.extend(event.event_id, "ada", seconds=0)


async def test_two_who_fetch_at_once_share_the_mail(gateway: Gateway) -> None:
    """Nothing is handed out twice within a lease."""
    pull = a_pull(gateway)
    await gateway.arrive(*(gateway.message(number) for number in range(1, 31)))
    several = await asyncio.gather(*(pull.fetch("ada", limit=10) for _ in range(4)))
    fetched = [engagement.event_id for some in several for engagement in some]
    assert len(fetched) == len(set(fetched)) == 30


@pytest.mark.req("RTY-4")
async def test_mail_that_is_given_back_waits_and_is_given_up_after_the_last_attempt(gateway: Gateway) -> None:
    """An agent may give mail back; after the attempts of the policy its sender hears `failed_terminal`."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    attempts = 0
    while not gateway.is_settled(event):
        (engagement,) = await pull.fetch("ada")
        attempts += 1
        assert engagement.attempt == attempts
        assert await pull.settle(event.event_id, "ada", AGAIN)
        assert await pull.fetch("ada") == []
        with_it = gateway.store.ledger_entry(event.event_id, "ada")
        assert with_it is not None
        if with_it.state is LedgerState.QUEUED:
            with refused(Code.INVALID_TRANSITION):
                await pull.settle(event.event_id, "ada", DONE)
        gateway.clock.advance(300_000)
    assert attempts == 8
    (ack,) = gateway.outcomes(event)
    assert (ack.payload.ack_type, ack.payload.reason) == (AckType.FAILED_TERMINAL, "max_attempts")


@pytest.mark.req("RTY-4")
async def test_mail_that_nobody_ever_settles_is_given_up(gateway: Gateway) -> None:
    """Leases that run out count as attempts."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    fetched = 0
    while await pull.fetch("ada"):
        fetched += 1
        gateway.clock.advance(LEASE_MS)
    assert fetched == 8
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert entry.outcome is Outcome.FAILED_TERMINAL


@pytest.mark.req("ENV-7")
async def test_what_expired_is_not_fetched(gateway: Gateway) -> None:
    """The search goes on behind mail that ended while it waited."""
    pull = a_pull(gateway)
    expired, good = await gateway.arrive(
        gateway.message(1, expires_at_ms=START_MS + 1_000), gateway.message(2, expires_at_ms=START_MS + 9_000)
    )
    gateway.clock.advance(1_000)
    assert [engagement.event_id for engagement in await pull.fetch("ada", limit=5)] == [good.event_id]
    assert [ack.payload.reason for ack in gateway.outcomes(expired)] == ["expired"]


async def test_a_restart_keeps_the_leases(gateway: Gateway) -> None:
    """What was fetched before the gateway restarted is still with its agent, and can be settled."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    await pull.fetch("ada")
    await gateway.close()
    pull = a_pull(gateway)
    assert await pull.fetch("ada") == []
    assert await pull.settle(event.event_id, "ada", DONE)


async def test_only_agents_that_pull_can_fetch(gateway: Gateway) -> None:
    """An agent with another runtime is engaged by it, and mail has one way to an agent."""
    await gateway.hire("eve", Scripted())
    pull = a_pull(gateway)
    with refused(Code.CONFLICT):
        await pull.fetch("eve")
    with refused(Code.NOT_FOUND):
        await pull.fetch("nobody")
    with refused(Code.INVALID_FIELD):
        await pull.fetch("ada", limit=0)
    with refused(Code.NOT_FOUND):
        await pull.settle(gateway.message(9).event_id, "ada", DONE)


async def test_a_restart_keeps_a_lease_that_was_extended(gateway: Gateway) -> None:
    """Who said in time that it works long need not say it again because the gateway was started anew."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    await pull.fetch("ada")
    over_at_ms = await pull.extend(event.event_id, "ada", seconds=10 * LEASE_MS / 1000)
    assert await pull.extend(event.event_id, "ada", seconds=1) == over_at_ms
    await gateway.close()
    pull = a_pull(gateway)
    gateway.clock.advance(10 * LEASE_MS - 1)
    assert await pull.fetch("ada") == []
    gateway.clock.advance(1)
    assert [again.event_id for again in await pull.fetch("ada")] == [event.event_id]


async def test_who_waits_for_mail_gets_it_when_it_comes(gateway: Gateway) -> None:
    """A long poll ends with the mail; with an empty answer, once the time is over or the gateway stops."""
    pull = a_pull(gateway)
    assert await pull.fetch("ada", wait_seconds=0.01) == []
    waiting = [asyncio.ensure_future(pull.fetch("ada", wait_seconds=300)) for _ in range(2)]
    # Both are waiting once the loop has come round; mail that came before they did would be handed over just so.
    await asyncio.sleep(0)
    (event,) = await gateway.arrive(gateway.message(1))
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    pull.release()
    fetched = [engagement.event_id for some in await asyncio.gather(*waiting) for engagement in some]
    assert fetched == [event.event_id]
    assert pull._waiting == {}
    with refused(Code.INVALID_FIELD):
        await pull.fetch("ada", wait_seconds=-1)


@pytest.mark.req("RTY-4")
async def test_mail_that_was_given_back_does_not_wait_for_a_clock_that_was_set(gateway: Gateway) -> None:
    """The time of day goes back an hour: what was to be tried again in seconds is there in seconds."""
    pull = a_pull(gateway)
    (event,) = await gateway.arrive(gateway.message(1))
    await pull.fetch("ada")
    await pull.settle(event.event_id, "ada", AGAIN)
    gateway.clock.step_back(3_600_000)
    assert await pull.fetch("ada") == []
    gateway.clock.advance(10_000)
    assert [again.event_id for again in await pull.fetch("ada")] == [event.event_id]


async def test_mail_that_was_settled_otherwise_leaves_no_lease_behind(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that answers by hand what it fetched, for years, costs no more memory than its open mail."""
    monkeypatch.setattr("agentpost.delivery.pull._FEW_LEASES", 4)
    pull = a_pull(gateway)
    turns = gateway.dispatchers[-1].turns
    kept, *settled = await gateway.arrive(*(gateway.message(number) for number in range(1, 40)))
    (first,) = await pull.fetch("ada")
    for event in settled:
        await pull.fetch("ada")
        # As a reply by hand does it, past the pull.
        await turns.end(event, "ada", replied("done"))
    assert first.event_id == kept.event_id
    assert pull.lease_count <= 8
    # The lease of what is still with the agent is among them.
    assert await pull.fetch("ada") == []


@pytest.mark.req("PIPE-5")
async def test_content_that_comes_late_is_fetched_when_it_is_here(gateway: Gateway) -> None:
    """Whoever waits for mail gets a large message as soon as its content is here, and it costs no attempt before."""
    pull = a_pull(gateway)
    large, content = gateway.large_message(1)
    await gateway.arrive(large)
    assert await pull.fetch("ada") == []
    waiting = asyncio.ensure_future(pull.fetch("ada", wait_seconds=60))
    await turn_the_loop()
    await gateway.fetch_content(content, "ada")
    (fetched,) = await asyncio.wait_for(waiting, 10)
    assert (fetched.content.body, fetched.attempt) == ("large", 1)


@pytest.mark.req("ENV-7")
async def test_mail_that_cannot_be_had_hides_none_behind_it(gateway: Gateway) -> None:
    """Whoever asks for one message gets one, though the oldest has expired and the next has not come in full."""
    pull = a_pull(gateway)
    large, _ = gateway.large_message(2)
    *_, good = await gateway.arrive(gateway.message(1, expires_at_ms=START_MS + 1_000), large, gateway.message(3))
    gateway.clock.advance(1_000)
    assert [each.event_id for each in await pull.fetch("ada", limit=1)] == [good.event_id]


@pytest.mark.req("RTY-4")
async def test_an_answer_has_a_bounded_size(gateway: Gateway) -> None:
    """Whoever asks for much large mail gets some of it; the rest is nobody's, and costs no attempt until it is asked
    for."""
    pull = a_pull(gateway)
    letters = 3 * 1024 * 1024
    large = [gateway.large_message(number, body=str(number) * letters) for number in range(1, 6)]
    await gateway.arrive(*(event for event, _ in large), gateway.message(6))
    for _, content in large:
        await gateway.fetch_content(content)
    seen = list[tuple[str, ...]]()
    while fetched := await pull.fetch("ada", limit=256):
        seen.append(tuple((each.content.body or "")[:5] for each in fetched))
        assert all(each.attempt == 1 for each in fetched)
        if len(seen) == 1:
            entry = gateway.store.ledger_entry(large[2][0].event_id, "ada")
            assert entry is not None
            assert (entry.state, entry.attempts) == (LedgerState.QUEUED, 0)
    assert seen == [("11111", "22222"), ("33333", "44444"), ("55555", "bob 6")]


async def test_a_message_larger_than_an_answer_comes_alone(gateway: Gateway) -> None:
    """One message is always handed over, however large it is."""
    pull = a_pull(gateway)
    huge, content = gateway.large_message(2, body="x" * 9 * 1024 * 1024)
    first, _, last = await gateway.arrive(gateway.message(1), huge, gateway.message(3))
    await gateway.fetch_content(content)
    fetched = [[each.event_id for each in await pull.fetch("ada", limit=10)] for _ in range(3)]
    assert fetched == [[first.event_id], [huge.event_id], [last.event_id]]
