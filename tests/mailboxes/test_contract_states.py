"""Every state against every call, clocks that are set, and input that nobody should send: on every transport."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from agentpost.mailbox.interface import MailboxProtocol
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import MailboxState
from agentpost.testing import FakeClock
from tests.mailboxes.building import message
from tests.mailboxes.test_contract import ids, states, sweep

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

Prepare = Callable[[MailboxProtocol, FakeClock, str], Awaitable[None]]


async def take(mailbox: MailboxProtocol, session: str) -> None:
    assert [each.msg_id for each in await mailbox.dequeue_many(session, 10)] == ["m1"]


async def pending(mailbox: MailboxProtocol, _: FakeClock, session: str) -> None:
    await mailbox.enqueue(message(to=session))


async def in_flight(mailbox: MailboxProtocol, clock: FakeClock, session: str) -> None:
    await pending(mailbox, clock, session)
    await take(mailbox, session)


async def nacked(mailbox: MailboxProtocol, clock: FakeClock, session: str) -> None:
    await in_flight(mailbox, clock, session)
    await mailbox.nack(session, "m1", "busy")


async def acked(mailbox: MailboxProtocol, clock: FakeClock, session: str) -> None:
    await in_flight(mailbox, clock, session)
    await mailbox.ack(session, "m1")


async def dead(mailbox: MailboxProtocol, clock: FakeClock, session: str) -> None:
    await pending(mailbox, clock, session)
    for _ in range(4):
        await take(mailbox, session)
        await mailbox.nack(session, "m1", "busy")
        clock.advance(60_000)


async def dead_and_purged(mailbox: MailboxProtocol, clock: FakeClock, session: str) -> None:
    await dead(mailbox, clock, session)
    await mailbox.purge_dead_letter(session)


async def expired(mailbox: MailboxProtocol, clock: FakeClock, session: str) -> None:
    await pending(mailbox, clock, session)
    clock.advance(DAY_MS)


async def expired_in_flight(mailbox: MailboxProtocol, clock: FakeClock, session: str) -> None:
    await pending(mailbox, clock, session)
    clock.advance(DAY_MS - 1000)
    await take(mailbox, session)
    clock.advance(1000)


async def purged(mailbox: MailboxProtocol, clock: FakeClock, session: str) -> None:
    await pending(mailbox, clock, session)
    await mailbox.purge(session)


async def unknown(_mailbox: MailboxProtocol, _clock: FakeClock, _session: str) -> None:
    pass


NO, WHO, OK = Code.INVALID_TRANSITION, Code.NOT_FOUND, None
# How a message got where it is, and what ack, nack and extend say to it there; None is no refusal.
TABLE: dict[Prepare, tuple[Code | None, Code | None, Code | None]] = {
    pending: (NO, NO, NO),
    in_flight: (OK, OK, OK),
    nacked: (NO, NO, NO),
    acked: (OK, NO, NO),
    dead: (NO, OK, NO),
    dead_and_purged: (NO, OK, NO),
    expired: (NO, NO, NO),
    expired_in_flight: (NO, NO, NO),
    purged: (WHO, WHO, WHO),
    unknown: (WHO, WHO, WHO),
}
each_state = pytest.mark.parametrize("prepare", TABLE, ids=lambda prepare: prepare.__name__)


@pytest.mark.req("MBX-2", "MBX-5")
@each_state
async def test_the_whole_table(mailbox: MailboxProtocol, clock: FakeClock, prepare: Prepare) -> None:
    """In each state a call moves the message, changes nothing, or is refused, as the table of the protocol has it."""
    calls: dict[str, Callable[[], Awaitable[None]]] = {
        "acks": lambda: mailbox.ack("acks", "m1"),
        "nacks": lambda: mailbox.nack("nacks", "m1", "why"),
        "extends": lambda: mailbox.extend("extends", "m1", 30),
    }
    for (session, call), refusal in zip(calls.items(), TABLE[prepare], strict=True):
        await prepare(mailbox, clock, session)
        before = await states(mailbox, session), len(await mailbox.peek_dead_letter(session))
        if refusal is None:
            await call()
            continue
        with pytest.raises(Refusal) as refused:
            await call()
        assert refused.value.code is refusal, session
        assert (await states(mailbox, session), len(await mailbox.peek_dead_letter(session))) == before


@pytest.mark.req("MBX-3")
@each_state
async def test_an_id_is_queued_once_whatever_became_of_it(
    mailbox: MailboxProtocol, clock: FakeClock, prepare: Prepare
) -> None:
    """In every state, and after the sweeper has been there, the same id is not queued again."""
    await prepare(mailbox, clock, "bob")
    await sweep(mailbox)
    before = await states(mailbox)
    assert (await mailbox.enqueue(message())).queued is (prepare is unknown)
    if prepare is not unknown:
        assert await states(mailbox) == before


@pytest.mark.req("MBX-6")
async def test_a_clock_that_is_set_back_loses_nothing(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """What is in flight can be acked, what is not acked comes again later, and new mail is handed out at once."""
    await mailbox.enqueue_many([message("m1"), message("m2")])
    assert await ids(mailbox) == ["m1", "m2"]
    clock.step_back(HOUR_MS)
    await mailbox.ack("bob", "m1")
    await mailbox.enqueue(message("m3", sender="eve"))
    assert await ids(mailbox) == ["m3"]
    assert await states(mailbox) == {"m2": MailboxState.IN_FLIGHT, "m3": MailboxState.IN_FLIGHT}
    clock.advance(HOUR_MS + 35_000)
    assert sorted(await ids(mailbox)) == ["m2", "m3"]


@pytest.mark.req("MBX-6", "MBX-8")
async def test_a_clock_that_is_set_ahead_loses_nothing(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """What is in flight comes again at once, in its order; the late ack is refused, and no message is gone."""
    await mailbox.enqueue_many([message("m1"), message("m2")])
    assert await ids(mailbox) == ["m1", "m2"]
    clock.advance(HOUR_MS)
    with pytest.raises(Refusal) as refused:
        await mailbox.ack("bob", "m1")
    assert refused.value.code is Code.INVALID_TRANSITION
    again = await mailbox.dequeue_many("bob", 10)
    assert [(each.msg_id, each.attempt) for each in again] == [("m1", 1), ("m2", 1)]


@pytest.mark.req("MBX-6", "MBX-8")
async def test_each_message_has_its_day_by_the_clock_it_came_under(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """Set back between two messages, the second expires first; as long as both are there they keep their order."""
    await mailbox.enqueue(message("first"))
    clock.step_back(HOUR_MS)
    await mailbox.enqueue(message("second"))
    assert [each.msg_id for each in await mailbox.peek("bob")] == ["first", "second"]
    clock.advance(DAY_MS)
    assert await states(mailbox) == {"first": MailboxState.PENDING}
    clock.advance(HOUR_MS)
    assert await states(mailbox) == {}
    assert await mailbox.dequeue("bob") is None


@pytest.mark.req("MBX-6")
async def test_who_waits_for_a_retry_expires_as_well(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """A message between two tries is pending: after its day it is over, and holds back nobody."""
    await mailbox.enqueue(message("m1"))
    clock.advance(DAY_MS - 1000)
    assert await ids(mailbox) == ["m1"]
    await mailbox.nack("bob", "m1", "busy")
    await mailbox.enqueue(message("m2"))
    assert await ids(mailbox) == []
    clock.advance(1000)
    assert await ids(mailbox) == ["m2"]
    assert await mailbox.peek_dead_letter("bob") == []


@pytest.mark.req("MBX-8")
async def test_equal_times_keep_the_order_across_a_retry(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """With one time for all, messages come in the order in which they were enqueued, also after a nack."""
    await mailbox.enqueue_many([message(f"m{n}", sender="ada" if n % 2 else "eve", created_at=7) for n in range(6)])
    assert await ids(mailbox, 2) == ["m0", "m1"]
    await mailbox.nack("bob", "m1", "busy")
    assert await ids(mailbox) == ["m2", "m4"]
    clock.advance(5_000)
    assert await ids(mailbox) == ["m1", "m3", "m5"]


@pytest.mark.req("MBX-11")
@pytest.mark.parametrize("name", ["", "\ud800", "x" * (64 * 1024 + 1)], ids=["empty", "half a pair", "too long"])
async def test_what_is_no_name_is_refused_everywhere(mailbox: MailboxProtocol, name: str) -> None:
    """Nothing, half a surrogate pair and more than 64 kB are no names of sessions, senders or messages."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: mailbox.dequeue(name),
        lambda: mailbox.dequeue_many(name, 3),
        lambda: mailbox.ack(name, "m1"),
        lambda: mailbox.ack("bob", name),
        lambda: mailbox.ack_many("bob", [name]),
        lambda: mailbox.nack("bob", name, "why"),
        lambda: mailbox.extend(name, "m1", 5),
        lambda: mailbox.peek(name),
        lambda: mailbox.purge(name),
        lambda: mailbox.peek_dead_letter(name),
        lambda: mailbox.purge_dead_letter(name),
        lambda: mailbox.enqueue(replace(message(), msg_id=name)),
        lambda: mailbox.enqueue(replace(message(), sender=name)),
        lambda: mailbox.enqueue(replace(message(), to=name)),
    ]
    for call in calls:
        with pytest.raises(Refusal) as refused:
            await call()
        assert refused.value.code is Code.INVALID_FIELD
    assert await mailbox.peek("bob") == []


