"""A gateway that lost its disk is worked out again from the lake: same outbox, nothing lost, nothing twice."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from agentpost.config import CONFIG_FILE
from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake.place import open_lake
from agentpost.lake.restore import Restored, restore
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.payloads import AckType, PayloadRef
from agentpost.protocol.timestamps import format_ms
from agentpost.store.blobs import seal_blob
from agentpost.store.integrity import check_home
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import LedgerState
from agentpost.testing import START_MS, FakeClock, SeededChance, a_message, a_reply, an_ack
from agentpost.world import IdMaker, SystemClock
from tests.edges.mailing import Machine, three_machines
from tests.edges.meshing import eventually, invite
from tests.edges.running import agentpost
from tests.lake.building import an_exporter
from tests.store.building import (
    EPOCH,
    NODE,
    PEER,
    PEER_EPOCH,
    a_batch,
    a_change,
    a_settlement,
    deliveries_of,
    from_peer,
    incoming,
    open_sqlite,
    to_nodes,
)


class Mesh:
    """Two stores that talk as gateways do, and a lake that both export to."""

    def __init__(self, folder: Path) -> None:
        self.lake = folder / "lake"
        self.home, self.peer_home = folder / "home", folder / "peer"
        self.folder = folder
        self.store = open_sqlite(self.home)
        self.peer = open_sqlite(self.peer_home, node_id=PEER, epoch=PEER_EPOCH)
        self.sent = [to_nodes(a_message(number), PEER) for number in range(1, 6)]
        self.got = [to_nodes(from_peer(number), NODE) for number in range(1, 5)]

    async def talk(self) -> None:
        """Five messages to the peer: replied, processed, accepted, and two that nobody has accepted; four from it:
        one with an outcome, one accepted, one never accepted, and one for nobody here."""
        for event in self.sent:
            await self.store.append([event], deliveries=deliveries_of(event, "bob"))
        await self.peer.append(self.got)
        answers: list[Event] = [
            an_ack(self.sent[0], by_node_id=PEER),
            a_reply(self.sent[0], by_node_id=PEER),
            an_ack(self.sent[1], by_node_id=PEER),
            an_ack(self.sent[1], AckType.PROCESSED, by_node_id=PEER),
            an_ack(self.sent[2], by_node_id=PEER),
        ]
        await self.peer.append([to_nodes(event, NODE) for event in answers])
        await self.store.accept(a_batch(incoming(self.got[0]), incoming(self.got[1])))
        await self.store.settle(a_settlement(self.got[0]))

    def raw_of(self, event: Event) -> bytes:
        """The event as the peer's outbox has it."""
        return encode_event(replace(event, seq=self.got.index(event) + 1))

    async def lose(self) -> None:
        """Export both, and lose the first home."""
        an_exporter(self.lake, self.home).export(now=True)
        an_exporter(self.lake, self.peer_home, node_id=PEER).export(now=True)
        await self.store.close()
        await self.peer.close()

    def restore(self, *, after_ms: int = 60_000, **options: object) -> tuple[Restored, SqliteStore]:
        path = self.folder / f"restored-{len(list(self.folder.iterdir()))}"
        clock = FakeClock(START_MS + after_ms)
        found = restore(
            open_lake(str(self.lake)),
            path,
            node_id=NODE,
            clock=clock,
            chance=SeededChance(1),
            **options,  # type: ignore[arg-type]
        )
        assert check_home(path).problems == ()
        return found, open_sqlite(path)


@pytest.fixture
async def mesh(tmp_path: Path) -> Mesh:
    mesh = Mesh(tmp_path)
    await mesh.talk()
    return mesh


@pytest.mark.req("OBS-11", "CUR-6")
async def test_the_outbox_is_the_same_in_a_new_epoch(mesh: Mesh) -> None:
    """The restored outbox has the same events at the same places, byte for byte, and an epoch that is later."""
    before = mesh.store.read_outbox(0).events
    stream = mesh.store.read_stream(PEER, 0).events
    await mesh.lose()
    found, store = mesh.restore()
    try:
        assert store.read_outbox(0).events == before
        assert store.read_stream(PEER, 0).events == stream
        assert found.former_epoch == EPOCH
        assert store.epoch == found.epoch != EPOCH
    finally:
        await store.close()


