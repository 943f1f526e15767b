"""The disk fails once, at every place where it can, and then works again: no message that was acknowledged is lost."""

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from agentpost.mailbox import worker
from agentpost.mailbox.file import FileMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database, FileKind
from agentpost.testing import FakeClock
from tests.faults.disk import Disk, Fault, Keep, Point
from tests.mailboxes.building import message

FILE = "mail.db"
OUTCOMES = ((Keep.NOTHING, 0), (Keep.TORN, 1), (Keep.EVERYTHING, 0))
# Each sync fails in turn, and each write in `make test-long`; here every fifth of them.
STEP_OF_WRITES = 1 if int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1")) > 1 else 5


class Caller:
    """Enqueues, takes and acks, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        # An ack that was refused may have been noted all the same.
        self.asked_to_ack: set[str] = set()
        self.acked: set[str] = set()
        self.refused: list[Refusal] = []

    async def enqueue(self, mailbox: FileMailbox, msg_id: str) -> None:
        try:
            await mailbox.enqueue(message(msg_id))
            self.told.add(msg_id)
        except Refusal as refusal:
            self.refused.append(refusal)

    async def take(self, mailbox: FileMailbox) -> str | None:
        """A hand-over is committed without a sync: the log has frames that only a later one makes durable."""
        with suppress(Refusal):
            found = await mailbox.dequeue("bob")
            return None if found is None else found.msg_id
        return None

    async def ack(self, mailbox: FileMailbox, msg_id: str | None) -> None:
        if msg_id is not None:
            self.asked_to_ack.add(msg_id)
            with suppress(Refusal):
                await mailbox.ack("bob", msg_id)
                self.acked.add(msg_id)


@asynccontextmanager
async def opened(folder: Path, disk: Disk, *, blocking: bool, count: int = 1) -> AsyncIterator[list[FileMailbox]]:
    """The mailbox, as so many processes have it open; none if the disk fails meanwhile."""
    async with AsyncExitStack() as stack:
        mailboxes: list[FileMailbox] = []
        try:
            for _ in range(count):
                mailbox = FileMailbox.open(folder / FILE, clock=FakeClock(), blocking=blocking, vfs=disk.name)
                mailboxes.append(await stack.enter_async_context(mailbox))
        except Refusal:
            mailboxes = []
        yield mailboxes


async def live(
    folder: Path,
    disk: Disk,
    caller: Caller,
    *,
    blocking: bool,
    processes: int,
    before_end: Callable[[], Awaitable[None]],
) -> None:
    """Several turns of every process; then the mailbox is opened again on the same machine, and used on.

    `before_end` is called while a mailbox is still open: its end would make all of it durable.
    """
    for life in ("a", "b"):
        async with opened(folder, disk, blocking=blocking, count=processes) as mailboxes:
            for turn, mailbox in itertools.product(range(3), mailboxes):
                name = f"{life}{turn}{mailboxes.index(mailbox)}"
                taken = await caller.take(mailbox)
                await caller.enqueue(mailbox, f"{name}x")
                await caller.take(mailbox)
                await asyncio.gather(*(caller.enqueue(mailbox, f"{name}{each}") for each in "yz"))
                await caller.ack(mailbox, taken)
            await before_end()
    async with opened(folder, disk, blocking=blocking) as mailboxes:
        for mailbox in mailboxes:
            await caller.enqueue(mailbox, "last")
        await before_end()


async def problems(path: Path, caller: Caller) -> list[str]:
    async with FileMailbox.open(path, clock=FakeClock(), blocking=True) as mailbox:
        there = {each.msg_id for each in await mailbox.peek("bob")}
        again = there & caller.acked
        return [
            *(f"{each} is lost" for each in sorted(caller.told - caller.asked_to_ack - there)),
            *(f"{each} was acked and comes again" for each in sorted(again)),
        ]


def may_fail(point: Point) -> bool:
    return point.op == "sync" or point.index % STEP_OF_WRITES == 0


async def problems_after_faults(root: Path, *, blocking: bool, processes: int) -> tuple[list[str], int]:
    """What is lost after one failure at each place where the disk is written, and at how many a caller was refused."""
    async with FileMailbox.open(root / "new" / FILE, clock=FakeClock(), blocking=True) as mailbox:
        await mailbox.enqueue_many([message("m1"), message("m2"), message("m3")])
    found: list[str] = []
    refusals = fault_at = 0
    while True:
        folder = root / "run"
        shutil.copytree(root / "new", folder)
        caller = Caller()
        with Disk(fault=Fault.EIO, fault_at=fault_at, only=may_fail) as disk:

            async def lose_power(disk: Disk = disk, caller: Caller = caller) -> None:
                for keep, seed in OUTCOMES if disk.struck else ():
                    disk.survive(root / "back", keep=keep, seed=seed * 10_000 + disk.struck[0].index)
                    lost = await problems(root / "back" / FILE, caller)
                    found.extend(f"{disk.struck[0]} {keep.name}: {each}" for each in lost)
                    shutil.rmtree(root / "back")

            await live(folder, disk, caller, blocking=blocking, processes=processes, before_end=lose_power)
            if not disk.struck:
                return found, refusals
            refusals += bool(caller.refused)
            fault_at = disk.struck[0].index + 1
        shutil.rmtree(folder)


@pytest.mark.req("MBX-9", "PIPE-3")
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "thread"])
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_disk_that_fails_once_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool, processes: int
) -> None:
    """Whichever write or sync fails, also of a checkpoint: what is acknowledged then or later survives a power cut."""
    # The log is moved into the file within each life.
    monkeypatch.setattr(worker, "_CHECKPOINT_AT_PAGES", 24)
    monkeypatch.setattr(worker, "_COMMITS_A_LOOK_AT_THE_LOG", 2)
    found, refusals = await problems_after_faults(tmp_path, blocking=blocking, processes=processes)
    assert found == []
    assert refusals > 12


@pytest.mark.req("MBX-9", "PIPE-3")
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "thread"])
async def test_a_mailbox_stops_for_good_when_the_disk_fails(tmp_path: Path, blocking: bool) -> None:
    """After one failed sync every call is refused, says what to do, and is told once to whoever opened the mailbox."""
    told: list[Refusal] = []
    async with FileMailbox.open(tmp_path / FILE, clock=FakeClock(), blocking=True):
        pass
    is_sync_of_log = lambda point: point.op == "sync" and point.file.endswith("-wal")  # noqa: E731
    with Disk(fault=Fault.EIO, fault_at=0, only=is_sync_of_log) as disk:
        mailbox = FileMailbox.open(
            tmp_path / FILE, clock=FakeClock(), blocking=blocking, vfs=disk.name, on_failure=told.append
        )
        for call in (
            lambda: mailbox.enqueue(message("m1")),
            lambda: mailbox.enqueue(message("m2")),
            lambda: mailbox.dequeue("bob"),
            lambda: mailbox.peek("bob"),
        ):
            with pytest.raises(Refusal) as refused:
                await call()
            assert refused.value.code is Code.STORAGE_FAILED
        assert refused.value.hint == "Check the disk, then open the mailbox again."
        assert mailbox.failure is not None
        assert [each.code for each in told] == [Code.STORAGE_FAILED]
        writes = len(disk.points)
        await mailbox.close()
        assert len(disk.points) == writes
        async with FileMailbox.open(tmp_path / FILE, clock=FakeClock(), blocking=blocking, vfs=disk.name) as mailbox:
            assert (await mailbox.enqueue(message("m3"))).queued


@pytest.mark.req("MBX-9", "PIPE-3")
async def test_an_enqueue_that_shares_a_commit_with_a_dequeue_is_synced(tmp_path: Path) -> None:
    """A commit waits for the disk if one of those who share it must last, whatever the others need."""
    async with FileMailbox.open(tmp_path / FILE, clock=FakeClock(), blocking=True) as mailbox:
        await mailbox.enqueue_many([message("m1"), message("m2"), message("m3")])
    with Disk() as disk:
        async with FileMailbox.open(tmp_path / FILE, clock=FakeClock(), vfs=disk.name) as mailbox:
            # Another process has its turn: what is asked for meanwhile shares the next commit.
            other = Database.open_shared(tmp_path / FILE, FileKind.MAILBOX, busy_timeout_ms=1_000, vfs=disk.name)
            other.begin()
            first = asyncio.ensure_future(mailbox.dequeue("bob"))
            await asyncio.sleep(0.05)
            together = asyncio.gather(mailbox.dequeue("bob"), mailbox.enqueue(message("m4")), mailbox.dequeue("bob"))
            await asyncio.sleep(0.05)
            other.rollback()
            other.abandon()
            await asyncio.gather(first, together)
            disk.survive(tmp_path / "back", keep=Keep.NOTHING)
    async with FileMailbox.open(tmp_path / "back" / FILE, clock=FakeClock(), blocking=True) as mailbox:
        assert "m4" in {each.msg_id for each in await mailbox.peek("bob")}
