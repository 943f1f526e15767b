"""One rule for all replicas: no member stops the mesh, and what is not believed is believed nowhere."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.document import Room
from agentpost.room.guard import client_tag
from agentpost.room.schema import MAPS
from agentpost.room.sync import RoomHub, update_frame
from agentpost.room.wire import ItemId, encode_write
from agentpost.testing import START_MS, FakeClock
from tests.room.building import (
    EDGE,
    KEYS,
    OTHER_EDGE,
    OTHER_SEED,
    SEED,
    Link,
    a_capability,
    a_hub,
    a_node,
    a_populated_room,
    a_room,
    admit_all,
    an_index,
    bring,
    revoke,
    run_all,
    signed,
    text_key,
    visible,
    written,
)
from tests.store.building import refused


def a_mesh() -> tuple[RoomHub, RoomHub, Link]:
    """The first seed, which has let both edge nodes in, and one of them with a link to it."""
    clock = FakeClock()
    seed, victim = a_hub(a_room(SEED, clock=clock), clock), a_hub(a_room(OTHER_EDGE, clock=clock), clock)
    seed.room.write("nodes", SEED, a_node(SEED))
    admit_all(seed.room, EDGE, OTHER_EDGE)
    link = Link(seed, victim)
    link.run()
    victim.room.write("nodes", OTHER_EDGE, a_node(OTHER_EDGE))
    victim.room.write("agents", "honest", {"ownerNodeId": OTHER_EDGE})
    link.run()
    return seed, victim, link


def never_said_who_it_is(seed: Room) -> None:
    """A member writes an agent before its own record, which it never writes."""
    bring(seed, EDGE, "agents", "evil", {"ownerNodeId": EDGE})


def takes_its_own_record_back(seed: Room) -> None:
    """A member writes an agent, and then says that it is removed itself."""
    bring(seed, EDGE, "nodes", EDGE, a_node(EDGE))
    bring(seed, EDGE, "agents", "evil", {"ownerNodeId": EDGE})
    bring(seed, EDGE, "nodes", EDGE, {"status": "removed"})


def says_nothing_of_its_key(seed: Room) -> None:
    """A member writes an agent, and then its own record anew, without a key."""
    bring(seed, EDGE, "nodes", EDGE, a_node(EDGE))
    bring(seed, EDGE, "agents", "evil", {"ownerNodeId": EDGE})
    bring(seed, EDGE, "nodes", EDGE, {"tier": "edge", "status": "online"})


@pytest.mark.req("ROOM-3", "ROOM-5")
@pytest.mark.parametrize("poison", [never_said_who_it_is, takes_its_own_record_back, says_nothing_of_its_key])
def test_no_write_of_a_member_stops_the_mesh(poison: Callable[[Room], None]) -> None:
    """The link of another member lives, it can connect again, newcomers get the room, and all believe the same."""
    seed, victim, link = a_mesh()
    poison(seed.room)
    link.run()
    link.cut()
    again = Link(seed, victim)
    again.run()
    fresh = a_hub(a_room(EDGE, seed=4))
    newcomer = Link(seed, fresh)
    newcomer.run()
    for session in (link.one, link.other, again.one, again.other, newcomer.one, newcomer.other):
        assert session.refusal is None
    for name in MAPS:
        assert victim.room.records(name) == seed.room.records(name) == fresh.room.records(name)
    assert "honest" in fresh.room.records("agents")


@pytest.mark.req("ROOM-6")
def test_a_revocation_removes_what_the_node_wrote_everywhere() -> None:
    """Its agents, and what stands in the document of them, are gone for those that were there and for newcomers."""
    seed, victim, link = a_mesh()
    takes_its_own_record_back(seed.room)
    bring(seed.room, EDGE, "routing", "evil", {"fallbackNodeIds": [OTHER_EDGE]})
    link.run()
    seed.room.revoke(EDGE)
    seed.room.heal(seed.room.left_over())
    fresh = a_hub(a_room(OTHER_EDGE, seed=4))
    run_all(link, Link(seed, fresh))
    for hub in (seed, victim, fresh):
        assert "evil" not in hub.room.snapshot().agents
        assert "evil" not in hub.room.snapshot().routing
        assert hub.room.left_over() == frozenset()
        assert EDGE not in str(visible(hub.room)["values"]["agents"])
    # The name is free.
    victim.room.write("agents", "evil", {"ownerNodeId": OTHER_EDGE})
    link.run()
    assert seed.room.snapshot().agents["evil"].owner_node_id == OTHER_EDGE


@pytest.mark.req("ROOM-5")
def test_a_room_that_is_poisoned_already_heals() -> None:
    """Whatever stands in a stored room under nobody's name is passed over, passed on, and written over in the end."""
    seed, victim, link = a_mesh()
    stranger = signed("stranger-jane", "agents", "evil", {"ownerNodeId": "stranger-jane"}, by=EDGE)
    update = encode_write(ItemId(77, 0), root="agents", key="evil", after=None, value=stranger)
    again = a_room(SEED, seed=5)
    ignored = again.load([seed.room.update_since(), update])
    assert [each.where for each in ignored] == ["agents.evil"]
    hub = a_hub(again)
    link.cut()
    later = Link(hub, victim)
    later.run()
    assert later.other.refusal is None
    assert ("agents", "evil") in victim.room.set_aside()
    again.heal(again.left_over())
    later.run()
    assert victim.room.set_aside() == {}
    assert again.set_aside() == {}


