"""Pruning in small steps, and the copies in the room."""

import asyncio
from collections.abc import Sequence

import pytest

from agentpost.delivery.keeping import CursorCopy, DeliveryCopy, Keeper, Kept
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.protocol.codec import encode_event
from agentpost.protocol.heads import next_chain
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.snapshot import MOST_WAITING
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import (
    CHAIN_START,
    Acceptance,
    Blob,
    Incident,
    KeyedAnswer,
    MirrorBatch,
    MirrorEvent,
    PayloadUsage,
    Subscriber,
)
from agentpost.testing import a_message
from tests.delivery.timing import NODE, OTHER, PEER, Desk
from tests.store.building import a_batch, from_peer, incoming

DAY_MS = 86_400_000


class Noted:
    """Room copies that were written, in order."""

    def __init__(self) -> None:
        self.written: list[tuple[DeliveryCopy | None, list[CursorCopy]]] = []
        self.news = asyncio.Event()

    async def publish(self, own: DeliveryCopy | None, cursors: Sequence[CursorCopy]) -> None:
        self.written.append((own, list(cursors)))
        self.news.set()


def _keeper(desk: Desk, **fields: object) -> Keeper:
    parts: dict[str, object] = {"store": desk.store, "room": desk.room, "clock": desk.clock, "wakeups": desk.wakeups}
    return Keeper(**parts | {"policy": desk.policy} | fields)  # type: ignore[arg-type] - parts of one known call


async def _reads(desk: Desk, node_id: str, last_seq: int, *, lease_ms: int = 300_000) -> None:
    now_ms = desk.clock.now_ms()
    await desk.store.note_subscriber(
        Subscriber(
            consumer_node_id=node_id,
            epoch="first",
            last_seq=last_seq,
            updated_at_ms=now_ms,
            lease_expires_at_ms=now_ms + lease_ms,
        )
    )


@pytest.mark.req("PIPE-7", "CUR-5")
async def test_the_outbox_is_pruned_below_the_slowest_active_reader() -> None:
    """Compaction stays below the lowest cursor less the retention, and a reader without a lease holds nothing up."""
    desk = await Desk(policy=DeliveryPolicy(retention_events=10)).settle_in()
    await desk.store.append([a_message(number) for number in range(1, 3001)])
    await _reads(desk, PEER, 2_500)
    await _reads(desk, OTHER, 5, lease_ms=-1)
    assert await _keeper(desk).keep() == Kept(outbox_events=2_490)
    assert desk.store.read_outbox(2_490).events[0].seq == 2_491
    assert await _keeper(desk).keep() == Kept()


@pytest.mark.req("PIPE-8")
async def test_what_may_have_to_be_sent_again_stays() -> None:
    """An event without its ACK is kept, however far everybody has read."""
    desk = await Desk(policy=DeliveryPolicy(retention_events=0)).settle_in()
    await desk.store.append([a_message(number) for number in range(100, 110)])
    event = await desk.send()
    await desk.store.append([a_message(number) for number in range(200, 210)])
    await _reads(desk, PEER, 21)
    assert (await _keeper(desk).keep()).outbox_events == 10
    assert desk.store.find_event(event.event_id) is not None
    await desk.change(event, DeliverySignal.ACCEPTED)
    assert (await _keeper(desk).keep()).outbox_events == 11


async def test_what_ended_long_ago_is_forgotten_and_dead_letters_are_not() -> None:
    """After thirty days a closed delivery goes; a dead letter stays until somebody purges it."""
    desk = await Desk(tells_senders=False).settle_in()
    done = await desk.send(1)
    await desk.change(done, DeliverySignal.PROCESSED)
    dead = await desk.send(2, expires_at_ms=desk.clock.now_ms() + 1_000)
    await desk.pass_time(1)
    desk.clock.advance(29 * DAY_MS)
    assert (await _keeper(desk).keep()).settled == 0
    desk.clock.advance(2 * DAY_MS)
    assert (await _keeper(desk).keep()).settled == 1
    assert desk.store.deliveries_of(done.event_id) == []
    assert len(desk.store.deliveries_of(dead.event_id)) == 1


