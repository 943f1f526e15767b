"""Dispatch over crashes and full disks: each event reaches its agent once, or visibly it is not clear."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from agentpost.delivery.dispatch import Resolution
from agentpost.delivery.ports import Engagement, Result
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import AckType
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import LedgerState
from tests.delivery.dispatching import (
    AGAIN,
    DONE,
    EXACT,
    Gateway,
    Scripted,
    is_postponed,
    replied,
    turn_the_loop,
    until,
)
from tests.store.building import open_sqlite, refused


class CutStore:
    """The store of a process that dies at its n-th write of dispatch: before it is made, or right after."""

    def __init__(self, store: Store, *, at: int, after: bool) -> None:
        self._store = store
        self._left = at
        self._after = after
        self.died = asyncio.Event()

    def die_next(self) -> None:
        self._left = 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("engage", "settle", "settle_all", "postpone"):
            return found

        def cut(*args: Any, **kwargs: Any) -> Any:
            # Counted, and handed to the store, in the order of the calls.
            self._left -= 1
            left = self._left
            is_made = left > 0 or (left == 0 and self._after)
            return finish(left, found(*args, **kwargs) if is_made else None)

        async def finish(left: int, writing: Awaitable[Any] | None) -> Any:
            result = None if writing is None else await writing
            if left > 0:
                return result
            if left == 0:
                self.died.set()
            return await asyncio.Event().wait()

        return cut


POINTS = [(at, after) for at in range(1, 7) for after in (False, True)]


async def die_and_start_again(gateway: Gateway, *, at: int, after: bool) -> None:
    """Run until the cut, end the process there, and start another one over what is on the disk."""
    cut = CutStore(gateway.store, at=at, after=after)
    first = gateway.start(cut)  # pyright: ignore[reportArgumentType] - a proxy
    await asyncio.wait_for(cut.died.wait(), 30)
    await first.close()
    # The writer finishes what was handed to it before, so that the test knows what is on the disk.
    await gateway.store.append(())
    gateway.start()


@pytest.mark.req("RTY-3", "OPS-3")
@pytest.mark.parametrize(("at", "after"), POINTS)
async def test_a_crash_at_any_point_injects_each_event_exactly_once(gateway: Gateway, at: int, after: bool) -> None:
    """A runtime that knows what it had is asked after a crash: nothing is left out and nothing happens twice."""
    ada = Scripted(lambda engagement: replied("yes"), knows=True)
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 5)))
    await die_and_start_again(gateway, at=at, after=after)
    await gateway.settled(*events)
    assert ada.bodies == ["bob 1", "bob 2", "bob 3", "bob 4"]
    for event in events:
        assert len(gateway.outcomes(event)) == 1
        assert len(gateway.replies(event)) == 1
    assert gateway.store.incidents() == []


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize(("at", "after"), POINTS)
async def test_after_a_crash_nothing_is_repeated_that_may_have_happened(gateway: Gateway, at: int, after: bool) -> None:
    """A runtime that cannot say is not given the event again; an operator decides, and the rest goes on."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 5)))
    await die_and_start_again(gateway, at=at, after=after)
    dispatcher = gateway.dispatchers[-1]
    unclear = [entry.event_id for entry in gateway.store.engaged_entries()]
    assert len(unclear) <= 1
    await gateway.settled(*(event for event in events if event.event_id not in unclear))
    await until(lambda: len(gateway.store.incidents()) == len(unclear))
    assert max(ada.times().values()) == 1
    for event_id in unclear:
        assert [item.entry.state for item in gateway.store.inbox_items("ada") if item.entry.event_id == event_id] == [
            LedgerState.ENGAGED
        ]
        (incident,) = gateway.store.incidents()
        assert (incident.kind, incident.subject) == ("indeterminate", f"{event_id}/ada")
        handed_over = ada.times()[event_id]
        await dispatcher.resolve(event_id, "ada", Resolution.RETRY, actor="operator")
        assert gateway.store.incidents() == []
        await gateway.settled(*events)
        assert ada.times()[event_id] == handed_over + 1
    assert all(len(gateway.outcomes(event)) == 1 for event in events)


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize(("at", "after"), POINTS)
async def test_after_a_crash_an_idempotent_runtime_gets_the_event_again(gateway: Gateway, at: int, after: bool) -> None:
    """Who can tell a repeat by its id is handed what is unclear once more, and there is one outcome."""
    ada = Scripted(is_idempotent=True, max_concurrent=2)
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 5)))
    await die_and_start_again(gateway, at=at, after=after)
    await gateway.settled(*events)
    assert set(ada.times()) == {event.event_id for event in events}
    assert all(len(gateway.outcomes(event)) == 1 for event in events)
    assert gateway.store.incidents() == []


