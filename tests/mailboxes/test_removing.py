"""Acked messages are removed from the file a little later, together: until then nobody may notice them."""

from contextlib import closing
from pathlib import Path

import pytest

from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxPolicy
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import MailboxState
from agentpost.store.database import Database
from agentpost.testing import FakeClock
from tests.mailboxes.building import message


def kept(path: Path) -> tuple[int, int]:
    """How many messages the file holds, and how many of them it has in flight."""
    with closing(Database.open_reader(path)) as database:
        in_flight = database.value("SELECT count(*) FROM lines WHERE line = 0")
        return database.value("SELECT count(*) FROM messages"), in_flight


async def take_and_ack(mailbox: FileMailbox, count: int) -> list[str]:
    taken: list[str] = []
    for _ in range(count):
        got = await mailbox.dequeue("bob")
        assert got is not None
        await mailbox.ack("bob", got.msg_id)
        taken.append(got.msg_id)
    return taken


@pytest.mark.req("MBX-5")
async def test_acked_messages_do_not_pile_up(tmp_path: Path, clock: FakeClock) -> None:
    """However many are acked one by one, only a few of them are still in the file, and a sweep removes those."""
    async with FileMailbox.open(tmp_path / "mail.db", clock=clock, blocking=True) as mailbox:
        await mailbox.enqueue_many([message(f"m{n:03d}", created_at=n) for n in range(100)])
        assert len(await take_and_ack(mailbox, 100)) == 100
        assert kept(tmp_path / "mail.db")[0] <= 16
        assert await mailbox.peek("bob") == []
        await mailbox.sweep()
        assert kept(tmp_path / "mail.db") == (0, 0)


@pytest.mark.req("MBX-5", "MBX-9")
async def test_what_a_killed_process_acked_stays_acked_and_is_removed_by_others(
    tmp_path: Path, clock: FakeClock
) -> None:
    """Who acks and dies at once leaves the message behind: nobody sees it, and a later sweep removes it."""
    path = tmp_path / "mail.db"
    async with FileMailbox.open(path, clock=clock, blocking=True) as mailbox:
        await mailbox.enqueue_many([message("m1"), message("m2")])
        assert await take_and_ack(mailbox, 1) == ["m1"]
    async with FileMailbox.open(path, clock=clock, blocking=True) as mailbox:
        assert kept(path) == (2, 1)
        assert [each.msg_id for each in await mailbox.peek("bob")] == ["m2"]
        assert (await mailbox.state_of("bob", "m1"))[0] is MailboxState.ACKED
        await mailbox.ack("bob", "m1")
        assert (await mailbox.enqueue(message("m1"))).queued is False
        clock.advance(31_000)
        assert [each.msg_id for each in await mailbox.dequeue_many("bob", 10)] == ["m2"]
        assert kept(path) == (1, 1)


@pytest.mark.req("MBX-8")
async def test_an_acked_message_has_no_say_in_the_order_any_more(tmp_path: Path, clock: FakeClock) -> None:
    """A sender's older message goes before another sender's, although a newer one of its own was acked just before."""
    async with FileMailbox.open(tmp_path / "mail.db", clock=clock, blocking=True) as mailbox:
        await mailbox.enqueue(message("new", sender="ada", created_at=1000))
        await take_and_ack(mailbox, 1)
        await mailbox.enqueue(message("of-eve", sender="eve", created_at=600))
        await mailbox.enqueue(message("old", sender="ada", created_at=500))
        assert await take_and_ack(mailbox, 2) == ["old", "of-eve"]


@pytest.mark.req("MBX-9")
async def test_a_late_removal_spares_who_has_the_number_now(tmp_path: Path, clock: FakeClock) -> None:
    """Another process has swept, and given the number to a new message in flight: that one stays."""
    path = tmp_path / "mail.db"
    async with (
        FileMailbox.open(path, clock=clock, blocking=True) as late,
        FileMailbox.open(path, clock=clock, blocking=True) as quick,
    ):
        await late.enqueue(message("m1"))
        await take_and_ack(late, 1)
        clock.advance(31_000)
        await quick.sweep()
        assert kept(path) == (0, 0)
        await quick.enqueue(message("m2"))
        # The clock is set back, so that not even the times are different.
        clock.step_back(31_000)
        assert await quick.dequeue("bob") is not None
        await late.sweep()
        assert kept(path) == (1, 1)
        await quick.ack("bob", "m2")


@pytest.mark.req("MBX-6")
async def test_what_expires_before_older_messages_expires_in_time(tmp_path: Path, clock: FakeClock) -> None:
    """Behind a message that may wait longer one has expired: it is neither shown nor handed out, and not counted."""
    path = tmp_path / "mail.db"
    short = MailboxPolicy(ttl_seconds=10)
    async with (
        FileMailbox.open(path, clock=clock, blocking=True) as patient,
        FileMailbox.open(path, clock=clock, policy=short, blocking=True) as hasty,
    ):
        await patient.enqueue(message("m1"))
        await hasty.enqueue(message("m2"))
        await hasty.enqueue(message("m3", to="eve"))
        clock.advance(11_000)
        assert [each.msg_id for each in await patient.peek("bob")] == ["m1"]
        assert await patient.dequeue("eve") is None
        assert [each.msg_id for each in await patient.dequeue_many("bob", 10)] == ["m1"]
        await patient.sweep()
        assert (await patient.state_of("bob", "m2"))[0] is MailboxState.EXPIRED
        assert (await patient.enqueue(message("m4"))).pending == 1


@pytest.mark.req("MBX-4", "MBX-6")
async def test_a_day_of_expired_mail_holds_up_nobody(tmp_path: Path, clock: FakeClock) -> None:
    """However much has expired, a call ends a little of it, and still hands out the first message that lives."""
    path = tmp_path / "mail.db"
    async with FileMailbox.open(path, clock=clock, blocking=True) as mailbox:
        for first in range(0, 3000, 1000):
            await mailbox.enqueue_many([message(f"m{first + n}") for n in range(1000)])
        assert len(await mailbox.dequeue_many("bob", 600)) == 600
        clock.advance(86_400_000)
        await mailbox.enqueue(message("new"))
        got = await mailbox.dequeue("bob")
        assert got is not None
        assert got.msg_id == "new"
        assert kept(path)[0] > 2000
        with pytest.raises(Refusal) as refused:
            await mailbox.ack("bob", "m599")
        assert refused.value.code is Code.INVALID_TRANSITION
        assert (await mailbox.state_of("bob", "m2999"))[0] is MailboxState.EXPIRED
        assert kept(path)[0] > 2000
        assert [each.msg_id for each in await mailbox.peek("bob")] == ["new"]
        assert kept(path) == (1, 1)