@pytest.mark.req("RTY-3")
async def test_the_ledger_remembers_for_as_long_as_repeats_can_come() -> None:
    """A retention of nothing at all does not make a resend of yesterday look new."""
    policy = DeliveryPolicy(settled_retention_seconds=0)
    desk = await Desk(policy=policy, tells_senders=False).settle_in()
    done = await desk.send(1)
    await desk.change(done, DeliverySignal.PROCESSED)
    tries_ms = (
        policy.resend.max_attempts * (policy.resend.max_delay_seconds + policy.accepted_ack_timeout_seconds) * 1000
    )
    desk.clock.advance(round(tries_ms))
    assert (await _keeper(desk).keep()).settled == 0
    desk.clock.advance(2 * DAY_MS)
    assert (await _keeper(desk).keep()).settled == 1


@pytest.mark.req("PIPE-7")
async def test_payloads_go_a_day_after_their_events() -> None:
    """More of them than one step takes: each is kept for the grace, and a configured grace counts."""
    desk = await Desk(policy=DeliveryPolicy(payload_grace_seconds=3_600)).settle_in()
    for number in range(300):
        blob = Blob(sha256=f"{number:064x}", size_bytes=1, chunk_bytes=1, chunks=1, complete=False)
        await desk.store.begin_blob(blob, at_ms=desk.clock.now_ms())
    keeper = _keeper(desk)
    assert await keeper.keep() == Kept()
    desk.clock.advance(3_599_999)
    assert await keeper.keep() == Kept()
    desk.clock.advance(1)
    assert await keeper.keep() == Kept(payloads=300)
    assert desk.store.payload_usage() == PayloadUsage()
    assert DeliveryPolicy().payload_grace_seconds * 1000 == DAY_MS


@pytest.mark.req("PIPE-7")
async def test_a_mirror_keeps_the_retention_window() -> None:
    """What every reader has stays for as long as the window says."""
    desk = await Desk(policy=DeliveryPolicy(retention_events=3)).settle_in()
    await _mirror(desk, *[OTHER] * 5)
    assert (await _keeper(desk, readers=lambda _: [_cursor(OTHER, 5)]).keep()).mirrored == 2


async def _mirror(desk: Desk, *to_nodes: str) -> None:
    """A mirror of the peer's outbox with one event for each name, each under a head of its own."""
    chain = CHAIN_START
    for seq, node_id in enumerate(to_nodes, start=1):
        raw = encode_event(a_message(seq, seq=seq, source_node_id=PEER))
        chain = next_chain(chain, raw)
        await desk.store.keep_mirror(
            MirrorBatch(
                source_node_id=PEER,
                epoch="b",
                after_seq=seq - 1,
                through_seq=seq,
                events=(MirrorEvent(seq=seq, chain=chain, raw=raw, to_nodes=(node_id,)),),
                head=b"head",
                signature=b"signature",
                at_ms=desk.clock.now_ms(),
            )
        )


def _cursor(node_id: str, last_seq: int, *, epoch: str = "b") -> CursorCopy:
    at = format_ms(1)
    return CursorCopy(
        consumer_node_id=node_id,
        source_node_id=PEER,
        last_seq=last_seq,
        updated_at=at,
        status="active",
        lease_expires_at=at,
        epoch=epoch,
    )