@pytest.mark.req("OBS-11", "RTY-6")
async def test_deliveries_are_where_they_were(mesh: Mesh) -> None:
    """What was answered is over, what was accepted waits for its outcome, the rest is sent again by its timer."""
    await mesh.lose()
    found, store = mesh.restore()
    try:
        states = [store.deliveries_of(event.event_id)[0].state for event in mesh.sent]
        emitted = DeliveryState.EMITTED
        assert states == [DeliveryState.REPLIED, DeliveryState.PROCESSED, DeliveryState.ACCEPTED, emitted, emitted]
        # The reply to the peer is one more that nobody has accepted.
        assert found.open_deliveries == 4
        due = {each.event_id for each in store.due_deliveries(START_MS + 600_000)}
        assert {event.event_id for event in mesh.sent} & due == {mesh.sent[3].event_id, mesh.sent[4].event_id}
    finally:
        await store.close()


@pytest.mark.req("OBS-11", "RTY-3")
async def test_what_was_taken_is_not_taken_again(mesh: Mesh) -> None:
    """What has an outcome stays settled; what has none is in doubt; the cursor stands where the lake ends."""
    stream_chain = mesh.peer.read_stream(NODE, 0).chain
    await mesh.lose()
    found, store = mesh.restore()
    try:
        first, second, third, _ = mesh.got
        entries = [store.ledger_entry(event.event_id, "ada") for event in (first, second, third)]
        assert [entry and entry.state for entry in entries] == [LedgerState.SETTLED, LedgerState.ENGAGED, None]
        assert [item.raw for item in store.backlog("ada")] == [mesh.raw_of(second)]
        cursor = store.cursor(PEER)
        assert cursor is not None
        assert (cursor.epoch, cursor.last_seq, cursor.last_chain) == (PEER_EPOCH, 9, stream_chain)
        assert (found.settled, found.in_doubt, found.queued, found.missing) == (1, 1, 0, 0)
        assert [(agent.agent_id, agent.is_paused) for agent in store.local_agents()] == [("ada", True)]
    finally:
        await store.close()


async def test_a_complete_lake_goes_on_in_its_epoch(mesh: Mesh) -> None:
    """If nothing was appended after the lake ends, the epoch goes on and what waited simply waits again."""
    await mesh.lose()
    found, store = mesh.restore(is_complete=True)
    try:
        assert store.epoch == EPOCH
        assert (found.in_doubt, found.queued) == (0, 1)
        appended = await store.append([a_message(99)])
        assert appended.first_seq == found.last_seq + 1
    finally:
        await store.close()


async def test_what_was_sent_after_the_loss_is_simply_read(mesh: Mesh) -> None:
    """With the time of the loss known, the cursor stops before what came later."""
    await mesh.lose()
    found, store = mesh.restore(lost_at_ms=START_MS + 2)
    await store.close()
    assert found.cursors[PEER] == 2


@pytest.mark.req("PIPE-7")
async def test_old_mail_is_not_offered_again(mesh: Mesh) -> None:
    """Of a long outbox only the retention window comes back; what nobody accepted is sent again at its end."""
    await mesh.lose()
    found, store = mesh.restore(policy=DeliveryPolicy(retention_events=0))
    try:
        events = [decode_event(event.raw) for event in store.read_outbox(0).events]
        assert [(event.seq, event.trace.attempt) for event in events[:2]] == [(9, 2), (10, 2)]
        assert (found.first_seq, [event.event_id for event in events[:2]]) == (
            9,
            [event.event_id for event in mesh.sent[3:]],
        )
        assert [
            (each.seq, each.attempts) for event in mesh.sent[3:] for each in store.deliveries_of(event.event_id)
        ] == [
            (9, 2),
            (10, 2),
        ]
        stream = store.read_stream(PEER, 0)
        assert (stream.floor_seq, [event.seq for event in stream.events][:2]) == (0, [9, 10])
    finally:
        await store.close()