@pytest.mark.req("ROOM-3", "ROOM-5")
def test_what_a_relay_brings_of_others_never_ends_its_session() -> None:
    """Unknown signers, forged and revoked ones, records of a newer version: merged, set aside, told of, passed on."""
    room = a_populated_room()
    hub = a_hub(room)
    told: list[tuple[str | None, str]] = []
    room.on_aside = lambda aside, peer: told.append((aside.signer, peer))
    revoke(room, OTHER_EDGE, by=SEED)
    reader = a_hub(a_room(EDGE, seed=3))
    link = Link(hub, reader)
    link.run()
    session = hub.open(OTHER_SEED)
    bad = [
        ("agents", "a", signed("stranger-jane", "agents", "a", {"ownerNodeId": "stranger-jane"}, by=EDGE)),
        ("agents", "b", signed(EDGE, "agents", "b", {"ownerNodeId": EDGE}, by=OTHER_EDGE)),
        ("agents", "c", signed(OTHER_EDGE, "agents", "c", {"ownerNodeId": OTHER_EDGE})),
        ("agents", "d", signed(EDGE, "agents", "d", {"ownerNodeId": EDGE, "mood": "good"})),
        ("coordination", "mood:of-the-mesh", signed(EDGE, "coordination", "mood:of-the-mesh", {"value": 1})),
        ("routing", "nobodys", signed(EDGE, "routing", "nobodys", {"fallbackNodeIds": []})),
    ]
    for place, (map_name, key, record) in enumerate(bad):
        client = client_tag("stranger-jane") << 32 | place
        after = room._table.item(map_name, key)  # pyright: ignore[reportPrivateUsage]
        session.receive(
            update_frame(encode_write(ItemId(client, 0), root=map_name, key=key, after=after, value=record))
        )
    link.run()
    assert session.refusal is None
    assert link.other.refusal is None
    assert [signer for signer, _ in told] == ["stranger-jane", EDGE, OTHER_EDGE, EDGE, EDGE, EDGE]
    assert {peer for _, peer in told} == {OTHER_SEED}
    for each in (room, reader.room):
        assert each.set_aside().keys() >= {(map_name, key) for map_name, key, _ in bad}
        assert not {"a", "b", "c", "d"} & each.records("agents").keys()
    # A payload is no record of any version.
    payload = signed(EDGE, "agents", "e", {"ownerNodeId": EDGE, "body": "a secret"})
    with refused(Code.WRITE_DENIED):
        session.receive(update_frame(written(room, "agents", "e", payload)))


