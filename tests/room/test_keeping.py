"""The room on disk, and what time does to it."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.bench.fleet import Month
from agentpost.protocol.snapshot import NodeStatus, NodeTier
from agentpost.room.awareness import Awareness, Entry
from agentpost.room.host import RoomHost
from agentpost.room.journal import RoomJournal
from agentpost.room.keys import make_admission
from agentpost.room.presence import Presence
from agentpost.room.records import from_base64
from agentpost.room.sync import MAX_FRAME_BYTES
from agentpost.store.interface import Store
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
    bring,
    signed,
    visible,
)
from tests.store.building import open_sqlite


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
    forged = a_room(SEED, seed=4)
    loaded = a_room(SEED, seed=5)
    forged._table.put("agents", "x", None)  # pyright: ignore[reportPrivateUsage]
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


@pytest.mark.parametrize("said", [None, "now", 1.5, True, -1, 10**18, {}])
def test_a_heartbeat_with_a_time_that_is_none_is_a_heartbeat(said: object) -> None:
    """What a peer says about its clock can be nonsense; that it is there counts all the same."""
    room = a_populated_room()
    awareness = Awareness(node_id=SEED, client=1, keys=room.keys, presence=room.presence, clock=FakeClock())
    for clock in (1, 2):
        awareness.receive([Entry(7, clock, {"nodeId": EDGE, "heartbeatAt": said})], peer=EDGE)
    assert room.presence.status_of(EDGE) is NodeStatus.ONLINE
    assert room.presence.clocks_ahead_ms() == {}


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


class _Admitted:
    """A seed that another one vouched for, with a store that outlives its room."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._other = an_identity(2)
        self.identity = an_identity(1)
        self.admission = make_admission(
            by=OTHER_SEED,
            signing=self._other.signing,
            node_id=SEED,
            public_key=from_base64(self.identity.signing_public),
            tier=NodeTier.BACKBONE,
            at_ms=0,
        )

    async def lose_room(self) -> None:
        """Be in a room, with the word of the other one, and then without any room."""
        host = await self.start(seed=1)
        host.register(status=NodeStatus.ONLINE, admission=self.admission)
        await host.stop()
        await self._store.compact_room(a_room(SEED).update_since())

    async def start(self, *, seed: int, has_pinned: bool = True, tier: NodeTier = NodeTier.BACKBONE) -> RoomHost:
        host = RoomHost(self._store, self.identity, tier=tier, clock=FakeClock(), chance=SeededChance(seed))
        if has_pinned:
            self.pin_other(host)
        await host.start()
        return host

    def pin_other(self, host: RoomHost) -> None:
        host.room.keys.pin(OTHER_SEED, from_base64(self._other.signing_public), is_backbone=True)


def _admission_in(host: RoomHost) -> object:
    record = host.room.record("nodes", SEED)
    assert record is not None
    return record.get("admission")


@pytest.mark.req("ROOM-5")
async def test_a_node_that_lost_its_room_still_has_the_word_for_its_key(store: Store) -> None:
    """It is kept beside the room, so that nodes that never met this one let it in again."""
    node = _Admitted(store)
    await node.lose_room()
    host = await node.start(seed=2)
    assert _admission_in(host) == node.admission
    await host.stop()


@pytest.mark.req("ROOM-5")
async def test_a_word_counts_again_when_it_is_known_whose_it_is(store: Store) -> None:
    """A node that knew the one who vouched for it from the room alone says so once it hears of that one again."""
    node = _Admitted(store)
    await node.lose_room()
    host = await node.start(seed=2, has_pinned=False)
    assert _admission_in(host) is None
    node.pin_other(host)
    is_said = asyncio.Event()
    host.room.subscribe(lambda *_: is_said.set() if _admission_in(host) == node.admission else None)
    host.room.write("agents", "architect", {"ownerNodeId": SEED})
    await asyncio.wait_for(is_said.wait(), timeout=10)
    await host.stop()


@pytest.mark.req("ROOM-5", "AUTH-7")
@pytest.mark.parametrize("what", ["key", "tier"])
async def test_a_word_for_another_key_or_tier_is_not_used(store: Store, what: str) -> None:
    """Nobody vouched for a key that was made anew, nor for a node that calls itself something else."""
    node = _Admitted(store)
    await node.lose_room()
    if what == "key":
        node.identity = an_identity(3)
    host = await node.start(seed=2, tier=NodeTier.EDGE if what == "tier" else NodeTier.BACKBONE)
    assert _admission_in(host) is None
    await host.stop()
