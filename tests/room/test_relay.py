"""A seed that was away: what others may tell it, and what nobody may."""

from typing import Any

import pytest

from agentpost.protocol.errors import Code
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.document import Room
from agentpost.room.guard import RELAY_TAG, client_tag
from agentpost.room.sync import RoomHub, step_2, update_frame
from agentpost.room.wire import ItemId, encode_write, read_update, var_uint
from agentpost.testing import START_MS, FakeClock
from tests.room.building import (
    EDGE,
    OTHER_EDGE,
    OTHER_SEED,
    SEED,
    Link,
    a_hub,
    a_populated_room,
    a_room,
    a_statement,
    bring,
    revoke,
    run_all,
    signed,
    text_key,
    visible,
    written,
)
from tests.store.building import refused

AGENT = f"agent-of-{OTHER_EDGE}"


def an_edge_that_knows(room: Room) -> RoomHub:
    """An edge node with all that stands in the room."""
    edge = a_hub(a_room(EDGE, seed=3))
    Link(a_hub(room), edge).run()
    return edge


def a_seed_behind(room: Room) -> Room:
    """The first seed as it was before the room went on; it has seen everything up to now."""
    behind = a_room(SEED, seed=7)
    behind.load([room.update_since()])
    return behind


@pytest.mark.req("ROOM-5", "ROOM-3")
def test_an_edge_node_tells_a_seed_what_it_missed() -> None:
    """Records of others come by way of an edge node, the link stays open, and the next writes arrive as well."""
    room = a_populated_room()
    behind = a_seed_behind(room)
    bring(room, OTHER_EDGE, "agents", "fresh", {"ownerNodeId": OTHER_EDGE})
    bring(room, OTHER_SEED, "coordination", "coordinator", {"value": OTHER_SEED})
    edge = an_edge_that_knows(room)
    link = Link(a_hub(behind), edge)
    link.run()
    assert behind.records("agents") == room.records("agents")
    assert behind.records("coordination") == room.records("coordination")
    edge.room.write("agents", "later", {"ownerNodeId": EDGE})
    behind.write("agents", "of-the-seed", {"ownerNodeId": SEED})
    link.run()
    edge.room.write("agents", "later", {"ownerNodeId": EDGE, "role": "worker"})
    link.run()
    assert behind.records("agents") == edge.room.records("agents")
    assert behind.records("agents")["later"]["role"] == "worker"
    assert link.other.refusal is None
    assert link.one.refusal is None


@pytest.mark.req("ROOM-5")
def test_an_empty_seed_gets_the_room_with_its_hand_overs() -> None:
    """Who has nobody else to ask believes what it is told of the past: an agent that moved, and its routing before."""
    room = a_populated_room()
    bring(room, OTHER_EDGE, "routing", AGENT, {"fallbackNodeIds": [SEED]})
    bring(room, OTHER_EDGE, "agents", AGENT, {"ownerNodeId": OTHER_SEED})
    empty = a_room(SEED, seed=8)
    Link(a_hub(empty), an_edge_that_knows(room)).run()
    for name in ("agents", "routing", "coordination"):
        assert empty.records(name) == room.records(name)


@pytest.mark.req("ROOM-5")
def test_a_seed_that_got_the_room_from_edges_agrees_with_the_other_seed_later() -> None:
    """The same records come again in the structs of their writers; everybody ends with one room."""
    room = a_populated_room()
    behind = a_seed_behind(room)
    other = a_hub(a_room(OTHER_SEED))
    Link(a_hub(room), other).run()
    other.room.write("agents", "fresh", {"ownerNodeId": OTHER_SEED})
    edge = a_hub(a_room(EDGE, seed=3))
    Link(other, edge).run()
    hub = a_hub(behind)
    links = [Link(hub, edge)]
    run_all(*links)
    links += [Link(hub, other), Link(other, edge)]
    run_all(*links)
    edge.room.write("agents", "later", {"ownerNodeId": EDGE})
    other.room.write("agents", "fresh", {"ownerNodeId": OTHER_SEED, "role": "worker"})
    run_all(*links)
    for each in (edge.room, other.room):
        assert visible(each)["values"] == visible(behind)["values"]
        assert each.records("agents") == behind.records("agents")