@pytest.mark.req("RTY-3")
async def test_a_crash_while_the_agent_works_is_unclear_and_can_be_settled(gateway: Gateway) -> None:
    """An operator who knows that the agent had it closes it as processed; it is not handed over again."""
    working = asyncio.Event()

    async def work() -> Result:
        working.set()
        await asyncio.Event().wait()
        return DONE

    ada = Scripted(lambda engagement: work() if engagement.content.body == "bob 1" else DONE)
    await gateway.hire("ada", ada)
    first = gateway.start()
    events = await gateway.arrive(gateway.message(1), gateway.message(2))
    await working.wait()
    with refused(Code.INVALID_TRANSITION):
        await first.resolve(events[0].event_id, "ada", Resolution.RETRY, actor="operator")
    await first.close()
    second = gateway.start()
    await gateway.settled(events[1])
    await second.resolve(events[0].event_id, "ada", Resolution.SETTLE, actor="operator")
    assert ada.bodies == ["bob 1", "bob 2"]
    assert [ack.payload.ack_type for ack in gateway.outcomes(events[0])] == [AckType.PROCESSED]
    with refused(Code.INVALID_TRANSITION):
        await second.resolve(events[0].event_id, "ada", Resolution.SETTLE, actor="operator")
    with refused(Code.NOT_FOUND):
        await second.resolve(events[0].event_id, "eve", Resolution.SETTLE, actor="operator")


@pytest.mark.req("RTY-4")
async def test_a_message_that_ends_the_gateway_each_time_is_given_up(gateway: Gateway) -> None:
    """Attempts that ended in a crash count, so a poisonous message does not keep a gateway from living."""
    started = asyncio.Event()

    async def poison() -> Result:
        started.set()
        await asyncio.Event().wait()
        return DONE

    ada = Scripted(lambda engagement: poison(), is_idempotent=True)
    await gateway.hire("ada", ada)
    (event,) = await gateway.arrive(gateway.message(1))
    for _ in range(EXACT.max_attempts):
        started.clear()
        dispatcher = gateway.start(policy=EXACT)
        await started.wait()
        await dispatcher.close()
    gateway.start(policy=EXACT)
    await gateway.settled(event)
    assert len(ada.engaged) == EXACT.max_attempts
    (ack,) = gateway.outcomes(event)
    assert ack.payload.reason == "max_attempts"


