"""The power goes at every write of a mailbox's life, and the disk comes back with nothing, all or some of the rest."""

import asyncio
import os
import shutil
from collections.abc import Coroutine, Iterable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
from msgspec import Struct, field

from agentpost.mailbox import worker
from agentpost.mailbox.file import FileMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database
from agentpost.testing import FakeClock
from tests.faults.disk import Disk, Fault, Keep
from tests.mailboxes.building import message

ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
OUTCOMES = [(Keep.NOTHING, 0), (Keep.EVERYTHING, 0), *((Keep.TORN, seed) for seed in range(ROUNDS))]
FILE = "mail.db"
MISCOUNTED = """
SELECT name FROM sessions JOIN lines AS head ON head.line = sessions.id AND head.place = -1
WHERE head.pending != (SELECT count(*) FROM lines WHERE line = sessions.id AND place >= 0)
"""


class Told(Struct):
    """What the caller of the mailbox knows. `asked` is what was asked for, and perhaps never answered."""

    queued: set[str] = field(default_factory=set[str])
    acked: set[str] = field(default_factory=set[str])
    nacked: set[str] = field(default_factory=set[str])
    asked: set[str] = field(default_factory=set[str])


async def live(mailbox: FileMailbox, told: Told) -> None:
    """Enqueue, hand out, ack, nack, one by one and several at a time, until the end or until the power goes."""

    async def enqueue(*msg_ids: str) -> None:
        await mailbox.enqueue_many([message(each) for each in msg_ids])
        told.queued.update(msg_ids)

    async def take(limit: int) -> list[str]:
        return [each.msg_id for each in await mailbox.dequeue_many("bob", limit)]

    async def ack(*msg_ids: str) -> None:
        told.asked.update(msg_ids)
        await mailbox.ack_many("bob", msg_ids)
        told.acked.update(msg_ids)

    await enqueue("m1")
    await enqueue("m2", "m3", "m4")
    await ack(*await take(1))
    first, second = await take(2)
    await ack(first)
    await mailbox.nack("bob", second, "busy")
    told.nacked.add(second)
    await enqueue("m5")
    # Nothing but hand-overs, which do not wait for the disk, before the next word that does.
    await mailbox.enqueue(message("other", to="eve"))
    await mailbox.dequeue("eve")
    await ack_all_of(mailbox, "eve")


async def live_at_once(mailbox: FileMailbox, told: Told) -> None:
    """The same by several callers at a time, who share commits."""

    async def enqueue(msg_id: str) -> None:
        await mailbox.enqueue(message(msg_id))
        told.queued.add(msg_id)

    async def ack(msg_id: str) -> None:
        told.asked.add(msg_id)
        await mailbox.ack("bob", msg_id)
        told.acked.add(msg_id)

    async def nack(msg_id: str) -> None:
        await mailbox.nack("bob", msg_id, "busy")
        told.nacked.add(msg_id)

    await all_of(enqueue(f"m{n}") for n in range(1, 6))
    taken = [each.msg_id for each in await mailbox.dequeue_many("bob", 4)]
    await all_of([*(ack(each) for each in taken[:3]), nack(taken[3])])


async def all_of(calls: Iterable[Coroutine[None, None, None]]) -> None:
    """Make the calls at once; each has its end before the first refusal is told."""
    for end in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(end, BaseException):
            raise end


async def ack_all_of(mailbox: FileMailbox, session: str) -> None:
    for each in await mailbox.peek(session):
        await mailbox.ack(session, each.msg_id)


async def problems(path: Path, told: Told) -> list[str]:
    """What is wrong with a mailbox that came back, measured by what its caller was told."""
    clock = FakeClock()
    found: list[str] = []
    async with FileMailbox.open(path, clock=clock, blocking=True) as mailbox:
        there = {each.msg_id: each for each in await mailbox.peek("bob")}
        found += [f"{each} is lost" for each in told.queued - told.asked if each not in there]
        tried = {msg_id for msg_id, each in there.items() if each.attempt == 1}
        found += [f"the nack of {each} is lost" for each in told.nacked - tried]
        found += [f"{each} is queued again" for each in told.queued if (await mailbox.enqueue(message(each))).queued]
        clock.advance(60_000)
        again = {each.msg_id for each in await mailbox.dequeue_many("bob", 100)}
        found += [f"{each} was acked and comes again" for each in again & told.acked]
        found += [f"{each} does not come" for each in told.queued - told.asked - again]
    with closing(Database.open_reader(path)) as database:
        found += [row[0] for row in database.rows("PRAGMA integrity_check") if row[0] != "ok"]
        found += [f"{name} is counted wrong" for (name,) in database.rows(MISCOUNTED)]
    return found


