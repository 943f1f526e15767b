"""Clocks that are wrong: who is off, what the operator is told, and when that is over."""

from collections.abc import AsyncIterator

import pytest

from agentpost.delivery.clocks import CLOCK_OFF, ClockCheck, clocks_off
from agentpost.store.values import Incident
from agentpost.testing import FakeClock, FixedRoom, MemoryStore

OWN = "node-a"
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("ahead_ms", "off"),
    [
        ({}, {}),
        ({"node-b": 30_000}, {}),
        ({"node-b": 30_001}, {"node-b": 30_001}),
        ({"node-b": -HOUR_MS}, {"node-b": -HOUR_MS}),
        ({"node-b": 500, "node-c": HOUR_MS}, {"node-c": HOUR_MS - 500}),
        ({"node-b": HOUR_MS, "node-c": HOUR_MS}, {OWN: -HOUR_MS}),
        ({"node-b": HOUR_MS, "node-c": HOUR_MS, "node-d": 0}, {"node-b": HOUR_MS, "node-c": HOUR_MS}),
        ({"node-b": -HOUR_MS, "node-c": HOUR_MS, "node-d": 10}, {"node-b": -HOUR_MS, "node-c": HOUR_MS}),
    ],
    ids=str,
)
def test_whose_clock_is_off(ahead_ms: dict[str, int], off: dict[str, int]) -> None:
    """Of three or more the one in the middle is right; of two only the difference is known."""
    assert clocks_off(ahead_ms, OWN) == off


class Machine:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.room = FixedRoom(self.clock)
        for node_id in (OWN, "node-b", "node-c"):
            self.room.add_node(node_id)
        self.store = MemoryStore(node_id=OWN, epoch="first")
        self.check = ClockCheck(store=self.store, room=self.room, clock=self.clock)

    def restart(self) -> None:
        self.check = ClockCheck(store=self.store, room=self.room, clock=self.clock)

    async def told(self, **ahead_ms: int | None) -> dict[str, int]:
        """What open incidents say after these heartbeats, in seconds by node."""
        for name, ms in ahead_ms.items():
            self.room.set_clock_ahead(name.replace("_", "-"), ms)
        await self.check.look()
        open_ones: list[Incident] = [each for each in self.store.incidents() if each.kind == CLOCK_OFF]
        return {each.subject: int(each.detail["aheadSeconds"] or 0) for each in open_ones}


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    made = Machine()
    yield made
    await made.check.close()


async def test_an_incident_names_the_node_and_by_how_much_and_closes_by_itself(machine: Machine) -> None:
    """It is raised once, follows the clock when that is set anew, and is over when it is right."""
    assert await machine.told(node_b=0, node_c=29_000) == {}
    assert await machine.told(node_c=90_000) == {"node-c": 90}
    assert await machine.told(node_c=92_000) == {"node-c": 90}
    assert len(machine.store.incidents(open_only=False)) == 1
    assert await machine.told(node_c=HOUR_MS) == {"node-c": 3600}
    machine.restart()
    assert await machine.told() == {"node-c": 3600}
    assert len(machine.store.incidents(open_only=False)) == 2
    assert await machine.told(node_c=1_000) == {}


async def test_the_own_clock_is_named_where_the_others_agree(machine: Machine) -> None:
    """Two peers say the same, and this gateway something else."""
    assert await machine.told(node_b=-HOUR_MS, node_c=-HOUR_MS + 40) == {OWN: 3600}
    assert await machine.told(node_b=None, node_c=None) == {OWN: 3600}, "nobody is heard who could say otherwise"
    assert await machine.told(node_b=0, node_c=0) == {}


async def test_a_node_that_is_not_heard_stays_as_it_was_and_one_that_left_the_mesh_is_forgotten(
    machine: Machine,
) -> None:
    """Silence says nothing of a clock."""
    assert await machine.told(node_b=0, node_c=HOUR_MS) == {"node-c": 3600}
    assert await machine.told(node_c=None) == {"node-c": 3600}
    machine.room.revoke("node-c")
    assert await machine.told() == {}