@pytest.mark.req("ROOM-3")
@pytest.mark.parametrize("what", ["a stranger's", "an older one", "a removal"])
def test_a_relay_hides_no_record_that_is_believed(what: str) -> None:
    """Whatever is written over it by others, the owner's record is put back, with all of them the same."""
    room = a_populated_room()
    agent = f"agent-of-{EDGE}"
    good = signed(EDGE, "agents", agent, {"ownerNodeId": EDGE, "role": "worker"}, rev=START_MS + 50)
    room.receive(written(room, "agents", agent, good), peer=EDGE)
    bad = {
        "a stranger's": signed("stranger-jane", "agents", agent, {"ownerNodeId": EDGE}, rev=START_MS + 99, by=EDGE),
        "an older one": signed(EDGE, "agents", agent, {"ownerNodeId": EDGE}, rev=START_MS + 20),
        "a removal": signed(OTHER_EDGE, "agents", agent, {"status": "removed"}, rev=START_MS + 99),
    }[what]
    reader = a_room(OTHER_EDGE)
    reader.receive(room.update_since(), peer=SEED, is_sync=True)
    room.subscribe(lambda update, _origin: reader.receive(update, peer=SEED) and None)
    room.receive(written(room, "agents", agent, bad), peer=OTHER_SEED)
    for each in (room, reader):
        assert each.record("agents", agent) == good
        assert visible(each)["values"]["agents"][agent] == good


@pytest.mark.req("ROOM-5")
def test_two_edges_of_the_same_agent_name_stay_in_the_mesh() -> None:
    """The second one takes the seed's room anew, keeps what is its own, and is not refused again."""
    clock = FakeClock()
    seed = a_hub(a_room(SEED, clock=clock), clock)
    admit_all(seed.room, EDGE, OTHER_EDGE)
    first, second = (a_hub(a_room(node_id, clock=clock), clock) for node_id in (EDGE, OTHER_EDGE))
    for hub in (first, second):
        link = Link(seed, hub)
        hub.room.write("nodes", hub.room.node_id, a_node(hub.room.node_id))
        link.run()
        link.cut()
        clock.advance(5)
        hub.room.write("agents", "bob", {"ownerNodeId": hub.room.node_id})
    second.room.write("agents", "carol", {"ownerNodeId": OTHER_EDGE})
    link = Link(seed, first)
    link.run()
    with refused(Code.WRITE_DENIED):
        Link(seed, second).run()
    own = second.room.start_over()
    link = Link(seed, second)
    link.run()
    for map_name, key, record in own:
        fields = {name: value for name, value in record.items() if name not in ("rev", "signedBy", "sig")}
        if key == "bob":
            with pytest.raises(Refusal):
                second.room.write(map_name, key, fields)
        else:
            second.room.write(map_name, key, fields)
    link.run()
    assert link.one.refusal is None
    assert link.other.refusal is None
    assert seed.room.records("agents")["bob"]["ownerNodeId"] == EDGE
    assert seed.room.records("agents")["carol"]["ownerNodeId"] == OTHER_EDGE
    assert second.room.records("agents") == seed.room.records("agents")


@pytest.mark.req("ROOM-6", "ROUTE-7", "ROUTE-8")
def test_nothing_of_a_revoked_node_is_routed_to() -> None:
    """Its agents, capabilities and what it said of its backlog are in no view, and come back with it."""
    room = a_populated_room()
    agent = f"agent-of-{EDGE}"
    bring(room, EDGE, "capabilities.catalog", "cap.x", a_capability("cap.x", agent=agent, node=EDGE))
    bring(room, EDGE, "capabilities.index", "cap.x", an_index("cap.x", agent))
    bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": 1})
    before = room.snapshot()
    assert agent in before.agents
    assert "cap.x" in before.catalog
    room.revoke(EDGE)
    after = room.snapshot()
    assert agent not in after.agents
    assert "cap.x" not in after.catalog
    assert "cap.x" not in after.index
    assert EDGE not in after.nodes
    assert room.record("delivery", EDGE) is None
    room.admit(EDGE, text_key(EDGE), NodeTier.EDGE)
    assert room.snapshot().agents == before.agents
    assert room.snapshot().catalog == before.catalog


Write = tuple[str, str, str, dict[str, Any], int, str]


