"""Who may write what, for every map: the owner may, everybody else is refused, and nothing changes then."""

from typing import Any

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from tests.room.building import (
    EDGE,
    OTHER_EDGE,
    OTHER_SEED,
    SEED,
    a_capability,
    a_cursor,
    a_node,
    a_populated_room,
    a_room,
    a_statement,
    admit_all,
    an_index,
    bring,
    revoke,
    signed,
    text_key,
    visible,
    written,
)
from tests.store.building import refused

INVITE = {"tier": "edge", "expiresAt": 1_772_037_000_000, "expectedNodeId": "new-jane"}
REVIEW = {
    "reviewId": "rev_01JV3T7E6Q8M1W2R4D9K0N5P7H",
    "capabilityId": "cap.x",
    "delegationSkillVersion": "1.3.0",
    "executorSkillVersion": "1.3.0",
    "failureClass": "sla_breach",
    "sampleCorrIds": ["corr_01JV3T7E6Q8M1W2R4D9K0N5P7H"],
    "createdAt": "2026-02-25T18:05:00.000Z",
}
INTENT = {"intent": "release", "ownerAgent": "architect", "slaClaimSec": 60, "closeNotify": ["requester"]}

# Map, key, record, who may write it, who may not.
CASES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("nodes", EDGE, a_node(EDGE, status="degraded"), EDGE, OTHER_EDGE),
    ("nodes", EDGE, a_node(EDGE, status="degraded"), EDGE, SEED),
    ("agents", f"agent-of-{EDGE}", {"ownerNodeId": EDGE, "role": "worker"}, EDGE, OTHER_EDGE),
    ("agents", f"agent-of-{EDGE}", {"ownerNodeId": OTHER_EDGE}, EDGE, OTHER_EDGE),
    ("agents", f"agent-of-{EDGE}", {"ownerNodeId": OTHER_SEED}, EDGE, OTHER_SEED),
    ("agents", "new-agent", {"ownerNodeId": EDGE}, EDGE, OTHER_EDGE),
    ("routing", f"agent-of-{EDGE}", {"fallbackNodeIds": [SEED]}, EDGE, OTHER_EDGE),
    ("routing", f"agent-of-{EDGE}", {"fallbackNodeIds": [SEED]}, EDGE, SEED),
    ("capabilities.catalog", "cap.x", a_capability("cap.x", agent=f"agent-of-{EDGE}", node=EDGE), EDGE, OTHER_EDGE),
    ("invites", "inv_1", INVITE | {"createdBy": SEED}, SEED, OTHER_SEED),
    ("delivery", EDGE, {"inboxCursorAcked": 7, "deadLetterCount": 0}, EDGE, SEED),
    ("delivery.cursors", f"{EDGE}/{SEED}", a_cursor(EDGE, SEED), EDGE, SEED),
    ("coordination", f"pref:{EDGE}", {"desiredCoordinator": SEED}, EDGE, OTHER_EDGE),
    ("coordination", f"delegationAck:agent-of-{EDGE}:version", {"value": "2026-02-25.1"}, EDGE, OTHER_EDGE),
    ("coordination", "coordinator", {"value": SEED}, SEED, EDGE),
    ("coordination", "sweepEverySeconds", {"value": 45}, OTHER_SEED, EDGE),
    ("coordination", "skillReviewQueue:rev_01JV3T7E6Q8M1W2R4D9K0N5P7H", REVIEW, SEED, EDGE),
    ("coordination", "delegationIntent:release", INTENT, SEED, EDGE),
]


@pytest.mark.req("ROOM-2", "ROOM-3")
@pytest.mark.parametrize(("map_name", "key", "fields", "owner", "stranger"), CASES)
def test_the_owner_may_and_others_may_not(
    map_name: str, key: str, fields: dict[str, Any], owner: str, stranger: str
) -> None:
    """A record of every map is taken from its owner, and refused from somebody else with nothing changed."""
    room = a_populated_room()
    before = visible(room)
    with refused(Code.WRITE_DENIED):
        bring(room, stranger, map_name, key, fields)
    assert visible(room) == before
    bring(room, owner, map_name, key, fields)
    record = room.record(map_name, key)
    assert record is not None
    assert record["signedBy"] == owner


