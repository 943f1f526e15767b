"""Coordination in the room: one coordinator, how often it sweeps, and what each node would prefer (OPS-4)."""

from typing import Any

import pytest

from agentpost.protocol.errors import Code
from agentpost.room.document import Room
from tests.room.building import EDGE, OTHER_EDGE, OTHER_SEED, SEED, TIERS, a_populated_room, bring, visible
from tests.store.building import refused


@pytest.fixture
def room() -> Room:
    return a_populated_room()


def value_of(room: Room, key: str) -> Any:
    return (room.record("coordination", key) or {}).get("value")


@pytest.mark.req("OPS-4", "ROOM-3")
@pytest.mark.parametrize("node_id", TIERS)
def test_every_node_has_a_preference_of_its_own(room: Room, node_id: str) -> None:
    """It says which coordinator and which pace it would like; nobody says so for another, not even the coordinator."""
    bring(room, SEED, "coordination", "coordinator", {"value": SEED})
    wish = {"desiredCoordinator": OTHER_SEED, "desiredSweepEverySeconds": 45}
    before = visible(room)
    for other in TIERS.keys() - {node_id}:
        with refused(Code.WRITE_DENIED):
            bring(room, other, "coordination", f"pref:{node_id}", wish)
    assert visible(room) == before
    bring(room, node_id, "coordination", f"pref:{node_id}", wish)
    record = room.record("coordination", f"pref:{node_id}")
    assert record is not None
    assert {name: record[name] for name in wish} == wish


@pytest.mark.req("OPS-4", "ROOM-3")
@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("sweepEverySeconds", {"value": 30}),
        ("retention:tasks", {"value": 86_400}),
        ("delegationPolicyVersion", {"value": "2026-02-25.1"}),
    ],
)
def test_only_the_coordinator_writes_coordination(room: Room, key: str, fields: dict[str, Any]) -> None:
    """Before there is one any backbone node may; an edge node never."""
    for edge in (EDGE, OTHER_EDGE):
        with refused(Code.WRITE_DENIED):
            bring(room, edge, "coordination", key, fields)
    bring(room, OTHER_SEED, "coordination", key, fields)
    bring(room, SEED, "coordination", "coordinator", {"value": SEED})
    for stranger in (OTHER_SEED, EDGE):
        with refused(Code.WRITE_DENIED):
            bring(room, stranger, "coordination", key, fields)
        # The confirmation is for changing the coordinator and opens nothing else.
        with refused(Code.WRITE_DENIED if key != "sweepEverySeconds" else Code.INVALID_FIELD):
            bring(room, stranger, "coordination", key, fields | {"confirmLastResort": True})
    bring(room, SEED, "coordination", key, fields)


@pytest.mark.req("OPS-4")
@pytest.mark.parametrize("signer", [SEED, OTHER_SEED])
@pytest.mark.parametrize("confirmation", [{}, {"confirmLastResort": False}])
def test_changing_the_coordinator_takes_a_confirmation(room: Room, signer: str, confirmation: dict[str, bool]) -> None:
    """From whoever does it, the present coordinator included; an edge node cannot, confirmed or not."""
    bring(room, SEED, "coordination", "coordinator", {"value": SEED})
    with refused(Code.WRITE_DENIED):
        bring(room, signer, "coordination", "coordinator", {"value": OTHER_SEED} | confirmation)
    with refused(Code.WRITE_DENIED):
        bring(room, EDGE, "coordination", "coordinator", {"value": EDGE, "confirmLastResort": True})
    assert value_of(room, "coordinator") == SEED
    bring(room, signer, "coordination", "coordinator", {"value": OTHER_SEED, "confirmLastResort": True})
    assert value_of(room, "coordinator") == OTHER_SEED
    with refused(Code.WRITE_DENIED):
        bring(room, SEED, "coordination", "sweepEverySeconds", {"value": 60})
    bring(room, OTHER_SEED, "coordination", "sweepEverySeconds", {"value": 60})


@pytest.mark.req("OPS-4")
def test_a_coordinator_may_say_again_that_it_is_one(room: Room) -> None:
    """No confirmation is needed for what changes nothing, and nobody else says it."""
    bring(room, SEED, "coordination", "coordinator", {"value": SEED})
    bring(room, SEED, "coordination", "coordinator", {"value": SEED})
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "coordination", "coordinator", {"value": SEED})


@pytest.mark.req("OPS-4")
@pytest.mark.parametrize("value", ["often", 0, -1, 31_536_001, True, 1.5])
def test_a_sweep_has_a_pace_in_seconds(room: Room, value: Any) -> None:
    """Anything but a positive whole number is no pace."""
    with refused(Code.INVALID_FIELD):
        bring(room, SEED, "coordination", "sweepEverySeconds", {"value": value})