@pytest.mark.req("PIPE-9")
async def test_a_mirror_keeps_what_a_reader_still_lacks() -> None:
    """Events that everybody has are pruned; what a sleeping node has not fetched stays, lease or no lease."""
    desk = await Desk(policy=DeliveryPolicy(retention_events=0)).settle_in()
    await _mirror(desk, OTHER, NODE, OTHER, NODE)
    cursors = [_cursor(NODE, 4), _cursor(OTHER, 1)]
    keeper = _keeper(desk, readers=lambda source: cursors if source == PEER else [])
    assert (await keeper.keep()).mirrored == 2
    position = desk.store.mirror_position(PEER)
    assert position is not None
    assert position.floor_seq == 2
    cursors[:] = [_cursor(NODE, 4), _cursor(OTHER, 4, epoch="another life")]
    assert (await keeper.keep()).mirrored == 0
    cursors[:] = [_cursor(NODE, 4), _cursor(OTHER, 4)]
    assert (await keeper.keep()).mirrored == 2


@pytest.mark.req("PIPE-9")
async def test_a_mirror_does_not_grow_without_bound() -> None:
    """A reader that never comes back holds up a mirror only as far as the retention."""
    desk = await Desk(policy=DeliveryPolicy(mirror_retention_events=3)).settle_in()
    await _mirror(desk, *[OTHER] * 5)
    assert (await _keeper(desk, readers=lambda _: []).keep()).mirrored == 2
    assert (await _keeper(desk).keep()).mirrored == 0


@pytest.mark.req("CUR-5")
async def test_the_room_hears_of_cursors_that_moved_and_of_nothing_else() -> None:
    """The copy has the fields of the cursor record with a lease of 300 s, and is written on change only."""
    desk = await Desk().settle_in()
    keeper, room = _keeper(desk), Noted()
    assert await keeper.copy(room)
    (own, cursors) = room.written[0]
    assert own is not None
    assert (own.inbox_cursor_acked, own.inbox_cursor_seen, own.dead_letter_count, cursors) == (0, 0, 0, [])
    assert not await keeper.copy(room)

    desk.clock.advance(1_000)
    for source in (PEER, NODE):
        await desk.store.accept(
            Acceptance(source_node_id=source, source_epoch="b", after_seq=0, through_seq=7, at_ms=desk.clock.now_ms())
        )
    desk.clock.advance(500)
    assert await keeper.copy(room)
    assert room.written[1] == (
        None,
        [
            CursorCopy(
                consumer_node_id=NODE,
                source_node_id=PEER,
                last_seq=7,
                updated_at=format_ms(desk.clock.now_ms() - 500),
                status="active",
                lease_expires_at=format_ms(desk.clock.now_ms() + 300_000),
                epoch="b",
            )
        ],
    )
    desk.clock.advance(1_000)
    assert not await keeper.copy(room)


@pytest.mark.req("CUR-5", "ROOM-4")
async def test_first_copies_come_one_a_round() -> None:
    """A gateway that begins to hear from everybody does not flood the room, which hears of all of them in the end."""
    desk = await Desk().settle_in()
    keeper, room = _keeper(desk), Noted()
    for source in ("lab-a", "lab-b", "lab-c"):
        await desk.store.accept(
            Acceptance(source_node_id=source, source_epoch="b", after_seq=0, through_seq=7, at_ms=desk.clock.now_ms())
        )
    while await keeper.copy(room):
        desk.clock.advance(1_000)
    told = [[copy.source_node_id for copy in cursors] for _, cursors in room.written]
    assert sorted(told) == [["lab-a"], ["lab-b"], ["lab-c"]]


async def test_a_running_keeper_goes_on_until_all_first_copies_are_made() -> None:
    """The rounds follow each other although nothing more happens."""
    desk = await Desk(policy=DeliveryPolicy(room_copy_every_seconds=1)).settle_in()
    room = Noted()
    for source in ("lab-a", "lab-b", "lab-c"):
        await desk.store.accept(
            Acceptance(source_node_id=source, source_epoch="b", after_seq=0, through_seq=7, at_ms=desk.clock.now_ms())
        )
    keeper = _keeper(desk, copies=room)
    keeper.start()
    async with asyncio.timeout(30):
        while len(room.written) < 3:
            room.news.clear()
            await room.news.wait()
    await keeper.close()
    assert {copy.source_node_id for _, cursors in room.written for copy in cursors} == {"lab-a", "lab-b", "lab-c"}