@pytest.mark.req("ROOM-3")
def test_an_agent_is_handed_over_by_its_owner_and_is_then_the_others() -> None:
    """After a hand-over the new owner writes the agent and the old one does not any more."""
    room = a_populated_room()
    agent = f"agent-of-{EDGE}"
    bring(room, EDGE, "agents", agent, {"ownerNodeId": OTHER_EDGE})
    with refused(Code.WRITE_DENIED):
        bring(room, EDGE, "agents", agent, {"ownerNodeId": EDGE})
    bring(room, OTHER_EDGE, "agents", agent, {"ownerNodeId": OTHER_EDGE, "role": "worker"})
    bring(room, OTHER_EDGE, "routing", agent, {"fallbackNodeIds": [SEED]})
    assert room.snapshot().agents[agent].owner_node_id == OTHER_EDGE


@pytest.mark.req("ROOM-3")
def test_a_capability_belongs_to_the_owner_of_its_agent() -> None:
    """Nobody publishes for another's agent, takes over another's capability, or makes agents eligible for it."""
    room = a_populated_room()
    agent, cap = f"agent-of-{EDGE}", "cap.x"
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_EDGE, "capabilities.catalog", cap, a_capability(cap, agent=agent, node=OTHER_EDGE))
    with refused(Code.WRITE_DENIED):
        bring(room, EDGE, "capabilities.index", cap, an_index(cap, agent))
    bring(room, EDGE, "capabilities.catalog", cap, a_capability(cap, agent=agent, node=EDGE))
    bring(room, EDGE, "capabilities.index", cap, an_index(cap, agent))
    theirs = a_capability(cap, agent=f"agent-of-{OTHER_EDGE}", node=OTHER_EDGE)
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_EDGE, "capabilities.catalog", cap, theirs)
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_EDGE, "capabilities.index", cap, an_index(cap, f"agent-of-{OTHER_EDGE}"))
    assert room.snapshot().index[cap].eligible_agent_ids == (agent,)


@pytest.mark.req("ROOM-3", "OPS-4")
def test_coordination_is_the_coordinators() -> None:
    """Once there is a coordinator, another backbone node writes nothing of it, unless it confirms the last resort."""
    room = a_populated_room()
    bring(room, SEED, "coordination", "coordinator", {"value": SEED})
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "coordination", "sweepEverySeconds", {"value": 30})
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "coordination", "coordinator", {"value": OTHER_SEED})
    bring(room, OTHER_SEED, "coordination", "coordinator", {"value": OTHER_SEED, "confirmLastResort": True})
    bring(room, OTHER_SEED, "coordination", "sweepEverySeconds", {"value": 30})
    with refused(Code.WRITE_DENIED):
        bring(room, SEED, "coordination", "sweepEverySeconds", {"value": 60})


@pytest.mark.req("ROOM-3")
def test_an_edge_node_brings_its_own_records_only_and_a_backbone_node_relays() -> None:
    """What an edge node wrote arrives through a backbone node, not through another edge node."""
    room = a_populated_room()
    with refused(Code.WRITE_DENIED):
        bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": 1}, peer=OTHER_EDGE)
    bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": 1}, peer=OTHER_SEED)
    assert room.records("delivery")[EDGE]["inboxCursorAcked"] == 1


@pytest.mark.req("ROOM-3")
def test_a_removed_record_stays_as_a_removal() -> None:
    """The owner takes its agent out; nobody else does, and the name is free afterwards."""
    room = a_populated_room()
    agent = f"agent-of-{EDGE}"
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_EDGE, "agents", agent, {"status": "removed"})
    bring(room, EDGE, "agents", agent, {"status": "removed"})
    assert agent not in room.snapshot().agents
    bring(room, OTHER_EDGE, "agents", agent, {"ownerNodeId": OTHER_EDGE})
    assert room.snapshot().agents[agent].owner_node_id == OTHER_EDGE


@pytest.mark.req("ROOM-6")
def test_a_revoked_node_is_out_until_it_is_admitted_again() -> None:
    """After a revocation nothing is taken from that node, the router does not see it, and it cannot lift it."""
    room = a_populated_room()
    revoke(room, OTHER_SEED, by=SEED)
    assert OTHER_SEED not in room.snapshot().nodes
    assert f"agent-of-{OTHER_SEED}" not in room.snapshot().agents
    with refused(Code.NODE_REVOKED):
        bring(room, OTHER_SEED, "delivery", OTHER_SEED, {"inboxCursorAcked": 1})
    key, said = a_statement(OTHER_SEED, by=OTHER_SEED)
    with refused(Code.NODE_REVOKED):
        bring(room, OTHER_SEED, "coordination", key, said)
    room.admit(OTHER_SEED, text_key(OTHER_SEED), NodeTier.BACKBONE)
    bring(room, OTHER_SEED, "delivery", OTHER_SEED, {"inboxCursorAcked": 1})
    assert OTHER_SEED in room.snapshot().nodes
    assert f"agent-of-{OTHER_SEED}" in room.snapshot().agents