@pytest.mark.req("OBS-11", "RTY-3")
async def test_mail_that_its_readers_have_forgotten_is_not_offered_again(mesh: Mesh) -> None:
    """A lake that is older than the ledgers remember: of it only what nobody accepted comes back, as a new send."""
    await mesh.lose()
    policy = DeliveryPolicy()
    for after_seconds, first_seq in ((0, 1), (policy.offered_again_seconds + 60, 9)):
        found, store = mesh.restore(policy=policy, after_ms=round(after_seconds * 1000))
        await store.close()
        assert found.first_seq == first_seq


@pytest.mark.req("OBS-11", "PIPE-8")
async def test_mail_before_a_hole_in_the_lake_is_sent_again(mesh: Mesh) -> None:
    """A segment is missing: the restore says which events that are, and loses nothing that nobody had accepted."""
    for number in (50, 51):
        an_exporter(mesh.lake, mesh.home).export(now=True)
        await mesh.store.append([a_message(number)])
    await mesh.lose()
    middle = mesh.lake / "manifests" / f"node={NODE}" / f"epoch={EPOCH}" / f"{9:019d}.json"
    middle.unlink()
    found, store = mesh.restore()
    try:
        assert found.first_seq == 10
        assert any("lacks seq 9 to 9" in note for note in found.notes)
        for event in mesh.sent[3:]:
            stored = store.find_event(event.event_id)
            assert stored is not None
            assert [each.seq for each in store.deliveries_of(event.event_id)] == [stored.seq]
        mail = [decode_event(event.raw).event_id for event in store.read_stream(PEER, 0).events]
        assert {event.event_id for event in mesh.sent[3:]} <= set(mail)
    finally:
        await store.close()


@pytest.mark.req("OBS-11", "RTY-3")
@pytest.mark.parametrize("is_in_lake", [True, False])
async def test_old_mail_is_known_where_its_source_is_read_from_the_start(mesh: Mesh, *, is_in_lake: bool) -> None:
    """A sender that is not in the lake may still have mail of months ago: what has an outcome is not taken again."""
    await mesh.lose()
    if not is_in_lake:
        shutil.rmtree(mesh.lake / "manifests" / f"node={PEER}")
    found, store = mesh.restore(after_ms=60 * 86_400_000)
    try:
        assert (PEER in found.cursors) is is_in_lake
        entry = store.ledger_entry(mesh.got[0].event_id, "ada")
        if is_in_lake:
            assert entry is None, "nobody offers it again"
            return
        await store.prune_settled(before_ms=START_MS + 30 * 86_400_000)
        entry = store.ledger_entry(mesh.got[0].event_id, "ada")
        assert entry is not None
        assert entry.state is LedgerState.SETTLED
    finally:
        await store.close()


async def test_a_damaged_change_log_is_refused_by_name(mesh: Mesh) -> None:
    """Like all that is damaged in a lake it is named, with what to do about it."""
    await mesh.lose()
    log = mesh.lake / "facts" / "node=node-x" / "000000000001.parquet"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"junk")
    with pytest.raises(Refusal) as caught:
        mesh.restore()
    assert caught.value.code is Code.STORAGE_CORRUPT
    assert "facts/node=node-x/000000000001.parquet" in caught.value.message