def through(room: Room, *writes: tuple[str, str, dict[str, Any]]) -> bytes:
    """The answer of an edge node to a sync, with these records in it, in structs that are not its own."""
    source = a_room(SEED, seed=11)
    source.load([room.update_since()])
    document = source._document  # pyright: ignore[reportPrivateUsage]
    for place, (map_name, key, record) in enumerate(writes):
        after = source._table.item(map_name, key)  # pyright: ignore[reportPrivateUsage]
        theirs = client_tag(record["signedBy"]) << 32 | place
        document.apply(encode_write(ItemId(theirs, 0), root=map_name, key=key, after=after, value=record))
    return step_2(document.update_since(room.state()))


@pytest.mark.req("ROOM-3")
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_forged_record_gets_in_nowhere(is_alone: bool) -> None:
    """Who has it from others is not cut off for it; the authentic records beside it are taken."""
    room = a_populated_room()
    good = signed(OTHER_EDGE, "agents", "fresh", {"ownerNodeId": OTHER_EDGE})
    bad = signed(OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 9}, by=EDGE)
    writes = [("delivery", OTHER_EDGE, bad)] if is_alone else [("agents", "fresh", good), ("delivery", OTHER_EDGE, bad)]
    session = a_hub(room).open(EDGE)
    session.receive(through(room, *writes))
    assert session.refusal is None
    assert room.record("delivery", OTHER_EDGE) is None
    assert ("fresh" in room.records("agents")) is not is_alone


@pytest.mark.req("ROOM-3")
def test_an_older_record_is_not_brought_back_by_a_relay() -> None:
    """An authentic record from before changes nothing."""
    room = a_populated_room()
    bring(room, OTHER_EDGE, "agents", AGENT, {"ownerNodeId": OTHER_EDGE, "role": "worker"}, rev=START_MS + 50)
    before = visible(room)
    old = signed(OTHER_EDGE, "agents", AGENT, {"ownerNodeId": OTHER_EDGE}, rev=START_MS + 20)
    session = a_hub(room).open(EDGE)
    session.receive(through(room, ("agents", AGENT, old)))
    assert visible(room) == before
    # Not even the clocks of its structs are taken.
    assert session.refusal is None


@pytest.mark.req("ROOM-3")
def test_a_relay_cannot_take_what_is_not_the_signers() -> None:
    """What the bringer itself may not write ends its link; what somebody else may not write is passed over."""
    room = a_populated_room()
    before = visible(room)
    stolen = signed(EDGE, "agents", AGENT, {"ownerNodeId": EDGE}, rev=START_MS + 99)
    with refused(Code.WRITE_DENIED):
        a_hub(room).open(EDGE).receive(through(room, ("agents", AGENT, stolen)))
    session = a_hub(room).open(EDGE)
    taken = signed(OTHER_SEED, "agents", AGENT, {"ownerNodeId": OTHER_SEED}, rev=START_MS + 99)
    session.receive(through(room, ("agents", AGENT, taken)))
    assert session.refusal is None
    assert visible(room) == before


@pytest.mark.req("ROOM-3", "ROOM-6")
def test_a_revoked_nodes_records_do_not_come_back_by_a_relay() -> None:
    """Neither what it signed after it was thrown out, nor its word for somebody new."""
    room = a_populated_room()
    revoke(room, OTHER_SEED, by=SEED)
    before = visible(room)
    late = signed(OTHER_SEED, "delivery", OTHER_SEED, {"inboxCursorAcked": 7}, rev=START_MS + 99)
    key, said = a_statement("friend-jane", by=OTHER_SEED, key=text_key(OTHER_EDGE), tier=NodeTier.EDGE)
    admitted = signed(OTHER_SEED, "coordination", key, said)
    a_hub(room).open(EDGE).receive(
        through(room, ("delivery", OTHER_SEED, late), ("coordination", key, admitted)),
    )
    assert visible(room) == before


