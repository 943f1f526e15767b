"""y-protocols between rooms, and with a Yjs client that is not ours."""

from typing import Any

import pytest
from pycrdt import (
    Doc,
    Map,
    YMessageType,
    create_sync_message,
    create_update_message,
    handle_sync_message,
)

from agentpost.protocol.errors import Code
from agentpost.room.document import Room
from agentpost.room.sync import step_1, step_2, update_frame
from agentpost.testing import FakeClock
from tests.room.building import (
    EDGE,
    OTHER_EDGE,
    OTHER_SEED,
    SEED,
    Link,
    a_cursor,
    a_hub,
    a_node,
    a_populated_room,
    a_room,
    run_all,
    signed,
    visible,
    written,
)
from tests.store.building import refused


def joined(node_id: str, seed: Room, clock: FakeClock | None = None) -> tuple[Any, Link, Any]:
    """A room of its own for the node, linked to the seed's; with both hubs."""
    seed_hub, hub = a_hub(seed, clock), a_hub(a_room(node_id, clock=clock), clock)
    link = Link(seed_hub, hub)
    link.run()
    return hub, link, seed_hub


@pytest.mark.req("ROOM-1")
def test_a_room_that_joins_gets_everything_and_gives_its_own() -> None:
    """After a sync both sides hold the same, and later writes arrive on the other side."""
    seed = a_populated_room()
    hub, link, _ = joined(EDGE, seed)
    assert hub.room.records("agents") == seed.records("agents")
    hub.room.write("delivery.cursors", f"{EDGE}/{SEED}", a_cursor(EDGE, SEED))
    seed.write("agents", "architect", {"ownerNodeId": SEED})
    link.run()
    assert seed.record("delivery.cursors", f"{EDGE}/{SEED}") is not None
    assert hub.room.snapshot().agents["architect"].owner_node_id == SEED
    assert hub.room.snapshot().routing_policy_version == seed.snapshot().routing_policy_version


@pytest.mark.req("ROOM-5")
def test_what_was_written_offline_arrives_later() -> None:
    """Both sides write while they are apart, and have everything after the next connection."""
    seed = a_populated_room()
    hub, link, seed_hub = joined(EDGE, seed)
    link.cut()
    for number in range(20):
        hub.room.write("agents", f"edge-agent-{number}", {"ownerNodeId": EDGE})
        seed.write("agents", f"seed-agent-{number}", {"ownerNodeId": SEED})
    hub.room.write("agents", f"agent-of-{EDGE}", {"ownerNodeId": OTHER_EDGE})
    Link(seed_hub, hub).run()
    assert len(seed.records("agents")) == 44
    assert seed.records("agents") == hub.room.records("agents")
    assert visible(seed)["values"] == visible(hub.room)["values"]


@pytest.mark.req("ROOM-5")
def test_the_past_is_learned_from_a_backbone_node_even_if_it_has_moved_on() -> None:
    """An agent that moved twice and a coordinator that changed do not keep a node that was away from catching up."""
    clock = FakeClock()
    seed = a_populated_room(clock=clock)
    away, link, seed_hub = joined(OTHER_EDGE, seed, clock)
    link.cut()
    edge, _, _ = joined(EDGE, seed, clock)
    other, _, _ = joined(OTHER_SEED, seed, clock)
    hubs = Link(a_hub(seed), edge), Link(a_hub(seed), other)
    run_all(*hubs)
    seed.write("coordination", "coordinator", {"value": SEED})
    edge.room.write("agents", f"agent-of-{EDGE}", {"ownerNodeId": OTHER_SEED})
    run_all(*hubs)
    other.room.write("agents", f"agent-of-{EDGE}", {"ownerNodeId": SEED})
    other.room.write("coordination", "coordinator", {"value": OTHER_SEED, "confirmLastResort": True})
    run_all(*hubs)
    Link(seed_hub, away).run()
    newcomer, _, _ = joined(OTHER_EDGE, seed, clock)
    for room in (away.room, newcomer.room):
        assert room.records("agents") == seed.records("agents")
        assert room.records("coordination")["coordinator"]["value"] == OTHER_SEED