@pytest.mark.req("MBX-7")
async def test_a_reason_may_be_anything_but_not_endless(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """A reason with NUL and quotes is kept as it is, a very long one is cut, and one that is not Unicode is refused."""
    await mailbox.enqueue(message())
    for _ in range(3):
        assert await ids(mailbox) == ["m1"]
        await mailbox.nack("bob", "m1", "'; DROP TABLE messages; --\0")
        clock.advance(60_000)
    assert await ids(mailbox) == ["m1"]
    with pytest.raises(Refusal):
        await mailbox.nack("bob", "m1", "\ud800")
    await mailbox.nack("bob", "m1", "x" * 1_000_000)
    (entry,) = await mailbox.peek_dead_letter("bob")
    assert entry.reason.startswith("max_retries exhausted: xxx")
    assert len(entry.reason) < 20_000


@pytest.mark.req("MBX-4", "MBX-10")
async def test_no_answer_is_larger_than_a_transport_carries(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """However many large messages are asked for, each answer has some of them, and all of them come."""
    large = [message(f"m{n:02d}", payload="x" * 1_000_000) for n in range(18)]
    for first in (0, 9):
        await mailbox.enqueue_many(large[first : first + 9])
    got = [await ids(mailbox, 18) for _ in range(3)]
    assert [len(each) for each in got] == [8, 8, 2]
    assert [msg_id for each in got for msg_id in each] == [each.msg_id for each in large]
    clock.advance(60_000)
    # Another sender is held back, so the careful way is taken.
    for msg_id in await ids(mailbox, 1):
        await mailbox.nack("bob", msg_id, "busy")
    clock.advance(60_000)
    await mailbox.enqueue_many([message("held", sender="eve", created_at=1), message("behind", sender="eve")])
    assert await ids(mailbox, 1) == ["held"]
    await mailbox.nack("bob", "held", "busy")
    assert len(await ids(mailbox, 18)) == 8


@pytest.mark.req("MBX-10")
async def test_no_page_is_larger_than_a_transport_carries(mailbox: MailboxProtocol) -> None:
    """Pages of long names, which are longer still as JSON, have fewer lines, and nothing is left out."""
    names = [f"{n:03d}" + "\0" * 15_000 for n in range(120)]
    await mailbox.enqueue_many([message(name) for name in names])
    seen: list[str] = []
    while page := await mailbox.peek("bob", after=seen[-1] if seen else None):
        assert len(page) < 120
        seen += [each.msg_id for each in page]
    assert seen == names


@pytest.mark.req("MBX-7", "MBX-8")
async def test_dead_letters_stand_in_the_order_of_the_messages(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """Senders interleave by the time of creation among dead letters, too, whichever came first."""
    await mailbox.enqueue_many([message("a1", created_at=100), message("e1", sender="eve", created_at=20)])
    for _ in range(4):
        for msg_id in await ids(mailbox):
            await mailbox.nack("bob", msg_id, "busy")
        clock.advance(60_000)
    assert [each.msg_id for each in await mailbox.peek_dead_letter("bob")] == ["e1", "a1"]


async def test_nobody_waits_for_less_than_no_time(mailbox: MailboxProtocol) -> None:
    """A time to wait that is none is refused, and nothing is handed out."""
    await mailbox.enqueue(message())
    for seconds in (-1, float("nan"), float("inf")):
        for call in (
            mailbox.dequeue("bob", wait_seconds=seconds),
            mailbox.dequeue_many("bob", 3, wait_seconds=seconds),
        ):
            with pytest.raises(Refusal) as refused:
                await call
            assert refused.value.code is Code.INVALID_FIELD
    assert await states(mailbox) == {"m1": MailboxState.PENDING}


@pytest.mark.req("MBX-7")
async def test_dead_letters_come_page_by_page(mailbox: MailboxProtocol, clock: FakeClock) -> None:
    """Each dead letter is on one page, in the order of the messages."""
    await mailbox.enqueue_many([message(f"m{n}", created_at=7) for n in range(5)])
    for _ in range(4):
        for msg_id in await ids(mailbox):
            await mailbox.nack("bob", msg_id, "busy")
        clock.advance(60_000)
    seen: list[str] = []
    while page := await mailbox.peek_dead_letter("bob", after=seen[-1] if seen else None, limit=2):
        seen += [each.msg_id for each in page]
    assert seen == [f"m{n}" for n in range(5)]