@pytest.mark.req("ROOM-3")
def test_a_relay_takes_no_clock_of_another_node() -> None:
    """An edge node sends places of another's client without content; that node's next write still arrives."""
    room = a_populated_room()
    hub = a_hub(room)
    victim = a_hub(a_room(OTHER_EDGE, seed=5))
    link = Link(hub, victim)
    link.run()
    victim.room.write("agents", "one", {"ownerNodeId": OTHER_EDGE})
    link.run()
    (place,) = [item.id for item in read_update(room.update_since()).writes if item.key == "one"]
    squatted = b"\x01\x01" + var_uint(place.client) + var_uint(place.clock + 1) + b"\x00\x05\x00"
    session = hub.open(EDGE)
    session.receive(step_2(squatted))
    with refused(Code.WRITE_DENIED):
        hub.open(EDGE).receive(update_frame(squatted))
    victim.room.write("agents", "two", {"ownerNodeId": OTHER_EDGE})
    link.run()
    assert "two" in room.records("agents")


@pytest.mark.req("ROOM-3")
def test_a_client_id_that_carries_one_record_carries_no_second() -> None:
    """Anybody may pass a record on in a struct of its own, forged or old ones excepted, and nobody goes on with it."""
    room = a_populated_room()
    client = RELAY_TAG << 32 | 5
    record = signed(OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 2}, rev=START_MS + 2)
    room.receive(written(room, "delivery", OTHER_EDGE, record, client=client), peer=EDGE)
    assert room.record("delivery", OTHER_EDGE) == record
    more = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1})
    second = encode_write(ItemId(client, 1), root="delivery", key=EDGE, after=None, value=more)
    for peer in (EDGE, OTHER_SEED):
        with refused(Code.WRITE_DENIED):
            room.receive(second, peer=peer)
    old = signed(OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 1}, rev=START_MS + 1)
    forged = signed(OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 9}, rev=START_MS + 9, by=EDGE)
    for bad in (old, forged):
        with refused(Code.WRITE_DENIED):
            room.receive(written(room, "delivery", OTHER_EDGE, bad, client=client + 1), peer=EDGE)
    # Beside what stands there, and not after it, Yjs may show the old one; the newer is put back at once.
    beside = encode_write(ItemId(client + 2, 0), root="delivery", key=OTHER_EDGE, after=None, value=old)
    room.receive(beside, peer=EDGE)
    assert room.record("delivery", OTHER_EDGE) == record
    assert visible(room)["values"]["delivery"][OTHER_EDGE]["inboxCursorAcked"] == 2


@pytest.mark.req("ROOM-3")
def test_only_the_answer_to_a_sync_may_tell_of_others() -> None:
    """An edge node that passes on another's record as a write of the moment is refused, as ever."""
    room = a_populated_room()
    record = signed(OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 1})
    with refused(Code.WRITE_DENIED):
        a_hub(room).open(EDGE).receive(update_frame(written(room, "delivery", OTHER_EDGE, record)))


@pytest.mark.req("ROOM-5", "ROOM-6")
@pytest.mark.parametrize("what", ["revocation", "hand-over"])
def test_news_that_cross_on_two_ways_close_no_honest_link(what: str) -> None:
    """One seed hears of a write, the other of what forbids it; both links live, and both end with the same room."""
    clock = FakeClock()
    first = a_hub(a_populated_room(clock=clock), clock)
    second = a_hub(a_room(OTHER_SEED, clock=clock), clock)
    between = Link(first, second)
    between.run()
    edge = a_hub(a_room(EDGE, clock=clock), clock)
    run_all(Link(first, edge))
    clock.advance(1_000)
    # Each side writes before it hears of the other's.
    if what == "revocation":
        bring(second.room, OTHER_EDGE, "delivery", OTHER_EDGE, {"inboxCursorAcked": 5})
        first.room.revoke(OTHER_EDGE)
    else:
        bring(second.room, EDGE, "routing", f"agent-of-{EDGE}", {"fallbackNodeIds": [SEED]})
        bring(first.room, EDGE, "agents", f"agent-of-{EDGE}", {"ownerNodeId": OTHER_EDGE})
    between.run()
    assert between.one.refusal is None
    assert between.other.refusal is None
    for name in ("agents", "routing", "coordination", "delivery"):
        assert first.room.records(name) == second.room.records(name)
    second.room.write("agents", "later", {"ownerNodeId": OTHER_SEED})
    between.run()
    assert "later" in first.room.records("agents")