@pytest.mark.req("ROOM-6")
@pytest.mark.parametrize("act", ["admit", "revoke"])
def test_only_a_backbone_member_says_who_is_one(act: str) -> None:
    """An edge node is cut off for trying, and so is a node that speaks of itself or in another's name."""
    room = a_populated_room()
    before = visible(room)
    for by, node_id in ((EDGE, OTHER_EDGE), (OTHER_SEED, OTHER_SEED)):
        key, said = a_statement(node_id, by=by, act=act)
        with refused(Code.WRITE_DENIED):
            bring(room, by, "coordination", key, said)
    key, said = a_statement(OTHER_EDGE, by=SEED, act=act)
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "coordination", key, said)
    assert visible(room) == before


@pytest.mark.req("ROOM-3", "AUTH-7")
def test_nobody_is_believed_without_an_admission() -> None:
    """A node that no backbone node admitted, or only an edge node, cannot write even its own record."""
    room = a_room(SEED)
    admit_all(room, EDGE)
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_EDGE, "nodes", OTHER_EDGE, a_node(OTHER_EDGE))
    with refused(Code.WRITE_DENIED):
        bring(room, EDGE, "nodes", EDGE, a_node(EDGE, tier="backbone"))
    with refused(Code.WRITE_DENIED):
        bring(room, EDGE, "nodes", EDGE, a_node(EDGE, publicKey=text_key(OTHER_EDGE)))


@pytest.mark.req("ROOM-6")
def test_a_statement_is_neither_altered_nor_removed() -> None:
    """Not even by the one who made it: what others build on it would fall."""
    room = a_populated_room()
    key, said = a_statement(OTHER_EDGE, by=OTHER_SEED)
    bring(room, OTHER_SEED, "coordination", key, said)
    with refused(Code.WRITE_DENIED):
        bring(room, OTHER_SEED, "coordination", key, said | {"nodeId": EDGE})
    with refused(Code.INVALID_FIELD):
        bring(room, OTHER_SEED, "coordination", key, {"status": "removed"})


@pytest.mark.req("ROOM-3")
@pytest.mark.parametrize(
    ("map_name", "key", "fields", "owner", "stranger"),
    [case for case in CASES if case[2].get("ownerNodeId") != case[4]],
)
def test_a_stranger_does_not_overwrite_what_stands_there(
    map_name: str, key: str, fields: dict[str, Any], owner: str, stranger: str
) -> None:
    """Once its owner has written a record, a stranger neither alters nor removes it, whatever the map."""
    room = a_populated_room()
    bring(room, owner, map_name, key, fields)
    if map_name == "coordination" and key in ("coordinator", "sweepEverySeconds"):
        bring(room, SEED, "coordination", "coordinator", {"value": SEED})
    before = visible(room)
    for news in (fields, {"status": "removed"}):
        with refused(Code.WRITE_DENIED):
            bring(room, stranger, map_name, key, news)
    assert visible(room) == before


@pytest.mark.req("ROOM-6")
@pytest.mark.parametrize("is_sync", [True, False])
def test_nothing_that_a_revoked_peer_brings_is_even_read(is_sync: bool) -> None:
    """Its updates are refused at the door, also those that would change nothing."""
    room = a_populated_room()
    revoke(room, EDGE, by=SEED)
    before = visible(room)
    for update in (b"\x00\x00", b"\xff\xff", written(room, "delivery", SEED, signed(SEED, "delivery", SEED, {}))):
        with refused(Code.NODE_REVOKED):
            room.receive(update, peer=EDGE, is_sync=is_sync)
    assert visible(room) == before


def test_a_room_cannot_write_what_others_would_refuse() -> None:
    """The own writes pass the same guard."""
    room = a_populated_room()
    with pytest.raises(Refusal):
        room.write("agents", f"agent-of-{EDGE}", {"ownerNodeId": SEED})
    with pytest.raises(Refusal):
        room.write("agents", "../etc/passwd", {"ownerNodeId": SEED})