def many_writes(chance: random.Random) -> list[Write]:
    """What members, revoked nodes and strangers write: signer, map, key, fields, rev, and whose key signed it."""
    nodes = [*KEYS, "stranger-jane"]
    agents = [f"agent-of-{node_id}" for node_id in KEYS] + ["bob"]
    writes: list[Write] = []
    for number in range(40):
        signer, owner, agent = chance.choice(nodes), chance.choice(nodes), chance.choice(agents)
        key = signer if signer in KEYS and chance.random() < 0.8 else EDGE
        map_name, where, fields = chance.choice(
            [
                ("nodes", signer, a_node(signer) if signer in KEYS else {"tier": "edge", "status": "online"}),
                ("agents", agent, {"ownerNodeId": owner}),
                ("agents", agent, {"status": "removed"}),
                ("routing", agent, {"fallbackNodeIds": [SEED]}),
                ("capabilities.catalog", "cap.x", a_capability("cap.x", agent=agent, node=signer)),
                ("capabilities.index", "cap.x", an_index("cap.x", agent)),
                ("delivery", owner, {"inboxCursorAcked": number}),
                ("coordination", f"pref:{owner}", {"desiredCoordinator": SEED}),
                ("coordination", f"delegationAck:{agent}:version", {"value": "1"}),
                ("coordination", "sweepEverySeconds", {"value": 30}),
            ]
        )
        writes.append((signer, map_name, where, fields, START_MS + number, key))
    return writes


@pytest.mark.req("ROOM-3", "ROOM-5")
@pytest.mark.parametrize("seed", range(20))
def test_replicas_that_hold_the_same_document_believe_the_same(seed: int) -> None:
    """However the updates arrived, one by one from several seeds or all at once, before or after the statements."""
    chance = random.Random(seed)
    source = a_room(SEED, seed=seed)
    updates: list[bytes] = []
    source.subscribe(lambda update, _origin: updates.append(update))
    admit_all(source)
    for signer, map_name, key, fields, rev, by in many_writes(chance):
        record = signed(signer, map_name, key, fields, rev=rev, by=by)
        source.receive(written(source, map_name, key, record), peer="relay-jane", is_seed=True)
        if chance.random() < 0.1:
            source.revoke(chance.choice([EDGE, OTHER_EDGE, OTHER_SEED]))
        if chance.random() < 0.1:
            node_id = chance.choice([EDGE, OTHER_EDGE, OTHER_SEED])
            source.admit(node_id, text_key(node_id), KEYS_TIERS[node_id])
    single = a_room(OTHER_SEED, seed=seed)
    for update in updates:
        single.receive(update, peer="relay-jane", is_seed=True)
    # Each of the two may have put back what another wrote over.
    for _ in range(10):
        source.receive(single.update_since(source.state()), peer="relay-jane", is_sync=True, is_seed=True)
        single.receive(source.update_since(single.state()), peer="relay-jane", is_sync=True, is_seed=True)
    whole = a_room(EDGE, seed=seed)
    whole.receive(source.update_since(), peer="relay-jane", is_sync=True, is_seed=True)
    loaded = a_room(OTHER_EDGE, seed=seed)
    loaded.load([source.update_since()])
    for other in (whole, loaded, single):
        for name in MAPS:
            assert other.records(name) == source.records(name)
        assert other.set_aside().keys() == source.set_aside().keys()
        assert other.snapshot() == source.snapshot()


KEYS_TIERS = {EDGE: NodeTier.EDGE, OTHER_EDGE: NodeTier.EDGE, OTHER_SEED: NodeTier.BACKBONE}


@pytest.mark.req("ROOM-5")
@pytest.mark.parametrize("node_id", [EDGE, OTHER_SEED])
def test_what_a_node_wrote_once_and_owns_no_more_keeps_it_out_of_no_seed(node_id: str) -> None:
    """The routing of an agent that it has taken away since comes again with its room, and is set aside."""
    clock = FakeClock()
    seed = a_hub(a_populated_room(clock=clock), clock)
    hub = a_hub(a_room(node_id, clock=clock), clock)
    link = Link(seed, hub)
    link.run()
    agent = f"agent-of-{node_id}"
    hub.room.write("routing", agent, {"fallbackNodeIds": [SEED]})
    hub.room.remove("agents", agent)
    link.run()
    link.cut()
    lost = a_hub(a_room(SEED, clock=clock, seed=9), clock)
    later = Link(lost, hub)
    later.run()
    assert later.one.refusal is None
    assert lost.room.records("agents") == seed.room.records("agents")
    assert agent not in lost.room.records("routing")