@pytest.mark.req("ROOM-5")
def test_there_is_no_special_seed() -> None:
    """With two seeds, what a node writes at one is read at the other, and a seed that lost its disk comes back."""
    first = a_populated_room()
    first_hub, second_hub = a_hub(first), a_hub(a_room(OTHER_SEED))
    edge, other = a_hub(a_room(EDGE)), a_hub(a_room(OTHER_EDGE))
    between = Link(first_hub, second_hub)
    run_all(between)
    links = [between, Link(first_hub, edge), Link(second_hub, other)]
    run_all(*links)
    edge.room.write("agents", "fresh", {"ownerNodeId": EDGE})
    run_all(*links)
    assert "fresh" in other.room.snapshot().agents
    # The first seed loses its disk, and takes the room from the second.
    for link in links[:2]:
        link.cut()
    reborn = a_hub(a_room(SEED, seed=9))
    run_all(Link(reborn, second_hub))
    assert reborn.room.records("agents") == other.room.records("agents")
    reborn.room.write("nodes", SEED, a_node(SEED, status="degraded"))
    run_all(Link(reborn, edge))
    assert edge.room.records("nodes")[SEED]["status"] == "degraded"


def test_a_node_that_wrote_before_it_synced_still_converges() -> None:
    """A node that lost its disk and spoke too early ends with its newest record, on both sides."""
    for life in range(8):
        clock = FakeClock()
        seed = a_populated_room(clock=clock)
        clock.advance(1_000)
        room = a_room(EDGE, clock=clock, seed=life)
        room.write("nodes", EDGE, a_node(EDGE, status="degraded"))
        hub = a_hub(room, clock)
        Link(a_hub(seed, clock), hub).run()
        for side in (seed, room):
            assert side.records("nodes")[EDGE]["status"] == "degraded"
        assert visible(seed)["values"] == visible(room)["values"]


def test_an_update_that_comes_by_a_shorter_way_waits_for_the_other() -> None:
    """An edge node at two seeds may be faster than the link between them; nobody is thrown out for that."""
    seed = a_populated_room()
    hub = a_hub(seed)
    source, session = a_room(EDGE), hub.open(EDGE)
    source.receive(seed.update_since(), peer=SEED, is_sync=True)
    updates: list[bytes] = []
    source.subscribe(lambda update, _origin: updates.append(update))
    source.write("delivery", EDGE, {"inboxCursorAcked": 1})
    source.write("delivery", EDGE, {"inboxCursorAcked": 2})
    assert session.receive(update_frame(updates[1])) == []
    assert seed.record("delivery", EDGE) is None
    other = hub.open(OTHER_SEED)
    other.receive(update_frame(updates[0]))
    assert seed.records("delivery")[EDGE]["inboxCursorAcked"] == 2
    for _ in range(64):
        session.receive(update_frame(_gap()))
    with refused(Code.SEQUENCE_GAP):
        session.receive(update_frame(_gap()))


def _gap() -> bytes:
    return b"\x00\x01\x85\x80\x80\x80\x10\x01\x00\x05"


@pytest.mark.req("ROOM-1")
def test_a_foreign_yjs_client_syncs_reads_and_writes() -> None:
    """A plain Yjs document over plain y-protocols reads the maps and writes what is its own."""
    seed = a_populated_room()
    session = a_hub(seed).open(EDGE)
    doc: Any = Doc()
    maps = {name: doc.get(name, type=Map) for name in ("nodes", "delivery")}
    (answer,) = session.receive(create_sync_message(doc))
    assert answer[0] == YMessageType.SYNC
    handle_sync_message(answer[1:], doc)
    assert maps["nodes"][SEED]["tier"] == "backbone"

    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    for acked in (1, 2, 3):
        maps["delivery"][EDGE] = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": acked}, rev=acked)
        session.receive(create_update_message(updates[-1]))
    assert seed.records("delivery")[EDGE]["inboxCursorAcked"] == 3

    # The same client, after it was away: the server asks, and it answers with all it has.
    maps["delivery"][EDGE] = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 4}, rev=4)
    again = a_hub(seed).open(EDGE)
    (question, *_) = again.start()
    reply = handle_sync_message(question[1:], doc)
    assert reply is not None
    again.receive(reply)
    assert seed.records("delivery")[EDGE]["inboxCursorAcked"] == 4


