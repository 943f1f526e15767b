"""The time of day is set while timers are running: what waits neither waits an hour longer nor comes an hour early."""

import asyncio
from collections.abc import Callable

import pytest

from agentpost.protocol.snapshot import NodeStatus
from agentpost.room.presence import Presence
from agentpost.testing import FakeClock, MemoryStore
from tests.delivery.timing import NODE, Desk

HOUR_MS = 3_600_000
PATIENCE_SECONDS = 30


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
