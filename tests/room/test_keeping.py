"""The room on disk, and what time does to it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.bench.fleet import Month
from agentpost.protocol.errors import Code
from agentpost.protocol.snapshot import NodeStatus, NodeTier
from agentpost.room.host import RoomHost
from agentpost.room.journal import RoomJournal
from agentpost.room.members import Root
from agentpost.room.presence import Presence
from agentpost.room.sync import MAX_FRAME_BYTES
from agentpost.store.interface import Store
from agentpost.store.values import KnownNode
from agentpost.testing import FakeClock, MemoryStore, SeededChance
from tests.auth.building import an_identity
from tests.room.building import (
    EDGE,
    OTHER_SEED,
    SEED,
    a_cursor,
    a_hub,
    a_node,
    a_populated_room,
    a_room,
    admit_all,
    bring,
    signed,
    text_key,
    visible,
    written,
)
from tests.store.building import open_sqlite, refused

ROOT_OF_ANOTHER = Root("hub-jane", text_key(OTHER_SEED))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Store]:
    store: Store = (
        open_sqlite(home, node_id=SEED) if request.param == "sqlite" else MemoryStore(node_id=SEED, epoch="one")
    )
    yield store
    await store.close()


async def test_updates_come_back_in_order_and_are_replaced_by_one(store: Store) -> None:
    """The log of the room is what was appended; a compaction puts one update in the place of all."""
    assert store.room_updates() == []
    for update in (b"one", b"two", b"three"):
        await store.append_room_update(update)
    assert store.room_updates() == [b"one", b"two", b"three"]
    await store.compact_room(b"all")
    await store.append_room_update(b"four")
    assert store.room_updates() == [b"all", b"four"]


@pytest.mark.req("ROOM-5")
async def test_a_restart_gives_the_same_room(store: Store) -> None:
    """What was flushed is there after a restart: the records, the document, and the ability to go on writing."""
    room = a_room(SEED)
    journal = RoomJournal(room, store)
    admit_all(room, EDGE)
    for node_id in (SEED, EDGE):
        bring(room, node_id, "nodes", node_id, a_node(node_id))
    for acked in range(5):
        bring(room, EDGE, "delivery", EDGE, {"inboxCursorAcked": acked})
    room.write("agents", "architect", {"ownerNodeId": SEED})
    await journal.flush()

    again = a_room(SEED, seed=1)
    journal = RoomJournal(again, store)
    assert journal.load() == []
    assert visible(again) == visible(room)
    assert again.snapshot() == room.snapshot()
    assert again.write("agents", "architect", {"ownerNodeId": SEED, "role": "worker"})
    bring(again, EDGE, "delivery", EDGE, {"inboxCursorAcked": 9})
    await journal.flush()
    third = a_room(SEED, seed=2)
    assert RoomJournal(third, store).load() == []
    assert visible(third) == visible(again)


@pytest.mark.req("ROOM-5")
async def test_a_long_log_becomes_one_update(store: Store) -> None:
    """The log is compacted when it has become long, and the room is the same afterwards."""
    room = a_room(SEED)
    journal = RoomJournal(room, store, max_updates=10)
    for number in range(35):
        room.write("agents", f"agent-{number % 3}", {"ownerNodeId": SEED, "lastSeenAt": number})
        await journal.flush()
        assert len(store.room_updates()) <= 10
    again = a_room(SEED)
    assert RoomJournal(again, store).load() == []
    assert visible(again) == visible(room)


async def test_what_does_not_load_is_passed_over_and_reported() -> None:
    """A damaged update, and a record that its signer did not sign, do not keep the rest from loading."""
    room = a_populated_room()
    updates = [room.update_since()]
    loaded = a_room(SEED, seed=5)
    record = signed(SEED, "agents", "forged", {"ownerNodeId": SEED}, by=EDGE)
    from agentpost.room.wire import ItemId, encode_write

    bad = encode_write(ItemId(77, 0), root="agents", key="forged", after=None, value=record)
    ignored = loaded.load([b"\xff\xff", *updates, b"\x01\x01\x01", bad])
    assert [each.where for each in ignored] == ["update 1", "update 3", "agents.forged"]
    assert loaded.records("agents") == room.records("agents")


@pytest.mark.req("ROOM-4")
def test_heartbeats_do_not_grow_the_room() -> None:
    """A hundred thousand heartbeats leave the document as it was."""
    clock = FakeClock()
    room = a_populated_room(clock=clock)
    hub = a_hub(room, clock)
    session = hub.open(EDGE)
    before = room.update_since()
    for _ in range(1_000):
        clock.advance(10_000)
        hub.beat()
        session.frames_to_send()
    assert room.update_since() == before
    assert room.snapshot().nodes[SEED].last_heartbeat_at == clock.now_ms()


@pytest.mark.req("ROOM-4")
def test_only_a_change_is_written() -> None:
    """Writing what stands there already writes nothing; a changed status does."""
    room = a_populated_room()
    room.write("nodes", SEED, a_node(SEED))
    before = room.update_since()
    assert room.write("nodes", SEED, a_node(SEED)) is False
    assert room.update_since() == before
    assert room.write("nodes", SEED, a_node(SEED, status="degraded")) is True
    assert room.remove("nodes", SEED) is True
    assert room.remove("agents", "nobody") is False


@pytest.mark.req("ROOM-4", "OBS-1")
def test_status_follows_from_silence() -> None:
    """A node is degraded, then offline, when it is not heard; each change is told once."""
    clock = FakeClock()
    presence = Presence(clock, degraded_after_ms=30_000, offline_after_ms=90_000)
    presence.heard(EDGE)
    assert [(each.before, each.after) for each in presence.changes()] == [(None, NodeStatus.ONLINE)]
    assert presence.changes() == []
    clock.advance(30_000)
    assert [each.after for each in presence.changes()] == [NodeStatus.DEGRADED]
    clock.advance(60_000)
    assert [each.after for each in presence.changes()] == [NodeStatus.OFFLINE]
    presence.heard(EDGE)
    clock.step_back(3_600_000)
    assert [each.after for each in presence.changes()] == [NodeStatus.ONLINE]
    presence.left(EDGE)
    assert [each.after for each in presence.changes()] == [NodeStatus.OFFLINE]


@pytest.mark.req("TASK-8")
def test_silence_counts_from_the_last_word_or_the_own_start() -> None:
    """A node not heard since the start is silent since the start; setting the clock makes no silence longer."""
    clock = FakeClock()
    clock.advance(5_000)
    presence = Presence(clock)
    started_ms = clock.now_ms()
    clock.advance(10_000)
    assert (presence.silent_since_ms(EDGE), presence.last_seen_ms(EDGE)) == (started_ms, None)
    presence.heard(EDGE)
    clock.advance(10_000)
    presence.left(EDGE)
    assert presence.silent_since_ms(EDGE) == presence.last_seen_ms(EDGE) == clock.now_ms() - 10_000
    clock.step_back(3_600_000)
    assert presence.silent_since_ms(EDGE) == presence.last_seen_ms(EDGE) == clock.now_ms() - 10_000


@pytest.mark.req("ROUTE-2")
def test_the_router_knows_who_was_not_heard_since_the_start() -> None:
    """Until its first heartbeat a node is unheard; one that left again was heard."""
    clock = FakeClock()
    room = a_populated_room(clock=clock)
    started_ms = clock.now_ms()
    clock.advance(5_000)
    assert EDGE in room.snapshot().unheard
    assert room.snapshot().listening_since_ms == started_ms
    room.presence.heard(EDGE)
    room.presence.left(EDGE)
    assert EDGE not in room.snapshot().unheard


def test_heartbeats_tell_how_far_a_clock_is_off() -> None:
    """The quickest of the last three counts, one alone says nothing, and a step of the own clock begins anew."""
    clock = FakeClock()
    presence = Presence(clock)

    def beat(*, ahead_ms: int, took_ms: int = 0) -> None:
        clock.advance(10_000)
        presence.heard(EDGE, said_ms=clock.now_ms() + ahead_ms - took_ms)

    beat(ahead_ms=0, took_ms=80_000)
    assert presence.clocks_ahead_ms() == {}, "a seed may have kept it"
    beat(ahead_ms=0, took_ms=40)
    assert presence.clocks_ahead_ms() == {EDGE: -40}
    beat(ahead_ms=0, took_ms=50_000)
    assert presence.clocks_ahead_ms() == {EDGE: -40}, "one that was late says nothing of the clock"
    for _ in range(3):
        beat(ahead_ms=-90_000)
    assert presence.clocks_ahead_ms() == {EDGE: -90_000}
    clock.step_back(3_600_000)
    assert presence.clocks_ahead_ms() == {}
    beat(ahead_ms=3_600_000)
    beat(ahead_ms=3_600_000)
    assert presence.clocks_ahead_ms() == {EDGE: 3_600_000}
    clock.advance(90_000)
    assert presence.clocks_ahead_ms() == {}, "it is not heard any more"


def test_a_snapshot_is_made_anew_only_when_something_changed() -> None:
    """Routers may ask for it as often as they like."""
    room = a_populated_room()
    first = room.snapshot()
    assert room.snapshot() is first
    room.write("delivery", SEED, {"inboxCursorAcked": 1})
    assert room.snapshot() is first
    room.write("agents", "architect", {"ownerNodeId": SEED})
    second = room.snapshot()
    assert "architect" in second.agents
    assert second.nodes is not first.nodes or second.nodes == first.nodes
    assert second.routing_policy_version != first.routing_policy_version
    assert second.capability_policy_version == first.capability_policy_version


@pytest.mark.req("CUR-5")
def test_the_copy_of_a_cursor_has_its_lease_and_epoch() -> None:
    """What a consumer says of its cursor is kept as it said it."""
    room = a_populated_room()
    bring(room, EDGE, "delivery.cursors", f"{EDGE}/{SEED}", a_cursor(EDGE, SEED))
    record = room.records("delivery.cursors")[f"{EDGE}/{SEED}"]
    assert {name: record[name] for name in a_cursor(EDGE, SEED)} == a_cursor(EDGE, SEED)


def test_a_room_can_start_over() -> None:
    """A room that is refused by everybody forgets what it holds and takes it anew."""
    seed = a_populated_room()
    room = a_room(EDGE)
    room.write("agents", "lost", {"ownerNodeId": EDGE})
    room.start_over()
    assert room.records("agents") == {}
    room.receive(seed.update_since(), peer=SEED, is_sync=True)
    assert room.records("agents") == seed.records("agents")
    assert room.write("agents", "found", {"ownerNodeId": EDGE})


@pytest.mark.req("ROOM-4")
def test_a_month_of_fifty_nodes_stays_small() -> None:
    """Cursor copies, restarts and moves of thirty days leave less than 5 MB, and a newcomer accepts all of it."""
    rounds = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
    month = Month(nodes=50)
    for _ in range(30):
        month.live_a_day(copies=min(24 * rounds, 96), moves=10, restarts=7)
    content = month.finish()
    assert len(content) < 5_000_000
    room = month.new_room(1)
    room.receive(content, peer="node-0", is_sync=True, max_bytes=MAX_FRAME_BYTES)
    assert len(room.records("agents")) == 500
    assert len(room.records("nodes")) == 50


async def a_host(store: Store, *, seed: int = 1, tier: NodeTier = NodeTier.BACKBONE) -> RoomHost:
    host = RoomHost(store, an_identity(1), tier=tier, clock=FakeClock(), chance=SeededChance(seed))
    await host.start()
    return host


@pytest.mark.req("ROOM-5")
async def test_the_root_of_the_mesh_outlives_the_room(store: Store) -> None:
    """A gateway that joined a mesh and then lost its room knows whose word counts, and believes it again."""
    host = await a_host(store)
    assert await host.join_mesh(ROOT_OF_ANOTHER, is_alone=True)
    await host.stop()
    await store.compact_room(b"\x00\x00")
    again = await a_host(store, seed=2)
    assert again.room.root == ROOT_OF_ANOTHER
    await again.stop()


@pytest.mark.req("ROOM-5", "AUTH-7")
async def test_who_was_let_in_before_a_crash_is_said_to_be_a_member_after_it(store: Store) -> None:
    """The store has pinned a node and the room does not say so yet: the next start says it."""
    node = KnownNode(
        node_id=EDGE, signing_public=text_key(EDGE), tier=NodeTier.EDGE, admitted_by=store.node_id, pinned_at_ms=5
    )
    await store.pin_node(node)
    host = await a_host(store)
    assert host.room.keys.is_member(EDGE)
    await host.stop()


@pytest.mark.req("ROOM-5")
async def test_two_meshes_do_not_become_one(store: Store) -> None:
    """A seed that has let others in joins no other mesh; the refusal says what to do."""
    host = await a_host(store)
    host.room.admit(EDGE, text_key(EDGE), NodeTier.EDGE)
    with refused(Code.CONFLICT) as caught:
        await host.join_mesh(ROOT_OF_ANOTHER, is_alone=True)
    assert EDGE in caught.value.message
    assert "agentpost up --home" in (caught.value.hint or "")
    assert host.room.root.node_id == store.node_id
    await host.stop()


@pytest.mark.req("ROOM-3")
async def test_a_record_that_is_set_aside_is_one_incident_a_signer_and_hour(store: Store) -> None:
    """It names who brought it; what the signer writes next is no news, and another signer's is."""
    host = await a_host(store)
    for number, signer in enumerate((EDGE, EDGE, OTHER_SEED)):
        record = signed(signer, "agents", f"agent-{number}", {"ownerNodeId": signer})
        update = written(host.room, "agents", f"agent-{number}", record)
        host.room.receive(update, peer="relay-jane", is_seed=True)
    await host.stop()
    found = [each for each in store.incidents(limit=10) if each.kind == "record_set_aside"]
    assert sorted(each.subject for each in found) == sorted([EDGE, OTHER_SEED])
    assert {each.detail["broughtBy"] for each in found} == {"relay-jane"}


@pytest.mark.req("ROOM-5")
async def test_an_edge_node_that_is_refused_takes_the_room_anew_once(store: Store) -> None:
    """Its log holds the new room only; what it wrote itself is written again when the room is here."""
    host = await a_host(store, tier=NodeTier.EDGE)
    host.room.write("agents", "carol", {"ownerNodeId": store.node_id})
    assert host.start_over()
    assert host.room.record("agents", "carol") is None
    assert not host.start_over(), "only just now"
    host.bring_back()
    await host.stop()
    again = await a_host(store, tier=NodeTier.EDGE, seed=2)
    carol = again.room.record("agents", "carol")
    assert carol is not None
    assert carol["ownerNodeId"] == store.node_id
    await again.stop()


@pytest.mark.req("ROOM-5")
async def test_a_seed_does_not_forget_its_room_because_another_refuses_it(store: Store) -> None:
    """Others go by it."""
    host = await a_host(store)
    assert not host.start_over()
    await host.stop()
