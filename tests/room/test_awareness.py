"""Presence: each node's own signed word, whoever passes it on."""

from typing import Any

import pytest
from pycrdt import Awareness as YjsAwareness
from pycrdt import Doc, create_awareness_message

from agentpost.protocol.errors import Code
from agentpost.protocol.snapshot import NodeStatus
from agentpost.room.awareness import Entry, decode_awareness, encode_awareness, signed_state
from agentpost.room.sync import RoomHub, RoomSession, awareness_frame
from agentpost.testing import FakeClock
from tests.room.building import (
    EDGE,
    KEYS,
    OTHER_EDGE,
    OTHER_SEED,
    SEED,
    Link,
    a_hub,
    a_populated_room,
    a_room,
    admit_all,
    revoke,
    run_all,
)


def a_beat(node_id: str, at: int, *, by: str | None = None, is_goodbye: bool = False, client: int = 7) -> bytes:
    """A frame with a node's heartbeat or goodbye, signed by it or, with `by`, by another."""
    state = signed_state(node_id, at, KEYS[by or node_id], is_goodbye=is_goodbye)
    return awareness_frame([Entry(client, at, state)])


def a_meeting() -> tuple[RoomHub, FakeClock]:
    """The first seed with everybody as a member."""
    clock = FakeClock()
    return a_hub(a_populated_room(clock=clock), clock), clock


def status(hub: RoomHub, node_id: str) -> NodeStatus:
    return hub.room.presence.status_of(node_id)


def told(session: RoomSession) -> list[dict[str, Any]]:
    """The states that a session was told since the last call."""
    frames = [frame for frame in session.frames_to_send() if frame[0] == 1]
    return [entry.state or {} for frame in frames for entry in decode_awareness(_content(frame))]


def _content(frame: bytes) -> bytes:
    place = 1
    while frame[place] & 128:
        place += 1
    return frame[place + 1 :]


@pytest.mark.req("ROOM-3")
def test_nobody_speaks_for_another_node() -> None:
    """A state that its node did not sign makes nobody present, whoever brings it and under whatever client id."""
    hub, _ = a_meeting()
    relay, edge, witness = hub.open(OTHER_SEED), hub.open(EDGE), hub.open(OTHER_EDGE)
    relay.receive(a_beat(OTHER_EDGE, 5, by=OTHER_SEED))
    relay.receive(awareness_frame([Entry(1, 1, {"nodeId": OTHER_EDGE, "heartbeatAt": 5})]))
    edge.receive(a_beat(OTHER_EDGE, 5, by=EDGE))
    # Not even what that node did sign is taken from an edge node.
    edge.receive(a_beat(OTHER_EDGE, 5))
    assert status(hub, OTHER_EDGE) is NodeStatus.OFFLINE
    assert told(witness) == []
    assert relay.refusal is None
    assert edge.refusal is None
    relay.receive(a_beat(OTHER_EDGE, 6))
    assert status(hub, OTHER_EDGE) is NodeStatus.ONLINE


@pytest.mark.req("ROOM-3")
def test_a_client_id_belongs_to_nobody() -> None:
    """A member that takes the Yjs client id of another, while that one is away, does not keep it out."""
    hub, _ = a_meeting()
    hub.open(OTHER_EDGE).receive(a_beat(OTHER_EDGE, 1, client=4242))
    victim = hub.open(EDGE)
    victim.receive(a_beat(EDGE, 1, client=4242))
    assert victim.refusal is None
    assert status(hub, EDGE) is NodeStatus.ONLINE
    assert status(hub, OTHER_EDGE) is NodeStatus.ONLINE


@pytest.mark.req("ROOM-4")
def test_a_node_has_one_place_however_many_clients_it_names() -> None:
    """Ten thousand states of one member take the place of one."""
    hub, _ = a_meeting()
    session = hub.open(OTHER_SEED)
    for number in range(1, 2_000):
        session.receive(a_beat(OTHER_SEED, number, client=10_000 + number))
    hub.open(EDGE).receive(a_beat(EDGE, 1))
    assert {entry.state["nodeId"] for entry in hub.awareness.present() if entry.state} == {OTHER_SEED, EDGE}


@pytest.mark.req("PIPE-6")
@pytest.mark.parametrize(
    "state",
    [
        {"user": {"any": "thing"}},
        {"text": "hi"},
        {"status": "a sentence"},
        {"heartbeatAt": "now"},
        {"heartbeatAt": 2**53},
        {"nodeId": "../x"},
        {"sig": {"a": 1}},
    ],
)
def test_a_state_has_a_form(state: dict[str, Any]) -> None:
    """No payload fits into presence."""
    hub, _ = a_meeting()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the code is one of two
        hub.open(EDGE).receive(awareness_frame([Entry(1, 1, {"nodeId": EDGE, "heartbeatAt": 1} | state)]))
    assert caught.value.code in (Code.WRITE_DENIED, Code.INVALID_FIELD)  # type: ignore[attr-defined]