@pytest.mark.req("OBS-11", "RTY-7")
async def test_a_dead_letter_comes_back_with_what_it_says(mesh: Mesh) -> None:
    """However old it is, it can be sent again; the outbox that others read does not begin any earlier for it."""
    dead, *later = mesh.sent[3:]
    tell = EventMaker(node_id=NODE, clock=FakeClock(), ids=IdMaker(FakeClock(), SeededChance(2))).dead_letter
    await mesh.store.append(
        [tell(dead, to_agent_id="bob", reason="max_attempts", attempts=10)],
        changes=[a_change(dead, signal) for signal in (DeliverySignal.ACK_TIMEOUT, DeliverySignal.EXHAUSTED)],
    )
    await mesh.store.append([], changes=[a_change(each, DeliverySignal.PROCESSED) for each in later])
    await mesh.peer.append([to_nodes(an_ack(each, AckType.PROCESSED, by_node_id=PEER), NODE) for each in later])
    was = mesh.store.find_event(dead.event_id)
    assert was is not None
    await mesh.lose()
    found, store = mesh.restore(policy=DeliveryPolicy(retention_events=0))
    try:
        assert found.first_seq > was.seq
        assert store.find_event(dead.event_id) == was
        assert [each.state for each in store.deliveries_of(dead.event_id)] == [DeliveryState.DEAD_LETTER]
    finally:
        await store.close()


@pytest.mark.req("OBS-11", "PIPE-7")
async def test_payloads_that_are_fetched_again_are_kept(mesh: Mesh) -> None:
    """The lake has no payloads. What a restored gateway fetches for its mail stays until that is done with."""
    sealed = seal_blob(b"a large payload", SeededChance(1).entropy(32))
    ref = PayloadRef(sha256=sealed.blob.sha256, size_bytes=sealed.blob.size_bytes, suite="test", keys={NODE: b"key"})
    event = replace(to_nodes(from_peer(9, seq=5), NODE), payload_ref=ref)
    await mesh.peer.append([replace(event, seq=0)])
    await mesh.store.accept(a_batch(incoming(event), after=2, through=10))
    await mesh.lose()
    _, store = mesh.restore()
    try:
        assert event.event_id in [item.entry.event_id for item in store.backlog("ada")]
        await store.begin_blob(sealed.blob, at_ms=START_MS)
        for at_ms in (START_MS, START_MS * 2):
            await store.prune_payloads(now_ms=at_ms, grace_ms=1)
        assert store.blob(sealed.blob.sha256) is not None
    finally:
        await store.close()


async def test_a_restore_never_overwrites_and_can_be_run_again(mesh: Mesh) -> None:
    """A home that has a database is refused; what an interrupted restore left behind is no hindrance."""
    await mesh.lose()
    with pytest.raises(Refusal) as caught:
        restore(open_lake(str(mesh.lake)), mesh.home, node_id=NODE, clock=FakeClock(), chance=SeededChance(1))
    assert caught.value.code is Code.CONFLICT
    path = mesh.folder / "again"
    path.mkdir(mode=0o700)
    (path / "agentpost.db.restoring").write_bytes(b"half a database")
    (path / "agentpost.db.restoring-wal").write_bytes(b"and its log")
    restore(open_lake(str(mesh.lake)), path, node_id=NODE, clock=FakeClock(), chance=SeededChance(1))
    assert check_home(path).problems == ()
    assert sorted(each.name for each in path.iterdir()) == ["agentpost.db", "gateway.lock", "keys"]


async def test_a_damaged_segment_is_refused_by_name(mesh: Mesh) -> None:
    """A lake that is not what was sealed restores nothing, and says which file it is."""
    await mesh.lose()
    (segment,) = (mesh.lake / "outbox" / f"node={NODE}").rglob("*.parquet")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with pytest.raises(Refusal) as caught:
        mesh.restore()
    assert caught.value.code is Code.STORAGE_CORRUPT
    assert segment.name in caught.value.message
    with pytest.raises(Refusal, match="no outbox of node-x"):
        restore(
            open_lake(str(mesh.lake)), mesh.folder / "x", node_id="node-x", clock=FakeClock(), chance=SeededChance(1)
        )


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Machine, Machine, Machine]]:
    monkeypatch.setenv("AGENTPOST_LAKE", str(tmp_path / "lake"))
    # What nobody accepts is sent again soon.
    home = tmp_path / "mbp-jane"
    home.mkdir(mode=0o700)
    said = 'node = "mbp-jane"\n[delivery]\naccepted_ack_timeout_seconds = 2\n[delivery.resend]\nbase_seconds = 1\n'
    (home / CONFIG_FILE).write_text(said)
    with three_machines(tmp_path) as found:
        yield found