class Spied:
    """A store that notes which of its operations were asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._store, name)


async def until_served(gateway: Gateway, number: int = 1) -> None:
    """Until the dispatcher has read all that there was: what comes next is handed to it."""
    (first,) = await gateway.arrive(gateway.message(number))
    await gateway.settled(first)


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_only_who_may_get_an_event_twice_runs_before_the_attempt_is_recorded(
    gateway: Gateway, is_idempotent: bool
) -> None:
    """The attempt of an idempotent runtime with new mail is written with its outcome, any other one before it runs."""
    states: list[LedgerState] = []

    def look(engagement: Engagement) -> Result:
        entry = gateway.store.ledger_entry(engagement.event_id, "ada")
        assert entry is not None
        states.append(entry.state)
        return DONE

    spied = Spied(gateway.store)
    await gateway.hire("ada", Scripted(look, is_idempotent=is_idempotent))
    gateway.start(spied)  # pyright: ignore[reportArgumentType] - a proxy
    await until_served(gateway)
    spied.asked.clear()
    (event,) = await gateway.arrive(gateway.message(2))
    await gateway.settled(event)
    assert states[-1] is (LedgerState.QUEUED if is_idempotent else LedgerState.ENGAGED)
    assert ("engage" in spied.asked) is not is_idempotent
    assert "backlog" not in spied.asked
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert (entry.attempts, entry.engaged_at_ms) == (1, gateway.clock.now_ms())


@pytest.mark.req("RTY-3", "ACK-2")
@pytest.mark.parametrize("most", [1, 8])
async def test_turns_that_are_over_at_once_are_written_together(gateway: Gateway, most: int) -> None:
    """An idempotent agent that needs no time has all its new mail in order, and one write tells of all of it."""
    ada = Scripted(is_idempotent=True, max_concurrent=most)
    await gateway.hire("ada", ada)
    spied = Spied(gateway.store)
    gateway.start(spied)  # pyright: ignore[reportArgumentType] - a proxy
    await until_served(gateway)
    spied.asked.clear()
    events = await gateway.arrive(*(gateway.message(number) for number in range(2, 102)))
    await gateway.settled(*events)
    assert ada.bodies == [f"bob {number}" for number in range(1, 102)]
    assert spied.asked.count("settle_all") == 1
    assert not {"settle", "engage"} & set(spied.asked)
    for event in (events[0], events[-1]):
        (ack,) = gateway.outcomes(event)
        assert ack.payload.ack_type is AckType.PROCESSED


async def test_mail_that_did_not_fit_into_memory_is_as_fresh(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came while an idempotent agent had much to do is read from the inbox, in order, and needs no note either."""
    monkeypatch.setattr("agentpost.delivery.worker._LOOK_AHEAD", 8)
    may_go = asyncio.Event()

    async def wait() -> Result:
        await may_go.wait()
        return DONE

    ada = Scripted(lambda engagement: wait() if engagement.content.body == "bob 2" else DONE, is_idempotent=True)
    await gateway.hire("ada", ada)
    spied = Spied(gateway.store)
    gateway.start(spied)  # pyright: ignore[reportArgumentType] - a proxy
    await until_served(gateway)
    spied.asked.clear()
    events = await gateway.arrive(*(gateway.message(number) for number in range(2, 15)))
    events += await gateway.arrive(*(gateway.message(number) for number in range(15, 25)))
    may_go.set()
    await gateway.settled(*events)
    assert ada.bodies == [f"bob {number}" for number in range(1, 25)]
    assert "backlog" in spied.asked
    assert not {"settle", "engage"} & set(spied.asked)


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize("after", [False, True])
async def test_after_a_crash_a_sitting_that_was_not_written_happens_again(gateway: Gateway, after: bool) -> None:
    """Outcomes of turns that were over at once are there all together or not at all, and each once."""
    ada = Scripted(is_idempotent=True)
    await gateway.hire("ada", ada)
    cut = CutStore(gateway.store, at=1 << 20, after=after)
    first = gateway.start(cut)  # pyright: ignore[reportArgumentType] - a proxy
    await until_served(gateway)
    cut.die_next()
    events = await gateway.arrive(*(gateway.message(number) for number in range(2, 6)))
    await asyncio.wait_for(cut.died.wait(), 30)
    assert gateway.is_settled(*events) is after
    await first.close()
    gateway.start()
    await gateway.settled(*events)
    assert {len(gateway.outcomes(event)) for event in events} == {1}
    assert {ada.times()[event.event_id] for event in events} == {1 if after else 2}


