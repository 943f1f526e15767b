"""What every mailbox does, whatever carries it. Each test runs against all transports and against the one in memory."""

import asyncio
from typing import cast

import pytest
from msgspec import structs

from agentpost.mailbox.interface import MailboxProtocol
from agentpost.mailbox.sweeping import Sweepable
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import MailboxMessage, MailboxState
from agentpost.testing import FakeClock
from tests.mailboxes.building import message


async def states(mailbox: MailboxProtocol, session: str = "bob") -> dict[str, MailboxState]:
    return {each.msg_id: each.state for each in await mailbox.peek(session)}


async def ids(mailbox: MailboxProtocol, limit: int = 10) -> list[str]:
    return [each.msg_id for each in await mailbox.dequeue_many("bob", limit)]


@pytest.mark.req("MBX-3", "MBX-10")
async def test_enqueue_tells_whether_it_is_new_and_how_much_waits(mailbox: MailboxProtocol) -> None:
    """A new message is queued, the same id again is not, and both answers say how many are pending."""
    first = await mailbox.enqueue(message("m1"))
    assert (first.msg_id, first.queued, first.pending) == ("m1", True, 1)
    again = await mailbox.enqueue(message("m1", payload="something else"))
    assert (again.queued, again.pending) == (False, 1)
    assert (await mailbox.enqueue(message("m2"))).pending == 2


@pytest.mark.req("MBX-4")
async def test_dequeue_hands_out_the_oldest_once(mailbox: MailboxProtocol) -> None:
    """The oldest message comes first, is in flight afterwards, and nobody else gets it."""
    await mailbox.enqueue_many([message("m1"), message("m2")])
    got = await mailbox.dequeue("bob")
    assert got == message("m1")
    assert await states(mailbox) == {"m1": MailboxState.IN_FLIGHT, "m2": MailboxState.PENDING}
    assert await ids(mailbox) == ["m2"]
    assert await mailbox.dequeue("bob") is None


@pytest.mark.req("MBX-4")
async def test_a_session_that_nobody_wrote_to_is_empty(mailbox: MailboxProtocol) -> None:
    """Asking for the mail of an unknown session is no mistake."""
    assert await mailbox.dequeue("nobody") is None
    assert await mailbox.peek("nobody") == []
    assert await mailbox.peek_dead_letter("nobody") == []
    await mailbox.purge("nobody")
    await mailbox.purge_dead_letter("nobody")


@pytest.mark.req("MBX-5")
async def test_ack_ends_it_and_a_repeat_changes_nothing(mailbox: MailboxProtocol) -> None:
    """An acked message is gone for good; acking it again is fine, nacking it is not."""
    await mailbox.enqueue(message())
    await mailbox.dequeue("bob")
    await mailbox.ack("bob", "m1")
    await mailbox.ack("bob", "m1")
    with pytest.raises(Refusal) as refused:
        await mailbox.nack("bob", "m1", "too late")
    assert refused.value.code is Code.INVALID_TRANSITION
    assert await mailbox.peek("bob") == []


@pytest.mark.req("MBX-2", "MBX-5")
async def test_what_is_not_in_flight_cannot_be_acked(mailbox: MailboxProtocol) -> None:
    """A pending message is not acked or nacked, an unknown one is not found, and nothing changes."""
    await mailbox.enqueue(message())
    for refuse in (mailbox.ack("bob", "m1"), mailbox.nack("bob", "m1", "no"), mailbox.extend("bob", "m1", 5)):
        with pytest.raises(Refusal) as refused:
            await refuse
        assert refused.value.code is Code.INVALID_TRANSITION
    for refuse in (mailbox.ack("bob", "m9"), mailbox.nack("bob", "m9", "no"), mailbox.ack("eve", "m1")):
        with pytest.raises(Refusal) as refused:
            await refuse
        assert refused.value.code is Code.NOT_FOUND
    assert await states(mailbox) == {"m1": MailboxState.PENDING}