@pytest.mark.req("ROOM-3")
def test_a_state_that_its_node_did_not_sign_is_passed_on_to_nobody() -> None:
    """Who has the session is there all the same, as far as this gateway sees."""
    hub, _ = a_meeting()
    witness = hub.open(OTHER_EDGE)
    hub.open(EDGE).receive(a_beat(EDGE, 1, by=OTHER_EDGE))
    assert status(hub, EDGE) is NodeStatus.ONLINE
    assert told(witness) == []
    assert all(entry.state and entry.state["nodeId"] != EDGE for entry in hub.awareness.present())


@pytest.mark.req("ROOM-3", "ROUTE-2")
def test_only_a_node_says_its_own_goodbye() -> None:
    """A seed that leaves takes nobody with it, neither by y-protocols' empty states nor by a session that ends."""
    hub, clock = a_meeting()
    relay, edge = hub.open(OTHER_SEED), hub.open(EDGE)
    edge.receive(a_beat(EDGE, 1, client=7))
    relay.receive(a_beat(OTHER_EDGE, 1, client=8))
    relay.receive(awareness_frame([Entry(7, 99, None), Entry(8, 99, None)]))
    relay.receive(a_beat(EDGE, 9, by=OTHER_SEED, is_goodbye=True))
    relay.close()
    assert status(hub, EDGE) is NodeStatus.ONLINE
    assert status(hub, OTHER_EDGE) is NodeStatus.ONLINE
    clock.advance(91_000)
    assert status(hub, OTHER_EDGE) is NodeStatus.OFFLINE
    edge.receive(a_beat(EDGE, 2))
    edge.receive(a_beat(EDGE, 3, is_goodbye=True))
    assert status(hub, EDGE) is NodeStatus.OFFLINE


@pytest.mark.req("ROOM-3")
def test_an_old_word_does_not_come_back() -> None:
    """A heartbeat from before a goodbye revives nobody, and a goodbye from before a restart ends nobody."""
    hub, _ = a_meeting()
    relay = hub.open(OTHER_SEED)
    relay.receive(a_beat(EDGE, 5, is_goodbye=True))
    relay.receive(a_beat(EDGE, 4))
    assert status(hub, EDGE) is NodeStatus.OFFLINE
    relay.receive(a_beat(EDGE, 6))
    relay.receive(a_beat(EDGE, 5, is_goodbye=True))
    assert status(hub, EDGE) is NodeStatus.ONLINE


def test_a_node_whose_clock_was_set_back_takes_up_its_number() -> None:
    """It hears of its own later word from the first peer, and is present everywhere with the next one."""
    clock = FakeClock()
    room = a_populated_room(clock=clock)
    first, second = a_hub(room, clock), a_hub(a_room(OTHER_SEED, clock=clock), clock)
    between = Link(first, second)
    between.run()
    edge = Link(first, a_hub(a_room(EDGE, clock=clock), clock))
    edge.run()
    far_ahead = clock.now_ms() + 3_600_000
    edge.one.receive(a_beat(EDGE, far_ahead))
    run_all(between, edge)
    clock.advance(60_000)
    edge.cut()
    again = a_hub(a_room(EDGE, clock=clock, seed=3), clock)
    again.beat()
    link = Link(first, again)
    run_all(link, between)
    for hub in (first, second):
        assert status(hub, EDGE) is NodeStatus.ONLINE
    (entry,) = [each for each in second.awareness.present() if each.state and each.state["nodeId"] == EDGE]
    assert entry.clock > far_ahead


def test_a_heartbeat_at_no_time_is_a_heartbeat() -> None:
    """A number beyond all calendars says nothing of a clock; that the node is there counts all the same."""
    hub, _ = a_meeting()
    relay = hub.open(OTHER_SEED)
    for number in (2**52, 2**52 + 1):
        relay.receive(a_beat(EDGE, number))
    assert status(hub, EDGE) is NodeStatus.ONLINE
    assert hub.room.presence.clocks_ahead_ms() == {}