async def test_a_turn_that_waits_holds_back_no_other_of_the_sitting(gateway: Gateway) -> None:
    """Where several may run at once, what is over is written while another turn lasts, and so is what follows."""
    may_end = asyncio.Event()

    async def work() -> Result:
        await may_end.wait()
        return replied("at last")

    answers = {"bob 4": work, "bob 6": lambda: AGAIN, "bob 7": lambda: replied("yes")}
    ada = Scripted(lambda engagement: answers.get(engagement.content.body or "", lambda: DONE)(), is_idempotent=True)
    ada.max_concurrent = 3
    await gateway.hire("ada", ada)
    gateway.start(policy=EXACT)
    await until_served(gateway)
    events = await gateway.arrive(*(gateway.message(number) for number in range(2, 12)))
    others = [event for place, event in enumerate(events, start=2) if place not in (4, 6)]
    await gateway.settled(*others)
    assert not gateway.is_settled(events[2])
    assert is_postponed(gateway, events[4].event_id, 1)
    assert len(gateway.replies(events[5])) == 1
    may_end.set()
    await gateway.settled(events[2])
    assert len(gateway.replies(events[2])) == 1
    assert set(ada.times().values()) == {1}


@pytest.mark.req("RTY-4")
async def test_an_attempt_that_lasts_can_be_seen_after_the_clock_was_set_back(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of day goes back an hour while an idempotent runtime works: its attempt is written down all the same."""
    monkeypatch.setattr("agentpost.delivery.worker._NOTE_AFTER_SECONDS", 0.001)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> Result:
        begun.set()
        await may_end.wait()
        return DONE

    ada = Scripted(lambda engagement: DONE if engagement.content.body == "bob 1" else work(), is_idempotent=True)
    await gateway.hire("ada", ada)
    gateway.start()
    await until_served(gateway)
    (event,) = await gateway.arrive(gateway.message(2))
    await begun.wait()
    gateway.clock.step_back(3_600_000)
    gateway.clock.advance(1_000)
    await until(lambda: [each.event_id for each in gateway.store.engaged_entries()] == [event.event_id])
    may_end.set()
    await gateway.settled(event)


async def test_an_attempt_that_lasts_can_be_seen(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an idempotent runtime is busy with an event for a while, the ledger says so, and counts it once."""
    monkeypatch.setattr("agentpost.delivery.worker._NOTE_AFTER_SECONDS", 0.001)
    may_end = asyncio.Event()

    async def work() -> Result:
        await may_end.wait()
        return DONE

    ada = Scripted(lambda engagement: DONE if engagement.content.body == "bob 1" else work(), is_idempotent=True)
    await gateway.hire("ada", ada)
    gateway.start()
    await until_served(gateway)
    (event,) = await gateway.arrive(gateway.message(2))
    await until(lambda: ada.times()[event.event_id])
    gateway.clock.advance(1_000)
    await until(lambda: [each.event_id for each in gateway.store.engaged_entries()] == [event.event_id])
    may_end.set()
    await gateway.settled(event)
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert entry.attempts == 1


@pytest.mark.req("RTY-4")
async def test_an_attempt_that_failed_counts_however_it_was_recorded(gateway: Gateway) -> None:
    """An idempotent runtime that fails with new mail has as many attempts as anybody else."""
    ada = Scripted(lambda engagement: DONE if engagement.content.body == "bob 1" else AGAIN, is_idempotent=True)
    await gateway.hire("ada", ada)
    gateway.start(policy=EXACT)
    await until_served(gateway)
    (event,) = await gateway.arrive(gateway.message(2))
    for attempt in range(1, EXACT.max_attempts):
        await until(lambda attempt=attempt: _attempts(gateway, event) == (attempt, LedgerState.QUEUED))
        gateway.pass_time(3_600_000)
    await gateway.settled(event)
    assert [engagement.attempt for engagement in ada.engaged[1:]] == list(range(1, EXACT.max_attempts + 1))
    assert _attempts(gateway, event) == (EXACT.max_attempts, LedgerState.SETTLED)


def _attempts(gateway: Gateway, event: Event) -> tuple[int, LedgerState] | None:
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    return None if entry is None else (entry.attempts, entry.state)


@pytest.mark.req("RTY-3", "RTY-5")
async def test_a_gateway_that_is_opened_again_from_disk_goes_on(tmp_path: Path) -> None:
    """After the process is gone, what is on the disk is enough: the rest of the backlog, once, in order."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store: SqliteStore = open_sqlite(home)
    gateway = Gateway(store)
    ada = Scripted(knows=True)
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 11)))
    cut = CutStore(store, at=7, after=True)
    first = gateway.start(cut)  # pyright: ignore[reportArgumentType] - a proxy
    await asyncio.wait_for(cut.died.wait(), 30)
    await first.close()
    await store.close()

    gateway.store = open_sqlite(home)
    gateway.start()
    await gateway.settled(*events)
    assert ada.bodies == [f"bob {number}" for number in range(1, 11)]
    await gateway.close()
    await gateway.store.close()


class FullDisk:
    """A store whose disk is full for as long as it says so."""

    def __init__(self, store: Store, operation: str) -> None:
        self._store = store
        self._operation = operation
        self.is_full = True
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        if name == self._operation and self.is_full:
            return self._refuse
        return getattr(self._store, name)

    async def _refuse(self, *args: Any, **kwargs: Any) -> None:
        self.refused += 1
        raise Refusal(Code.STORAGE_FULL, "the disk is full")


async def test_an_outcome_that_the_disk_does_not_take_is_written_later(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk is full the outcome is kept in mind; the agent is not run again for it."""
    monkeypatch.setattr("agentpost.delivery.worker._WRITE_AGAIN_SECONDS", 0.001)
    ada = Scripted()
    await gateway.hire("ada", ada)
    disk = FullDisk(gateway.store, "settle")
    gateway.start(disk)  # pyright: ignore[reportArgumentType] - a proxy
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: disk.refused >= 2)
    disk.is_full = False
    await gateway.settled(event)
    assert len(ada.engaged) == 1


