"""What is particular to the mailbox in a file: old files, old ids, who may open it, and calls that block."""

import asyncio
import stat
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from agentpost.mailbox.book import Book
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxPolicy, MailboxProtocol
from agentpost.mailbox.memory import MemoryMailbox
from agentpost.mailbox.sweeping import keep_swept
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import encode_message
from agentpost.store.database import Database, FileKind
from agentpost.store.queries import migrations
from agentpost.tasks import TaskOwner
from agentpost.testing import START_MS, FakeClock, SeededChance
from tests.mailboxes.building import message

OLD_ROW = """
INSERT INTO messages (session, msg_id, sender, state, rank, created_at, attempt, due_at_ms, expires_at_ms, body,
                      reason, failed_at, attempts)
VALUES (1, ?, 'ada', ?, 1700000000, 1700000000, 0, ?, ?, ?, ?, ?, ?)
"""


def an_old_file(path: Path) -> None:
    """A file as the first version made it, with a message in each state."""
    with closing(Database.open_shared(path, FileKind.MAILBOX, busy_timeout_ms=1000)) as database:
        database.migrate(migrations("agentpost.mailbox")[:1])
        database.run("INSERT INTO sessions (name, pending) VALUES ('bob', 1)")
        expires = START_MS + 1_000_000
        for number, (msg_id, state, due, end) in enumerate(
            [
                ("m1", "in_flight", START_MS + 30_000, (None, None, None)),
                ("m2", "pending", 0, (None, None, None)),
                ("m3", "dead_letter", 0, ("max_retries exhausted", 1_700_000_100, 4)),
            ],
            1,
        ):
            database.run(OLD_ROW, (msg_id, state, due, expires, encode_message(message(msg_id)), *end))
            database.run("INSERT INTO remembered VALUES (1, ?, ?, NULL, ?)", (msg_id, number, START_MS))
        database.run("INSERT INTO remembered VALUES (1, 'm0', NULL, 'acked', ?)", (START_MS,))


@pytest.mark.req("MBX-3")
async def test_a_file_of_the_first_version_keeps_what_is_in_it(tmp_path: Path, clock: FakeClock) -> None:
    """Messages, dead letters and remembered ids are there after the upgrade, in their states and their order."""
    an_old_file(tmp_path / "mail.db")
    async with FileMailbox.open(tmp_path / "mail.db", clock=clock) as mailbox:
        assert [(each.msg_id, each.state.value) for each in await mailbox.peek("bob")] == [
            ("m1", "in_flight"),
            ("m2", "pending"),
        ]
        (dead,) = await mailbox.peek_dead_letter("bob")
        assert (dead.msg_id, dead.attempts, dead.failed_at) == ("m3", 4, 1_700_000_100)
        for msg_id in ("m0", "m1", "m2", "m3"):
            assert (await mailbox.enqueue(message(msg_id))).queued is False
        assert (await mailbox.enqueue(message("m4"))).pending == 2
        await mailbox.ack("bob", "m1")
        assert [each.msg_id for each in await mailbox.dequeue_many("bob", 10)] == ["m2", "m4"]


@pytest.mark.req("MBX-3")
def test_old_ids_are_forgotten_a_stretch_at_a_time(tmp_path: Path) -> None:
    """A few looks pass all ids: old ones whose messages are gone are forgotten, living and recent ones are not."""
    policy = MailboxPolicy(ttl_seconds=10**6, retention_seconds=100)
    with closing(Database.open_shared(tmp_path / "mail.db", FileKind.MAILBOX, busy_timeout_ms=1000)) as database:
        database.migrate(migrations("agentpost.mailbox"))
        book = Book(database, policy)

        def enqueue(*numbers: int, to: str, now_ms: int) -> None:
            messages = [message(f"m{number:03d}", to=to) for number in numbers]
            book.enqueue(messages, [encode_message(each) for each in messages], now_ms=now_ms)

        for session in ("ann", "bob"):
            enqueue(*range(100), to=session, now_ms=START_MS)
            taken = book.dequeue(session, 90, now_ms=START_MS)
            book.ack(session, [each.msg_id for each in taken], now_ms=START_MS)
        enqueue(*range(200, 210), to="ann", now_ms=START_MS + 50_000)
        assert book.endings.forget(now_ms=START_MS + 99_000, look_at=1000) == 0
        forgotten = [book.endings.forget(now_ms=START_MS + 101_000, look_at=64) for _ in range(4)]
        assert sum(forgotten) == 180
        assert max(forgotten) <= 64
        assert database.value("SELECT count(*) FROM remembered") == 30
        assert [book.endings.forget(now_ms=START_MS + 101_000, look_at=64) for _ in range(4)] == [0] * 4