async def problems_after_cuts(root: Path, *, at_once: bool = False) -> list[str]:
    """The problems of a cut at each write point of a life."""
    async with FileMailbox.open(root / "new" / FILE, blocking=True):
        pass
    found: list[str] = []
    for cut_at in count():
        folder = root / "run"
        shutil.copytree(root / "new", folder)
        told = Told()
        with Disk(cut_at=cut_at) as disk:
            with suppress(Refusal):
                async with FileMailbox.open(
                    folder / FILE, clock=FakeClock(), blocking=not at_once, vfs=disk.name
                ) as mailbox:
                    await (live_at_once if at_once else live)(mailbox, told)
            if disk.has_power:
                assert cut_at > (20 if at_once else 60)
                assert told.queued == {"m1", "m2", "m3", "m4", "m5"}
                return found
            for keep, seed in OUTCOMES:
                target = root / "back"
                disk.survive(target, keep=keep, seed=seed * 10_000 + cut_at)
                found += [f"{cut_at} {keep.name}: {each}" for each in await problems(target / FILE, told)]
                shutil.rmtree(target)
        shutil.rmtree(folder)
    raise AssertionError("a life has an end")


@pytest.mark.req("MBX-3", "MBX-5", "MBX-9")
async def test_a_power_cut_loses_no_word_that_was_given(tmp_path: Path) -> None:
    """Wherever the power goes: what was queued is there, what was acked stays away, what was handed out comes again."""
    assert await problems_after_cuts(tmp_path) == []


@pytest.mark.req("MBX-3", "MBX-5", "MBX-9")
async def test_a_power_cut_loses_no_word_that_shared_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the worker's thread, where several words wait for one sync: none of them is given too early."""
    shared: list[int] = []
    # pyright: reportPrivateUsage=false
    together = worker._Committer._try_together  # whether it was the way that is shown here

    def counted(committer: worker._Committer, jobs: list[worker._Job]) -> bool:
        shared.append(len(jobs))
        return together(committer, jobs)

    monkeypatch.setattr(worker._Committer, "_try_together", counted)
    assert await problems_after_cuts(tmp_path, at_once=True) == []
    assert max(shared) >= 3


@pytest.mark.long
@pytest.mark.parametrize(("synced", "problem"), [(0, "is lost"), (2, "was acked and comes again")])
async def test_it_would_be_seen_if_words_did_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: int, problem: str
) -> None:
    """Where only the first words of a life are synced, or none, the same test finds what is wrong: it can see."""
    sync_commits = Database.sync_commits
    words: WeakKeyDictionary[Database, int] = WeakKeyDictionary()

    def sync_the_first(database: Database, wanted: bool) -> None:
        words[database] = words.get(database, 0) + 1
        sync_commits(database, wanted and words[database] <= synced)

    monkeypatch.setattr(Database, "sync_commits", sync_the_first)
    assert any(problem in each for each in await problems_after_cuts(tmp_path))


@pytest.mark.req("MBX-9")
async def test_a_full_disk_refuses_and_changes_nothing(tmp_path: Path) -> None:
    """With no room left an enqueue is refused as such, nothing of it is there, and later calls work again."""
    async with FileMailbox.open(tmp_path / FILE, blocking=True) as mailbox:
        await mailbox.enqueue(message("m1"))
    with Disk(fault=Fault.FULL, fault_at=3) as disk:
        async with FileMailbox.open(tmp_path / FILE, blocking=True, vfs=disk.name) as mailbox:
            refused: Code | None = None
            for number in range(2, 5):
                try:
                    await mailbox.enqueue(message(f"m{number}"))
                except Refusal as refusal:
                    refused = refusal.code
                    assert f"m{number}" not in {each.msg_id for each in await mailbox.peek("bob")}
                    assert (await mailbox.enqueue(message(f"m{number}"))).queued
            assert refused is Code.STORAGE_FULL
            assert len(await mailbox.peek("bob")) == 4