@pytest.mark.req("ROOM-5")
def test_an_own_write_that_crossed_with_a_new_coordinator_is_settled_by_the_next_link() -> None:
    """A write that crossed may close the link once; after that both have the same room."""
    first = a_hub(a_populated_room())
    second = a_hub(a_room(OTHER_SEED))
    between = Link(first, second)
    between.run()
    second.room.write("coordination", "sweepEverySeconds", {"value": 30})
    first.room.write("coordination", "coordinator", {"value": SEED})
    with refused(Code.WRITE_DENIED):
        between.run()
    between.cut()
    Link(first, second).run()
    assert first.room.records("coordination") == second.room.records("coordination")


@pytest.mark.req("ROOM-6", "ROUTE-9")
def test_what_a_revoked_node_signed_too_late_counts_nowhere() -> None:
    """A seed that did not know of the revocation took a write; once all know, none shows it, and all agree."""
    clock = FakeClock()
    first = a_hub(a_populated_room(clock=clock), clock)
    second = a_hub(a_room(OTHER_SEED, clock=clock), clock)
    Link(first, second).run()
    first.room.revoke(OTHER_EDGE)
    bring(second.room, OTHER_EDGE, "agents", "late", {"ownerNodeId": OTHER_EDGE}, rev=clock.now_ms() + 60_000)
    assert "late" in second.room.snapshot().agents
    Link(first, second).run()
    one, other = first.room.snapshot(), second.room.snapshot()
    assert "late" not in one.agents
    assert one.agents == other.agents
    assert one.routing_policy_version == other.routing_policy_version


@pytest.mark.req("ROOM-3")
def test_a_backbone_node_is_cut_off_for_what_it_signed_itself_only() -> None:
    """What it passes on of others is set aside; a record of its own that takes another's agent ends its link."""
    room = a_populated_room()
    forged = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1}, by=OTHER_SEED)
    session = a_hub(room).open(OTHER_SEED)
    session.receive(update_frame(written(room, "delivery", EDGE, forged)))
    assert session.refusal is None
    assert room.record("delivery", EDGE) is None
    assert room.set_aside()["delivery", EDGE].signer == EDGE
    own = signed(OTHER_SEED, "agents", AGENT, {"ownerNodeId": OTHER_SEED}, rev=START_MS + 9)
    with refused(Code.WRITE_DENIED):
        session.receive(update_frame(written(room, "agents", AGENT, own)))


@pytest.mark.req("ROOM-5")
@pytest.mark.parametrize("life", range(8))
def test_a_seed_learns_from_several_edges_of_which_one_knows_less(life: int) -> None:
    """The newest record counts, whoever came first, and what the nodes write afterwards reaches all of them."""
    clock = FakeClock()
    room = a_populated_room(clock=clock)
    other = a_hub(a_room(OTHER_SEED, clock=clock), clock)
    Link(a_hub(room, clock), other).run()
    less, more = a_hub(a_room(EDGE, clock=clock), clock), a_hub(a_room(OTHER_EDGE, clock=clock), clock)
    links = [Link(other, less), Link(other, more)]
    run_all(*links)
    for number in range(3):
        clock.advance(1_000)
        other.room.write("agents", f"agent-of-{OTHER_SEED}", {"ownerNodeId": OTHER_SEED, "lastSeenAt": number})
        run_all(*links)
        if number == 0:
            links.pop(0).cut()
    links[0].cut()
    seed = a_hub(a_room(SEED, clock=clock, seed=20 + life), clock)
    if life % 2:
        seed.room.load([room.update_since()])
    links = [Link(seed, less)]
    run_all(*links)
    links.append(Link(seed, more))
    run_all(*links)
    for hub in (less, more):
        hub.room.write("agents", f"later-of-{hub.room.node_id}", {"ownerNodeId": hub.room.node_id})
        run_all(*links)
    for hub in (seed, less, more):
        assert hub.room.records("agents")[f"agent-of-{OTHER_SEED}"]["lastSeenAt"] == 2
        assert hub.room.records("agents") == seed.room.records("agents")
        assert visible(hub.room)["values"] == visible(seed.room)["values"]
    assert len(seed.room.records("agents")) == 6