@pytest.mark.req("MBX-7", "MBX-10")
@pytest.mark.parametrize("kind", [FileMailbox, MemoryMailbox])
async def test_large_dead_letters_make_short_pages(kind: type, tmp_path: Path, clock: FakeClock) -> None:
    """A page of dead letters is never more than a transport carries, and the pages together are all of them."""
    policy = MailboxPolicy(max_retries=0)
    mailbox: MailboxProtocol = (
        FileMailbox.open(tmp_path / "mail.db", policy=policy, clock=clock)
        if kind is FileMailbox
        else MemoryMailbox(policy=policy, clock=clock)
    )
    for n in range(10):
        await mailbox.enqueue(message(f"m{n}", payload="x" * 1_000_000))
        await mailbox.dequeue("bob")
        await mailbox.nack("bob", f"m{n}", "too large for me")
    first = await mailbox.peek_dead_letter("bob")
    second = await mailbox.peek_dead_letter("bob", after=first[-1].msg_id)
    assert [each.msg_id for each in (*first, *second)] == [f"m{n}" for n in range(10)]
    assert len(first) == 8
    await mailbox.close()


@pytest.mark.req("MBX-3")
async def test_processes_that_live_for_one_call_forget_as_well(tmp_path: Path, clock: FakeClock) -> None:
    """Each goes on where the last one stopped, so old ids go although nobody stays to look at all of them."""

    class Always(SeededChance):
        def fraction(self) -> float:
            return 0.0

    path = tmp_path / "mail.db"
    policy = MailboxPolicy(retention_seconds=100)
    async with FileMailbox.open(path, clock=clock, policy=policy, blocking=True) as mailbox:
        for first in range(0, 10_000, 1000):
            await mailbox.enqueue_many([message(f"m{first + n:05d}") for n in range(1000)])
        await mailbox.purge("bob")
    clock.advance(101_000)
    for n in range(3):
        async with FileMailbox.open(path, clock=clock, policy=policy, chance=Always(seed=1), blocking=True) as mailbox:
            await mailbox.enqueue(message(f"new{n}"))
    with closing(Database.open_reader(path)) as database:
        assert database.value("SELECT count(*) FROM remembered") == 3


async def test_the_sweeper_outlives_what_goes_wrong(file: FileMailbox, clock: FakeClock) -> None:
    """A disk that was full for a moment does not end the sweeps: what expires afterwards is ended by itself."""

    class Troubled:
        def __init__(self) -> None:
            self.has_failed = False
            self.has_swept = asyncio.Event()

        async def sweep(self) -> int:
            if not self.has_failed:
                self.has_failed = True
                raise Refusal(Code.STORAGE_FULL, "the disk is full; nothing was written")
            done = await file.sweep()
            self.has_swept.set()
            return done

    await file.enqueue(message())
    clock.advance(86_400_000)
    tasks = TaskOwner("test")
    tasks.spawn(keep_swept(troubled := Troubled()), name="sweeper")
    await asyncio.wait_for(troubled.has_swept.wait(), 60)
    await tasks.close()


async def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Others can neither read the file nor its log."""
    async with FileMailbox.open(tmp_path / "mail.db") as mailbox:
        await mailbox.enqueue(message())
        assert modes(tmp_path) == {"mail.db": 0o600, "mail.db-shm": 0o600, "mail.db-wal": 0o600}


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.req("MBX-10")
async def test_a_blocking_mailbox_behaves_the_same(tmp_path: Path, clock: FakeClock) -> None:
    """Calls that run in the caller's thread give the same answers and refusals, and share the file with others."""
    async with (
        FileMailbox.open(tmp_path / "mail.db", clock=clock, blocking=True) as blocking,
        FileMailbox.open(tmp_path / "mail.db", clock=clock) as other,
    ):
        await asyncio.gather(*(box.enqueue(message(f"m{n}")) for n in range(10) for box in (blocking, other)))
        got = await blocking.dequeue_many("bob", 100)
        assert [each.msg_id for each in got] == [f"m{n}" for n in range(10)]
        with pytest.raises(Refusal) as refused:
            await blocking.ack_many("bob", ["m1", "m99"])
        assert refused.value.code is Code.NOT_FOUND
        await blocking.ack_many("bob", ["m1", "m2"])
        assert len(await other.peek("bob")) == 8
    with pytest.raises(Refusal) as refused:
        await blocking.peek("bob")
    assert refused.value.code is Code.UNAVAILABLE


@pytest.mark.req("MBX-9")
async def test_a_file_that_somebody_makes_just_now_is_opened_when_it_is_made(tmp_path: Path) -> None:
    """SQLite lets nobody wait who makes a new file at the same time as another; whoever opens a mailbox waits."""
    path = tmp_path / "mail.db"
    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.ensure_future(asyncio.to_thread(FileMailbox.open, path))
        done, _ = await asyncio.wait([opening], timeout=0.3)
        assert not done
        other.execute("ROLLBACK")
        async with await opening as mailbox:
            assert (await mailbox.enqueue(message("m1"))).queued
