"""Several records in one update."""

import pytest

from agentpost.protocol.errors import Code, Refusal
from tests.room.building import EDGE, SEED, a_capability, a_populated_room, an_index


@pytest.mark.req("CAP-3")
def test_records_that_belong_together_arrive_in_one_update() -> None:
    """Catalog and index change in one update, so nobody sees one of them without the other."""
    room = a_populated_room()
    agent, heard = f"agent-of-{SEED}", list[bytes]()
    room.subscribe(lambda update, _origin: heard.append(update))
    writes = [
        ("capabilities.catalog", "cap.x", a_capability("cap.x", agent=agent, node=SEED)),
        ("capabilities.index", "cap.x", an_index("cap.x", agent)),
    ]
    assert room.write_together(writes) is True
    assert len(heard) == 1
    assert room.write_together(writes) is False
    assert len(heard) == 1
    version = room.snapshot().capability_policy_version
    assert room.write_together(
        [
            ("capabilities.catalog", "cap.x", {"status": "removed"}),
            ("capabilities.index", "cap.x", {"status": "removed"}),
        ]
    )
    assert len(heard) == 2
    assert room.snapshot().capability_policy_version != version
    assert "cap.x" not in room.snapshot().catalog


@pytest.mark.req("ROOM-3")
def test_one_record_that_is_refused_takes_the_others_with_it() -> None:
    """An update with one record that this node may not write changes nothing at all."""
    room = a_populated_room()
    agent = f"agent-of-{SEED}"
    with pytest.raises(Refusal) as caught:
        room.write_together(
            [
                ("capabilities.catalog", "cap.x", a_capability("cap.x", agent=agent, node=SEED)),
                ("agents", f"agent-of-{EDGE}", {"ownerNodeId": SEED}),
            ]
        )
    assert caught.value.code is Code.WRITE_DENIED
    assert room.record("capabilities.catalog", "cap.x") is None
    assert room.write("capabilities.catalog", "cap.x", a_capability("cap.x", agent=agent, node=SEED))