@pytest.mark.req("ROOM-3")
@pytest.mark.parametrize("frame_of", [update_frame, step_2])
def test_a_refused_frame_ends_the_session_with_a_reason(frame_of: Any) -> None:
    """An update and the second step of a sync pass the same guard; a refusal is one audit entry, and is not relayed."""
    seed = a_populated_room()
    hub = a_hub(seed)
    session, witness = hub.open(EDGE), hub.open(OTHER_EDGE)
    witness.receive(step_1(b"\x00"))
    before = visible(seed)
    forged = signed(EDGE, "delivery", EDGE, {"inboxCursorAcked": 1}, by=OTHER_EDGE)
    with refused(Code.WRITE_DENIED):
        session.receive(frame_of(written(seed, "delivery", EDGE, forged)))
    assert visible(seed) == before
    assert witness.frames_to_send() == []
    assert session not in hub.sessions
    assert session.audit is not None
    assert session.audit.actor == EDGE
    assert session.audit.detail["code"] == "write_denied"
    with refused(Code.WRITE_DENIED):
        session.receive(step_1(b"\x00"))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\x00\x00",
        b"\x00\x07\x00",
        b"\x05\x00",
        b"\x00\x00\x05\x01",
        b"\x00\x00\x01\x00\x00",
        b"\x01\x05",
    ],
)
def test_a_frame_that_is_none_is_refused(frame: bytes) -> None:
    """Short, long and unknown frames raise a refusal and nothing else."""
    with refused(Code.MALFORMED):
        a_hub(a_populated_room()).open(EDGE).receive(frame)


def test_a_peer_that_falls_behind_gets_the_whole_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a slow peer is bounded; it loses nothing by that."""
    from agentpost.room import sync

    seed = a_populated_room()
    hub, link, _ = joined(EDGE, seed)
    monkeypatch.setattr(sync, "_MAX_QUEUED_BYTES", 2_000)
    for number in range(30):
        seed.write("agents", f"agent-{number}", {"ownerNodeId": SEED})
    assert link.run() == 1
    assert hub.room.records("agents") == seed.records("agents")


def test_nothing_is_sent_before_the_peer_asked() -> None:
    """Updates that are merged before the peer asked for the room are part of the answer, and not sent twice."""
    seed = a_populated_room()
    session = a_hub(seed).open(EDGE)
    seed.write("agents", "early", {"ownerNodeId": SEED})
    assert session.frames_to_send() == []
    (answer,) = session.receive(step_1(b"\x00"))
    assert b"early" in answer
    assert create_sync_message(Doc()) == step_1(b"\x00")


def test_a_peer_is_answered_with_the_room_only_so_often() -> None:
    """Sixty kilobytes of questions make no hundreds of megabytes of answers; the last question is answered later."""
    clock = FakeClock()
    seed = a_populated_room(clock=clock)
    for number in range(100):
        seed.write("agents", f"agent-{number}", {"ownerNodeId": SEED})
    hub = a_hub(seed, clock)
    session = hub.open(EDGE)
    answers = [answer for _ in range(12_000) for answer in session.receive(step_1(b"\x00"))]
    assert answers
    assert sum(map(len, answers)) < 16 * 1024 * 1024
    assert session.pause_seconds > 0
    clock.advance(60_000)
    session.frames_to_send()
    hub.beat()
    assert any(frame[:2] == b"\x00\x01" for frame in session.frames_to_send())
    assert session.pause_seconds == 0
    assert session.refusal is None


@pytest.mark.parametrize("frame", [b"\x03", update_frame(b"\x00\x00"), step_1(b"\x00")])
def test_a_peer_that_sends_more_than_it_may_is_read_more_slowly(frame: bytes) -> None:
    """However small its frames are; one that keeps within its budget never waits."""
    clock = FakeClock()
    session = a_hub(a_populated_room(clock=clock), clock).open(EDGE)
    for _ in range(1_000):
        session.receive(frame)
        assert session.pause_seconds == 0
        clock.advance(2)
    for _ in range(60_000):
        session.receive(frame)
    assert session.pause_seconds > 10
