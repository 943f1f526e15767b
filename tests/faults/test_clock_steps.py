"""The time of day is set while timers are running: what waits neither waits an hour longer nor comes an hour early."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from agentpost.delivery.policy import DeliveryPolicy, sla_due_at_ms
from agentpost.delivery.ports import Engagement, Result
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.protocol.backoff import RetryPolicy
from agentpost.protocol.envelope import DeadLetterEvent, Event
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.payloads import AckType
from agentpost.protocol.snapshot import NodeStatus
from agentpost.room.presence import Presence
from agentpost.testing import START_MS, FakeClock, MemoryStore
from tests.delivery.dispatching import AGAIN, DONE, EXACT, Gateway, Scripted, is_postponed, until
from tests.delivery.dispatching import NODE as RECEIVER
from tests.delivery.timing import NODE, Desk

HOUR_MS = 3_600_000
PATIENCE_SECONDS = 30
UNACCEPTED = (DeliveryState.EMITTED, DeliveryState.RETRY_PENDING)
# Tries for longer than anything here lives.
PATIENT = DeliveryPolicy(resend=RetryPolicy(base_seconds=5, factor=2, max_delay_seconds=600, max_attempts=1_000))


class SettableClock(FakeClock):
    """A clock that can also be set ahead."""

    def set_by(self, ms: int) -> None:
        self._now_ms += ms


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - whoever changes it does not know of this test
            await asyncio.sleep(0)


@pytest.mark.req("RTY-1")
async def test_a_clock_that_is_set_back_does_not_put_resends_off() -> None:
    """A message that would be sent again in seconds still is, although its timer stands an hour away now."""
    desk = await Desk(MemoryStore(node_id=NODE, epoch="first")).settle_in()
    event = await desk.send()
    desk.retrier.start()
    # It has looked around once: what it does at every start is not what is meant here.
    await _until(lambda: bool(desk.retrier._live))
    desk.clock.step_back(HOUR_MS)
    assert _waits_ms(desk, event.event_id) > HOUR_MS
    desk.wakeups.timer_set()
    await _until(lambda: _waits_ms(desk, event.event_id) <= 21_000)
    await desk.retrier.close()


def _waits_ms(desk: Desk, event_id: str) -> int:
    (delivery,) = [each for each in desk.store.deliveries_of(event_id) if each.due_at_ms is not None]
    return (delivery.due_at_ms or 0) - desk.clock.now_ms()


@pytest.mark.req("ROUTE-2")
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])
def test_nobody_is_silent_for_longer_because_the_clock_was_set(step_ms: int) -> None:
    """A heartbeat of two seconds ago was two seconds ago, whatever the time of day has become."""
    clock = SettableClock()
    presence = Presence(clock)
    presence.heard("node-b")
    clock.advance(2_000)
    before = presence.version
    clock.set_by(step_ms)
    assert presence.version > before, "whoever keeps what follows from it has to make it anew"
    assert presence.last_heard_ms() == {"node-b": clock.now_ms() - 2_000}
    assert presence.status_of("node-b") is NodeStatus.ONLINE
    settled = presence.version
    clock.advance(10)
    assert presence.version == settled


# An expiry is a time of day, and each gateway reads it by its own clock.


@pytest.mark.req("ENV-7")
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])
async def test_a_step_gives_up_nothing_that_lives_longer(step_ms: int) -> None:
    """The sender goes on trying until the time has come by its own clock, and then gives up, once."""
    clock = SettableClock()
    desk = await Desk(policy=PATIENT, clock=clock).settle_in()
    expires_at_ms = clock.now_ms() + 2 * HOUR_MS
    event = await desk.send(expires_at_ms=expires_at_ms)
    await desk.pass_time(60)
    clock.set_by(step_ms)
    await desk.pass_time(60)
    assert desk.delivery(event).state in UNACCEPTED
    await desk.pass_time((expires_at_ms - clock.now_ms() - 1) / 1000)
    assert desk.delivery(event).state in UNACCEPTED
    await desk.pass_time(0.001)
    assert (desk.delivery(event).state, desk.delivery(event).reason) == (DeliveryState.DEAD_LETTER, "expired")
    assert _dead_letters(desk, event) == 1


@pytest.mark.req("ACK-4")
@pytest.mark.parametrize("back_again", [False, True], ids=["stays", "is set right"])
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 48 * HOUR_MS], ids=["ahead", "back", "days ahead"])
async def test_the_time_for_an_outcome_is_as_long_as_it_was_when_a_clock_is_set(
    step_ms: int, *, back_again: bool
) -> None:
    """What was accepted has its day for an outcome: no incident comes early, none comes late."""
    clock = SettableClock()
    desk = await Desk(policy=PATIENT, clock=clock).settle_in()
    events = [await desk.send(number) for number in range(1, 4)]
    for event in events:
        due_at_ms = sla_due_at_ms(event, accepted_at_ms=clock.now_ms(), policy=PATIENT)
        await desk.change(event, DeliverySignal.ACCEPTED, due_at_ms=due_at_ms)
    await desk.pass_time(60)
    clock.set_by(step_ms)
    await desk.pass_time(60)
    if back_again:
        clock.set_by(-step_ms)
    await desk.pass_time(24 * 3600 - 1)
    assert [desk.delivery(event).state for event in events] == [DeliveryState.ACCEPTED] * 3
    await desk.pass_time(1)
    assert [desk.delivery(event).state for event in events] == [DeliveryState.INCIDENT] * 3
    assert len([each for each in desk.store.incidents() if each.kind == "sla_missed"]) == 3


@pytest.mark.req("ENV-7", "RTY-6")
async def test_a_sender_that_is_set_ahead_says_what_it_gave_up_and_stays_with_it() -> None:
    """What is past its time by the new clock is a dead letter with a report; setting it right changes nothing."""
    clock = SettableClock()
    desk = await Desk(policy=PATIENT, clock=clock).settle_in()
    event = await desk.send(expires_at_ms=clock.now_ms() + 600_000)
    clock.set_by(HOUR_MS)
    await desk.run_timers()
    for step_ms in (0, -HOUR_MS):
        clock.set_by(step_ms)
        await desk.pass_time(60)
        await desk.change(event, DeliverySignal.ACCEPTED)
        assert (desk.delivery(event).state, desk.delivery(event).reason) == (DeliveryState.DEAD_LETTER, "expired")
        assert _dead_letters(desk, event) == 1
        assert len([each for each in desk.outbox() if each.source_agent_id == POSTMASTER]) == 1


def _dead_letters(desk: Desk, event: Event) -> int:
    told = [each.payload.ref_event_id for each in desk.outbox() if isinstance(each, DeadLetterEvent)]
    return told.count(event.event_id)


@pytest.fixture
async def receiver() -> AsyncIterator[Gateway]:
    gateway = Gateway(MemoryStore(node_id=RECEIVER, epoch="first"), SettableClock())
    yield gateway
    await gateway.close()


def _fails_once() -> Scripted:
    tried: set[str] = set()

    def script(engagement: Engagement) -> Result:
        is_first = engagement.event_id not in tried
        tried.add(engagement.event_id)
        return AGAIN if is_first else DONE

    return Scripted(script)


def _set_by(gateway: Gateway, step_ms: int) -> None:
    assert isinstance(gateway.clock, SettableClock)
    gateway.clock.set_by(step_ms)


@pytest.mark.req("ENV-7", "RTY-4")
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])
async def test_a_step_keeps_no_agent_from_what_lives_longer(receiver: Gateway, step_ms: int) -> None:
    """A message that waits for its second attempt gets it after the same pause, whatever the clock says."""
    ada = _fails_once()
    await receiver.hire("ada", ada)
    receiver.start(policy=EXACT)
    (event,) = await receiver.arrive(receiver.message(1, expires_at_ms=START_MS + 2 * HOUR_MS))
    await until(lambda: is_postponed(receiver, event.event_id, 1))
    _set_by(receiver, step_ms)
    receiver.pass_time(2_000)
    await receiver.settled(event)
    assert len(ada.engaged) == 2
    assert [ack.payload.ack_type for ack in receiver.outcomes(event)] == [AckType.PROCESSED]


@pytest.mark.req("ENV-7")
async def test_a_receiver_that_is_set_ahead_tells_the_sender_what_it_gave_up(receiver: Gateway) -> None:
    """Its agent is not engaged with what is past its time, and not an hour later either, when the clock is right."""
    ada = _fails_once()
    await receiver.hire("ada", ada)
    receiver.start(policy=EXACT)
    (event,) = await receiver.arrive(receiver.message(1, expires_at_ms=START_MS + 600_000))
    await until(lambda: is_postponed(receiver, event.event_id, 1))
    _set_by(receiver, HOUR_MS)
    receiver.pass_time(2_000)
    await receiver.settled(event)
    _set_by(receiver, -HOUR_MS)
    receiver.pass_time(2_000)
    (after,) = await receiver.arrive(receiver.message(2, expires_at_ms=START_MS + 600_000))
    await until(lambda: is_postponed(receiver, after.event_id, 1))
    assert ada.bodies == ["bob 1", "bob 2"]
    (ack,) = receiver.outcomes(event)
    assert (ack.payload.ack_type, ack.payload.reason) == (AckType.FAILED_TERMINAL, "expired")


@pytest.mark.req("ENV-7")
async def test_a_receiver_that_is_set_back_hands_over_what_is_in_time_by_its_clock(receiver: Gateway) -> None:
    """An hour longer than meant, and once."""
    ada = Scripted()
    await receiver.hire("ada", ada)
    (event,) = await receiver.arrive(receiver.message(1, expires_at_ms=START_MS + 600_000))
    receiver.clock.advance(900_000)
    _set_by(receiver, -HOUR_MS)
    receiver.start()
    await receiver.settled(event)
    assert ada.bodies == ["bob 1"]
    assert [ack.payload.ack_type for ack in receiver.outcomes(event)] == [AckType.PROCESSED]