def test_a_clock_that_was_set_back_is_told_as_it_is() -> None:
    """The heartbeat says the time of the clock, and a number beside it that only grows."""
    clock = FakeClock()
    hub = a_hub(a_populated_room(clock=clock), clock)
    (before,) = hub.awareness.beat()
    clock.step_back(3_600_000)
    (after,) = hub.awareness.beat()
    assert after.state is not None
    assert after.state["heartbeatAt"] == clock.now_ms()
    assert after.state["beat"] == after.clock > before.clock


@pytest.mark.req("ROOM-6")
def test_a_revoked_node_is_not_present() -> None:
    """Its signature counts no more."""
    hub, _ = a_meeting()
    revoke(hub.room, EDGE, by=SEED)
    relay = hub.open(OTHER_SEED)
    relay.receive(a_beat(EDGE, 5))
    assert EDGE not in hub.room.presence.last_heard_ms()


def test_a_heartbeat_costs_one_check_of_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same heartbeat by three ways is checked once."""
    from agentpost.room import awareness

    checks: list[bytes] = []
    real = awareness.verify_bytes
    monkeypatch.setattr(awareness, "verify_bytes", lambda *said: checks.append(said[2]) or real(*said))
    hub, _ = a_meeting()
    relay, edge = hub.open(OTHER_SEED), hub.open(EDGE)
    for number in range(1, 11):
        frame = a_beat(EDGE, number)
        for session in (relay, edge, relay):
            session.receive(frame)
    assert len(checks) == 10


@pytest.mark.req("ROOM-1")
def test_a_yjs_client_without_the_nodes_key_is_present_where_it_is_connected() -> None:
    """What pycrdt encodes is read, and the other way round; without a signature nobody passes it on."""
    theirs = YjsAwareness(Doc())
    theirs.set_local_state({"nodeId": EDGE, "heartbeatAt": 1})
    frame = create_awareness_message(theirs.encode_awareness_update([theirs.client_id]))
    hub, _ = a_meeting()
    witness = hub.open(OTHER_EDGE)
    hub.open(EDGE).receive(frame)
    assert status(hub, EDGE) is NodeStatus.ONLINE
    assert told(witness) == []
    entries = [Entry(12, 3, {"nodeId": SEED, "heartbeatAt": 3}), Entry(13, 4, None)]
    assert decode_awareness(encode_awareness(entries)) == entries
    theirs.apply_awareness_update(encode_awareness(entries[:1]), "remote")
    assert theirs.states[12] == {"nodeId": SEED, "heartbeatAt": 3}


@pytest.mark.req("ROUTE-2")
def test_all_agree_after_restarts_in_any_order() -> None:
    """An edge node, then a seed, then the other edge node begin anew, and that one stops: all say the same at once."""
    clock = FakeClock()
    hubs = {node_id: a_hub(a_room(node_id, clock=clock), clock) for node_id in (SEED, EDGE, OTHER_EDGE)}
    admit_all(hubs[SEED].room, EDGE, OTHER_EDGE)
    links: dict[str, Link] = {}

    def restart(node_id: str, seed: int) -> None:
        gone = [name for name in links if node_id in (SEED, name)]
        hubs[node_id].farewell()
        run_all(*links.values())
        for name in gone:
            links.pop(name).cut()
        clock.advance(1_000)
        content = hubs[node_id].room.update_since()
        hubs[node_id] = a_hub(a_room(node_id, clock=clock, seed=seed), clock)
        hubs[node_id].room.load([content])
        hubs[node_id].beat()
        for name in gone:
            links[name] = Link(hubs[SEED], hubs[name])
        run_all(*links.values())

    for hub in hubs.values():
        hub.beat()
    for node_id in (EDGE, OTHER_EDGE):
        links[node_id] = Link(hubs[SEED], hubs[node_id])
    run_all(*links.values())
    for seed, node_id in enumerate((EDGE, SEED, OTHER_EDGE), 1):
        restart(node_id, seed)
        assert {status(hub, each) for hub in hubs.values() for each in hubs} == {NodeStatus.ONLINE}
    hubs[OTHER_EDGE].farewell()
    run_all(*links.values())
    for node_id in (SEED, EDGE):
        assert status(hubs[node_id], OTHER_EDGE) is NodeStatus.OFFLINE


def test_a_clock_that_was_set_back_is_told_beside_the_number() -> None:
    """The number of a heartbeat only grows; its time is what the clock of its node shows."""
    hub, clock = a_meeting()
    edge = hub.open(EDGE)
    start_ms = clock.now_ms()
    for at in (1, 2):
        state = signed_state(EDGE, start_ms - 3_600_000, KEYS[EDGE], number=start_ms + at)
        edge.receive(awareness_frame([Entry(7, at, state)]))
    assert hub.room.presence.clocks_ahead_ms() == {EDGE: -3_600_000}