async def test_outcomes_that_the_disk_does_not_take_are_written_later(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk is full the outcomes of a sitting are kept in mind, and no further turn begins."""
    monkeypatch.setattr("agentpost.delivery.worker._WRITE_AGAIN_SECONDS", 0.001)
    ada = Scripted(is_idempotent=True)
    await gateway.hire("ada", ada)
    disk = FullDisk(gateway.store, "settle_all")
    disk.is_full = False
    dispatcher = gateway.start(disk)  # pyright: ignore[reportArgumentType] - a proxy
    await until_served(gateway)
    disk.is_full = True
    events = await gateway.arrive(gateway.message(2), gateway.message(3))
    await until(lambda: disk.refused >= 2)
    later = await gateway.arrive(gateway.message(4))
    await turn_the_loop()
    assert ada.bodies == ["bob 1", "bob 2", "bob 3"]
    assert not await dispatcher.drain(timeout_seconds=0.001)
    disk.is_full = False
    await gateway.settled(*events)
    assert await dispatcher.drain()
    assert not gateway.is_settled(*later)
    gateway.start()
    await gateway.settled(*later)
    assert set(ada.times().values()) == {1}


async def test_an_agent_does_not_run_while_its_attempt_cannot_be_recorded(gateway: Gateway) -> None:
    """What is not on the disk before does not happen."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    disk = FullDisk(gateway.store, "engage")
    gateway.start(disk)  # pyright: ignore[reportArgumentType] - a proxy
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: disk.refused == 1)
    await turn_the_loop()
    assert ada.engaged == []
    disk.is_full = False
    gateway.pass_time(5_000)
    await gateway.settled(event)


@pytest.mark.req("RTY-4", "OPS-3")
async def test_what_an_operator_released_is_found_beside_mail_that_was_answered_by_hand(gateway: Gateway) -> None:
    """One event is unclear, another waits for its retry and is answered by hand: the first is handed over again."""
    ada = Scripted(lambda engagement: AGAIN if engagement.content.body == "eve 2" else DONE)
    await gateway.hire("ada", ada)
    unclear, waits = await gateway.arrive(gateway.message(1), gateway.message(2, sender="eve"))
    await gateway.store.engage(unclear.event_id, "ada", at_ms=gateway.clock.now_ms())
    dispatcher = gateway.start()
    await until(lambda: is_postponed(gateway, waits.event_id, 1))
    await dispatcher.turns.end(waits, "ada", DONE)
    await dispatcher.resolve(unclear.event_id, "ada", Resolution.RETRY, actor="jane")
    await gateway.settled(unclear)