def lose_and_restore(lost: Machine, seed: Machine, *others: Machine, lost_at_ms: int | None = None) -> Restored:
    """Delete the home of a dead gateway, all but its keys, and bring it back as its operator would."""
    for machine in (seed, *others):
        done = agentpost("lake", "export", "--now", "--home", str(machine.home))
        assert done.returncode == 0, done.stderr
    keys = lost.home.parent / "kept-keys"
    shutil.copytree(lost.home / "keys", keys)
    shutil.rmtree(lost.home)
    lost.home.mkdir(mode=0o700)
    shutil.copytree(keys, lost.home / "keys")
    words = ["--lost-at", format_ms(lost_at_ms)] if lost_at_ms is not None else []
    done = agentpost("lake", "restore", "--node", lost.node, "--home", str(lost.home), *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    checked = agentpost("store", "check", "--home", str(lost.home))
    assert checked.returncode == 0, checked.stdout
    lost.start()
    lost.post("/operator/join", {"url": seed.gateway.url, "token": invite(seed.gateway, lost.node)})
    lost.add_counting_agent("builder")
    lost.post("/ansible/agents/builder/resume")
    return msgspec.convert(json.loads(done.stdout), Restored)


@pytest.mark.req("OBS-11")
def test_a_gateway_that_lost_its_disk_comes_back(machines: tuple[Machine, Machine, Machine]) -> None:
    """Three gateways, one loses its home: it is restored, traffic goes on, each message was processed once."""
    seed, laptop, lab = machines
    sent = [laptop.send("builder", f"before {turn}", sender="architect")["eventId"] for turn in range(5)]
    eventually(lambda: all(laptop.states(event_id) == ["Replied"] for event_id in sent))
    lab.gateway.end(signal.SIGKILL)
    lost_at_ms = SystemClock().now_ms()
    sent += [laptop.send("builder", f"meanwhile {turn}", sender="architect")["eventId"] for turn in range(3)]
    found = lose_and_restore(lab, seed, laptop, lost_at_ms=lost_at_ms)
    assert (found.settled, found.in_doubt, found.missing) == (5, 0, 0)
    sent += [laptop.send("builder", f"after {turn}", sender="architect")["eventId"] for turn in range(2)]
    eventually(lambda: all(laptop.states(event_id) == ["Replied"] for event_id in sent))
    assert sorted(lab.counted()) == sorted(sent)
    kinds = [each["kind"] for each in laptop.get("/ansible/incidents?limit=500")]
    assert "gap" not in kinds
    assert "stream_broken" not in kinds


@pytest.mark.long
@pytest.mark.req("OBS-11", "RTY-3")
def test_a_disk_lost_in_the_middle_of_work(machines: tuple[Machine, Machine, Machine]) -> None:
    """Killed while it worked: nothing is processed twice, and what is in doubt is shown, not lost."""
    seed, laptop, lab = machines
    sent = [laptop.send("builder", f"{turn}", sender="architect")["eventId"] for turn in range(30)]
    eventually(lambda: len(lab.counted()) >= 5)
    lab.gateway.end(signal.SIGKILL)
    lose_and_restore(lab, seed, laptop)

    def unclear() -> set[str]:
        found = lab.get("/ansible/incidents?limit=500")
        return {each["subject"].split("/")[0] for each in found if each["kind"] == "indeterminate"}

    def is_over(event_id: str) -> bool:
        return laptop.states(event_id)[0] in ("Processed", "Replied") or event_id in unclear()

    eventually(lambda: all(is_over(event_id) for event_id in sent), patience_seconds=180)
    counted = lab.counted()
    assert len(counted) == len(set(counted)), "an agent was engaged twice"
    assert set(counted) | unclear() >= set(sent)