async def _take_mail(desk: Desk, *to_agents: str) -> None:
    """A message of the peer for each name, accepted and not settled."""
    events = [incoming(from_peer(number), agent_id) for number, agent_id in enumerate(to_agents, start=1)]
    await desk.store.accept(a_batch(*events))


async def _told_of_agents(desk: Desk) -> tuple[dict[str, int] | None, int | None]:
    room = Noted()
    await _keeper(desk).copy(room)
    own = room.written[0][0]
    assert own is not None
    return own.waiting_by_agent, own.agents_waiting


@pytest.mark.req("OBS-1")
async def test_the_room_hears_what_each_agent_has_waiting() -> None:
    """Two agents of one gateway have their own numbers, and one that has nothing waiting is not named."""
    desk = await Desk().settle_in()
    assert await _told_of_agents(desk) == ({}, 0)
    await _take_mail(desk, "builder", "tester", "builder", "builder")
    assert await _told_of_agents(desk) == ({"builder": 3, "tester": 1}, 2)


@pytest.mark.req("ROOM-4")
async def test_the_record_of_a_gateway_with_many_agents_stays_small() -> None:
    """Those whose mail has waited longest are named, and how many there are; nothing is counted beyond a thousand."""
    desk = await Desk().settle_in()
    await _take_mail(desk, *(f"agent-{number:04}" for number in range(1_000)), *["agent-0003"] * 1_200)
    told, waiting = await _told_of_agents(desk)
    assert told == {f"agent-{number:04}": MOST_WAITING if number == 3 else 1 for number in range(24)}
    assert waiting == 1_000


@pytest.mark.req("OBS-1")
async def test_the_room_hears_of_dead_letters() -> None:
    """The count in the room follows the store."""
    desk = await Desk(tells_senders=False).settle_in()
    keeper, room = _keeper(desk), Noted()
    await desk.send(expires_at_ms=desk.clock.now_ms() + 1_000)
    await desk.pass_time(1)
    await keeper.copy(room)
    (own, _) = room.written[0]
    assert own is not None
    assert (own.dead_letter_count, own.latest_seq) == (1, 0)


async def test_the_running_keeper_writes_at_once_and_ends_when_it_is_closed() -> None:
    """A gateway that starts tells the room where it stands, and leaves no task behind."""
    desk = await Desk().settle_in()
    room = Noted()
    keeper = _keeper(desk, copies=room)
    keeper.start()
    await asyncio.wait_for(room.news.wait(), timeout=10)
    await keeper.close()
    assert len(room.written) == 1


@pytest.mark.req("ENV-6", "RTY-3")
async def test_records_are_forgotten_as_configured() -> None:
    """Closed incidents go after the retention; idempotency keys by their own time; what is open stays."""
    desk = await Desk(policy=DeliveryPolicy(record_retention_seconds=3_600)).settle_in()
    at_ms = desk.clock.now_ms()
    for subject in ("a", "b", "c"):
        await desk.store.raise_incident(Incident(kind=IncidentKind.GAP, subject=subject, at_ms=at_ms))
    await desk.store.close_incident(IncidentKind.GAP, "a", at_ms=at_ms)
    keyed = KeyedAnswer(agent_id="ada", key=b"k", request=b"r", answer=b"a", at_ms=at_ms, expires_at_ms=at_ms + 1_000)
    await desk.store.append([a_message(1)], keyed=keyed)
    keeper = _keeper(desk)
    assert (await keeper.keep()).records == 0
    desk.clock.advance(1_000)
    assert (await keeper.keep()).records == 1
    desk.clock.advance(3_600_000)
    assert (await keeper.keep()).records == 1
    assert [each.subject for each in desk.store.incidents(open_only=False)] == ["b", "c"]