@pytest.mark.req("MBX-5", "MBX-7")
async def test_nacks_come_again_later_and_end_as_a_dead_letter(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """Three retries after 5, 10 and 20 seconds; the fourth nack makes a dead letter with four attempts."""
    await mailbox.enqueue(message())
    for attempt, delay in enumerate((5, 10, 20)):
        got = await mailbox.dequeue("bob")
        assert got is not None
        assert got.attempt == attempt
        await mailbox.nack("bob", "m1", "busy")
        clock.advance(delay * 1000 - 1)
        assert await mailbox.dequeue("bob") is None
        clock.advance(1)
    got = await mailbox.dequeue("bob")
    assert got is not None
    assert got.attempt == 3
    await mailbox.nack("bob", "m1", "still busy")
    assert await mailbox.peek("bob") == []
    (dead,) = await mailbox.peek_dead_letter("bob")
    assert (dead.msg_id, dead.attempts, dead.payload) == ("m1", 4, "hello")
    assert "max_retries exhausted" in dead.reason
    assert "still busy" in dead.reason
    assert dead.failed_at == clock.now_ms() // 1000
    # MBX-5: a nack that comes too late changes nothing; an ack is refused.
    await mailbox.nack("bob", "m1", "again")
    with pytest.raises(Refusal):
        await mailbox.ack("bob", "m1")
    clock.advance((365 * 86_400) * 1000)
    assert len(await mailbox.peek_dead_letter("bob")) == 1
    await mailbox.purge_dead_letter("bob")
    assert await mailbox.peek_dead_letter("bob") == []


@pytest.mark.req("MBX-5", "MBX-7")
@pytest.mark.parametrize("claimed", [3, 2**32 - 1])
async def test_the_mailbox_counts_its_own_deliveries(mailbox: MailboxProtocol, clock: FakeClock, claimed: int) -> None:
    """What a sender says of attempts costs its message none of its four deliveries."""
    await mailbox.enqueue(structs.replace(message(), attempt=claimed))
    for attempt in range(4):
        (got,) = await mailbox.dequeue_many("bob", 10)
        assert got.attempt == attempt
        await mailbox.nack("bob", "m1", "busy")
        clock.advance(60_000)
    (dead,) = await mailbox.peek_dead_letter("bob")
    assert (dead.attempt, dead.attempts) == (3, 4)


@pytest.mark.req("MBX-6")
async def test_silence_is_a_nack(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """A message that nobody acks within 30 seconds comes again, counted from when its time was over."""
    await mailbox.enqueue(message())
    await mailbox.dequeue("bob")
    clock.advance(34_999)
    assert await mailbox.dequeue("bob") is None
    clock.advance(1)
    got = await mailbox.dequeue("bob")
    assert got is not None
    assert got.attempt == 1
    clock.advance(3_600_000)
    for _ in range(3):
        await mailbox.dequeue("bob")
        clock.advance(3_600_000)
    (dead,) = await mailbox.peek_dead_letter("bob")
    assert dead.attempts == 4


@pytest.mark.req("MBX-6")
async def test_long_work_gets_more_time(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """Who extends in time keeps the message; a message whose time is over cannot be extended."""
    await mailbox.enqueue(message())
    await mailbox.dequeue("bob")
    for _ in range(5):
        clock.advance(29_000)
        await mailbox.extend("bob", "m1", 30)
    clock.advance(30_000)
    with pytest.raises(Refusal):
        await mailbox.extend("bob", "m1", 30)
    assert await states(mailbox) == {"m1": MailboxState.PENDING}


@pytest.mark.req("MBX-6")
async def test_a_day_is_the_end(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """What is pending or in flight after 24 hours has expired: not handed out, not acked, no dead letter."""
    await mailbox.enqueue(message("waiting"))
    clock.advance((86_400 - 10) * 1000)
    await mailbox.enqueue(message("later", sender="eve"))
    assert await ids(mailbox, 1) == ["waiting"]
    clock.advance(10_000)
    with pytest.raises(Refusal) as refused:
        await mailbox.ack("bob", "waiting")
    assert refused.value.code is Code.INVALID_TRANSITION
    assert await states(mailbox) == {"later": MailboxState.PENDING}
    assert await mailbox.peek_dead_letter("bob") == []
    assert (await mailbox.enqueue(message("waiting"))).queued is False


@pytest.mark.req("MBX-8")
async def test_each_sender_is_heard_in_order(mailbox: MailboxProtocol) -> None:
    """FIFO for each sender also where its clock steps back; senders interleave by the time of creation."""
    await mailbox.enqueue_many(
        [
            message("a1", sender="ada", created_at=100),
            message("a2", sender="ada", created_at=50),
            message("a3", sender="ada", created_at=300),
            message("e1", sender="eve", created_at=20),
            message("e2", sender="eve", created_at=200),
            message("z1", sender="zoe", created_at=100),
        ]
    )
    assert await ids(mailbox) == ["e1", "a1", "a2", "z1", "e2", "a3"]


@pytest.mark.req("MBX-8")
async def test_a_retry_holds_back_only_its_own_sender(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """While a message waits for its next try, later ones of its sender wait with it, and all others go on."""
    await mailbox.enqueue_many([message("a1"), message("a2"), message("e1", sender="eve", created_at=1_800_000_000)])
    assert await ids(mailbox, 1) == ["a1"]
    await mailbox.nack("bob", "a1", "busy")
    assert await ids(mailbox) == ["e1"]
    await mailbox.enqueue(message("a3", created_at=1))
    assert await ids(mailbox) == []
    clock.advance(5_000)
    assert await ids(mailbox) == ["a1", "a2", "a3"]


@pytest.mark.req("MBX-8")
async def test_a_held_sender_with_a_long_queue_does_not_hide_the_others(mailbox: MailboxProtocol) -> None:
    """However much a held sender has written, the next message of another one is found."""
    await mailbox.enqueue_many([message(f"a{n}", created_at=n) for n in range(200)])
    await mailbox.enqueue_many([message(f"e{n}", sender="eve", created_at=1000 + n) for n in range(3)])
    assert await ids(mailbox, 1) == ["a0"]
    await mailbox.nack("bob", "a0", "busy")
    assert await ids(mailbox, 2) == ["e0", "e1"]
    assert await ids(mailbox, 2) == ["e2"]


@pytest.mark.req("MBX-3")
async def test_a_purged_id_is_not_queued_again(mailbox: MailboxProtocol) -> None:
    """Purging drops what waits and what is in flight, keeps dead letters, and still knows the ids."""
    await mailbox.enqueue_many([message("m1"), message("m2")])
    await mailbox.dequeue("bob")
    await mailbox.purge("bob")
    assert await mailbox.peek("bob") == []
    assert await mailbox.dequeue("bob") is None
    assert (await mailbox.enqueue(message("m1"))).queued is False
    again = await mailbox.enqueue(message("m3"))
    assert (again.queued, again.pending) == (True, 1)
    with pytest.raises(Refusal) as refused:
        await mailbox.ack("bob", "m1")
    assert refused.value.code is Code.NOT_FOUND


@pytest.mark.req("MBX-3")
async def test_an_id_is_remembered_for_its_retention(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """An acked id is known for a week; a dead letter's id for as long as the dead letter is there."""
    await mailbox.enqueue(message("acked"))
    await mailbox.dequeue("bob")
    await mailbox.ack("bob", "acked")
    clock.advance((7 * 86_400 - 1) * 1000)
    await sweep(mailbox)
    assert (await mailbox.enqueue(message("acked"))).queued is False
    clock.advance(2_000)
    await sweep(mailbox)
    assert (await mailbox.enqueue(message("acked"))).queued is True


async def sweep(mailbox: MailboxProtocol) -> None:
    """What the sweeper of a served mailbox does by itself."""
    while await cast("Sweepable", mailbox).sweep():
        pass


@pytest.mark.req("MBX-11")
@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a\0b", "x" * 10_000, "sp ace", "ünï", "a/b?c#d", ".", "%2e", "';--", "a\nb"]
)
async def test_names_are_data(mailbox: MailboxProtocol, name: str) -> None:
    """Sessions, senders and ids may be any text; each names itself and nothing else."""
    await mailbox.enqueue(message(name, sender=name, to=name))
    got = await mailbox.dequeue(name)
    assert got is not None
    assert (got.msg_id, got.sender, got.to) == (name, name, name)
    await mailbox.nack(name, name, name)
    (peeked,) = await mailbox.peek(name)
    assert (peeked.msg_id, peeked.attempt) == (name, 1)
    await mailbox.purge(name)
    assert await mailbox.peek(name) == []


@pytest.mark.req("MBX-1")
async def test_unknown_fields_pass_through(mailbox: MailboxProtocol) -> None:
    """What this version does not know is ignored and handed on."""
    sent = MailboxMessage(
        msg_id="m1",
        sender="ada",
        to="bob",
        payload="hello",
        created_at=1,
        attempt=0,
        protocol_version="1.7",
        extra={"priority": 3, "tags": ["a", {"b": None}]},
    )
    await mailbox.enqueue(sent)
    assert await mailbox.dequeue("bob") == sent


# What a program may put into a message, and nobody could receive.
IMPOSSIBLE: list[dict[str, object]] = [
    {"payload": {"a": 1}},
    {"payload": b"bytes"},
    {"payload": None},
    {"payload": "\ud800"},
    {"msg_id": 7},
    {"protocol_version": 1.0},
    {"created_at": 1.5},
    {"created_at": 2**63},
    {"attempt": -1},
    {"extra": {"x": float("nan")}},
    {"extra": {"x": b"bytes"}},
    {"extra": {"x": 2**70}},
    {"extra": {1: "x"}},
]


@pytest.mark.req("MBX-1", "MBX-4")
async def test_a_value_that_cannot_be_is_refused_at_once(mailbox: MailboxProtocol) -> None:
    """What a program put into a message is checked as the wire would, and nothing of its batch is queued."""
    for fields in IMPOSSIBLE:
        bad = MailboxMessage(**{**structs.asdict(message("bad")), **fields})
        for call in (mailbox.enqueue(bad), mailbox.enqueue_many([message("good"), bad])):
            with pytest.raises(Refusal) as refused:
                await call
            assert refused.value.code is Code.INVALID_FIELD
    assert await mailbox.peek("bob") == []
    await mailbox.enqueue(message("good"))
    assert await ids(mailbox) == ["good"]


async def test_a_page_after_another(mailbox: MailboxProtocol) -> None:
    """Peeking page by page shows everything once, what is in flight first."""
    await mailbox.enqueue_many([message(f"m{n}", created_at=n) for n in range(10)])
    await mailbox.dequeue_many("bob", 3)
    seen: list[str] = []
    after = None
    while page := await mailbox.peek("bob", after=after, limit=4):
        seen += [each.msg_id for each in page]
        after = seen[-1]
    assert seen == [f"m{n}" for n in range(10)]
    with pytest.raises(Refusal) as refused:
        await mailbox.peek("bob", after="nobody")
    assert refused.value.code is Code.NOT_FOUND


async def test_who_waits_is_woken(mailbox: MailboxProtocol) -> None:
    """A dequeue that waits gets the message that comes meanwhile; with none it ends empty."""
    waiting = asyncio.ensure_future(mailbox.dequeue("bob", wait_seconds=30))
    await asyncio.sleep(0)
    await mailbox.enqueue(message())
    got = await waiting
    assert got is not None
    assert got.msg_id == "m1"
    assert await mailbox.dequeue("bob", wait_seconds=0.01) is None


async def test_a_batch_is_all_or_nothing(mailbox: MailboxProtocol) -> None:
    """One bad message, or one that cannot be acked, leaves the whole batch undone."""
    with pytest.raises(Refusal) as refused:
        await mailbox.enqueue_many([message("m1"), message("m2", payload="x" * (1024 * 1024))])
    assert refused.value.code is Code.TOO_LARGE
    assert await mailbox.peek("bob") == []
    await mailbox.enqueue_many([message("m1"), message("m2")])
    await mailbox.dequeue("bob")
    with pytest.raises(Refusal):
        await mailbox.ack_many("bob", ["m1", "m2"])
    assert await states(mailbox) == {"m1": MailboxState.IN_FLIGHT, "m2": MailboxState.PENDING}
    with pytest.raises(Refusal):
        await mailbox.dequeue_many("bob", 0)


@pytest.mark.req("MBX-9")
async def test_a_crowd_shares_without_loss(mailbox: MailboxProtocol) -> None:
    """Many at once enqueue the same ids and take what there is: each message is handed out once."""
    await asyncio.gather(*(mailbox.enqueue(message(f"m{n % 50}")) for n in range(200)))
    taken = await asyncio.gather(*(mailbox.dequeue("bob") for _ in range(80)))
    got = [each.msg_id for each in taken if each is not None]
    assert sorted(got) == sorted(f"m{n}" for n in range(50))
    await asyncio.gather(*(mailbox.ack("bob", msg_id) for msg_id in got))
    assert await mailbox.peek("bob") == []
