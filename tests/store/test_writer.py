"""The writer: whoever waits shares a commit, and nobody pays for another's mistake."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.database import Database
from agentpost.store.deliveries import apply_changes
from agentpost.store.home import Home
from agentpost.store.jobs import LONG
from agentpost.store.queries import SQL
from agentpost.store.transaction import Transaction
from agentpost.store.values import Appended
from agentpost.store.writer import Writer
from agentpost.testing import a_message
from tests.store.building import NODE, a_change, deliveries_of, open_sqlite, refused


@pytest.fixture
async def database(home: Path) -> AsyncIterator[Database]:
    await open_sqlite(home).close()
    database = Database.open_writer(Home(home).database)
    yield database
    database.close()


@pytest.fixture
def writer(database: Database) -> Iterator[Writer]:
    writer = Writer(database, transaction=Transaction(database))
    yield writer
    writer.stop()


@pytest.fixture
def database_file(home: Path) -> Path:
    async def make() -> None:
        await open_sqlite(home).close()

    asyncio.run(make())
    return Home(home).database


@contextmanager
def held(writer: Writer) -> Iterator[None]:
    """Keeps the writer busy, so that everything submitted meanwhile is in its next transaction."""
    busy, go_on = threading.Event(), threading.Event()

    def wait(_: Transaction) -> None:
        busy.set()
        go_on.wait()

    writer.submit(wait)
    busy.wait()
    try:
        yield
    finally:
        go_on.set()


def seqs(database: Database) -> list[int]:
    return [row[0] for row in database.rows("SELECT seq FROM outbox ORDER BY seq")]


async def outcome(future: "asyncio.Future[Appended]") -> int | Code | type[Exception]:
    """The seq that an append got, or why it got none."""
    try:
        return (await future).first_seq
    except Refusal as refusal:
        return refusal.code
    except OverflowError as error:
        return type(error)


def append(writer: Writer, number: int, *, node_id: str = NODE) -> "asyncio.Future[Appended]":
    return writer.submit(lambda tx: tx.append([a_message(number, source_node_id=node_id)]))


@pytest.mark.req("ENV-2", "PIPE-1")
async def test_a_refused_append_in_a_shared_commit_costs_nobody_a_seq(writer: Writer, database: Database) -> None:
    """Four callers share a commit, one of them is refused: the others have 1, 2 and 3."""
    with held(writer):
        futures = [append(writer, 1), append(writer, 2, node_id="node-z"), append(writer, 3), append(writer, 4)]
    assert [await outcome(future) for future in futures] == [1, Code.FOREIGN_SOURCE, 2, 3]
    assert seqs(database) == [1, 2, 3]


@pytest.mark.req("ENV-2")
async def test_work_that_fails_half_way_is_undone_alone(writer: Writer, database: Database) -> None:
    """A caller whose work had begun to write is taken out of the shared commit, and leaves nothing in it."""

    def spoiled(tx: Transaction) -> Appended:
        tx.append([a_message(2)])
        raise Refusal(Code.CONFLICT, "changed my mind")

    with held(writer):
        futures = [append(writer, 1), writer.submit(spoiled), append(writer, 3)]
    assert [await outcome(future) for future in futures] == [1, Code.CONFLICT, 2]
    assert seqs(database) == [1, 2]


@pytest.mark.req("ENV-2")
async def test_a_broken_constraint_is_the_fault_of_one(writer: Writer, database: Database) -> None:
    """What the schema refuses only at the commit is refused to its caller alone, as a conflict."""
    event = a_message(1)
    deliveries = deliveries_of(event, "bob")
    await writer.submit(lambda tx: tx.append([event], deliveries))
    with held(writer):
        futures = [append(writer, 2), writer.submit(lambda tx: tx.append([event], deliveries)), append(writer, 3)]
    assert [await outcome(future) for future in futures] == [2, Code.CONFLICT, 3]
    assert seqs(database) == [1, 2, 3]


async def test_a_broken_constraint_within_the_work_is_a_conflict_too(writer: Writer, database: Database) -> None:
    """It makes no difference to the caller whether the schema speaks up at once or at the commit."""
    event = a_message(1)
    deliveries = deliveries_of(event, "bob")
    await writer.submit(lambda tx: tx.append([event], deliveries))

    def twice(tx: Transaction) -> Appended:
        appended = tx.append([event], deliveries)
        tx.flush()
        return appended

    assert await outcome(writer.submit(twice)) is Code.CONFLICT
    assert seqs(database) == [1]


@pytest.mark.req("ENV-2")
async def test_a_value_that_sqlite_cannot_hold_is_the_fault_of_one(writer: Writer, database: Database) -> None:
    """A number beyond 64 bits, found only when the rows are written, fails its own caller and no other."""
    event = a_message(2)
    too_large = [replace(delivery, due_at_ms=1 << 70) for delivery in deliveries_of(event, "bob")]
    with held(writer):
        futures = [append(writer, 1), writer.submit(lambda tx: tx.append([event], too_large)), append(writer, 3)]
    assert [await outcome(future) for future in futures] == [1, OverflowError, 2]
    assert seqs(database) == [1, 2]


async def test_who_reads_another_ones_bad_rows_is_not_blamed(writer: Writer, database: Database) -> None:
    """The rows of a shared commit are written when somebody has to see them; that one is not the one at fault."""
    event, other = a_message(1), a_message(2)
    await writer.submit(lambda tx: tx.append([event], deliveries_of(event, "bob")))
    await writer.submit(lambda tx: tx.append([other], deliveries_of(other, "bob")))

    def move(tx: Transaction) -> Appended:
        apply_changes(tx, [a_change(other, DeliverySignal.ACCEPTED)], {})
        return tx.append([a_message(3)])

    with held(writer):
        futures = [writer.submit(lambda tx: tx.append([event], deliveries_of(event, "bob"))), writer.submit(move)]
    assert [await outcome(future) for future in futures] == [Code.CONFLICT, 3]
    assert database.row("SELECT state FROM deliveries WHERE event_id = ?", (other.event_id,)) == ("Accepted",)


@pytest.mark.req("PIPE-3")
async def test_a_cancelled_caller_does_not_harm_the_writer(writer: Writer, database: Database) -> None:
    """Who stops waiting may or may not have written; everybody else gets their answer."""
    with held(writer):
        first, cancelled, last = append(writer, 1), append(writer, 2), append(writer, 3)
        cancelled.cancel()
    assert [await outcome(first), await outcome(last)] == [1, 3]
    assert cancelled.cancelled()
    assert seqs(database) == [1, 2, 3]


async def test_stopping_finishes_what_waits_and_refuses_what_comes(writer: Writer, database: Database) -> None:
    """Nothing that was submitted before the stop is lost, nothing after it is left without an answer."""
    with held(writer):
        futures = [append(writer, number) for number in range(1, 6)]
        stopping = asyncio.get_running_loop().run_in_executor(None, writer.stop)
    await stopping
    assert [await outcome(future) for future in futures] == [1, 2, 3, 4, 5]
    assert await outcome(append(writer, 6)) is Code.UNAVAILABLE
    assert seqs(database) == [1, 2, 3, 4, 5]


async def test_the_log_is_moved_into_the_database_as_it_grows(writer: Writer, database: Database) -> None:
    """The log of a busy gateway does not grow for ever."""
    for number in range(1, 12):
        event = a_message(number, body="x" * 500_000)
        await writer.submit(lambda tx, event=event: tx.append([event]))
    await append(writer, 12)
    assert database.log_pages() < 1_000
    assert database.value(SQL.count_outbox) == 12


async def test_a_refused_job_is_forgotten(writer: Writer) -> None:
    """What a caller handed in is let go of after a refusal; a gateway that refuses much does not grow."""

    class Load:
        pass

    load = Load()
    seen = weakref.ref(load)

    def refuse(_: Transaction, load: Load = load) -> None:
        raise Refusal(Code.CONFLICT, f"no: {load}")

    with refused(Code.CONFLICT):
        await writer.submit(refuse)
    await append(writer, 1)
    del load, refuse
    gc.collect()
    assert seen() is None


@pytest.mark.req("PIPE-3")
async def test_a_little_work_is_done_on_the_loop_and_long_work_in_a_thread(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a thread to be woken for one event; what may take long does not hold up the loop."""
    monkeypatch.setattr("agentpost.store.writer._QUICK_SECONDS", 3600.0)
    loop_thread = threading.get_ident()
    little = writer.submit(lambda _: threading.get_ident(), size=1)
    assert await little == loop_thread
    assert await writer.submit(lambda _: threading.get_ident()) != loop_thread


@pytest.mark.req("ENV-2")
async def test_what_is_asked_for_is_done_in_that_order_wherever_it_is_done(writer: Writer) -> None:
    """Little work that follows long work waits for it, and long work for the little before it."""
    done: list[int] = []
    sizes = [1, 1, LONG, 1, 1, LONG, LONG, 1]
    asked = [writer.submit(lambda _, at=at: done.append(at), size=size) for at, size in enumerate(sizes)]
    await asyncio.gather(*asked)
    assert done == list(range(len(sizes)))


@pytest.mark.req("PIPE-3")
async def test_on_a_slow_disk_the_loop_is_not_held_up(writer: Writer) -> None:
    """After a commit that took long, the next is not the loop's."""
    await writer.submit(lambda _: time.sleep(0.5), size=1)
    assert await writer.submit(lambda _: threading.get_ident(), size=1) != threading.get_ident()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk is too slow for the loop."""
    monkeypatch.setattr("agentpost.store.writer._QUICK_SECONDS", 3600.0)


@pytest.mark.usefixtures("quick")
async def test_a_batch_of_one_caller_is_the_loops_and_a_crowd_of_callers_is_the_threads(writer: Writer) -> None:
    """Who asks for a batch has nothing else to do; of many callers some can run while others wait for the disk."""
    loop_thread = threading.get_ident()
    assert await writer.submit(lambda _: threading.get_ident(), size=511) == loop_thread
    assert await writer.submit(lambda _: threading.get_ident(), size=512) != loop_thread
    crowd = [writer.submit(lambda _: threading.get_ident(), size=1) for _ in range(128)]
    assert loop_thread not in await asyncio.gather(*crowd)


@pytest.mark.usefixtures("quick")
@pytest.mark.req("ACK-3")
async def test_what_was_promised_is_found_by_every_read(home: Path) -> None:
    """Somebody heard of an ACK before it is durable here: whoever then asks is told no less."""
    store = open_sqlite(home)
    event = a_message(1)
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    assert store.promises(1)
    asked = store.append([], changes=[a_change(event, DeliverySignal.ACCEPTED)])
    (delivery,) = store.deliveries_of(event.event_id)
    assert delivery.state is DeliveryState.ACCEPTED
    await asked
    await store.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.req("ACK-3")
async def test_a_promise_is_kept_before_a_crowd_goes_to_the_thread(writer: Writer) -> None:
    """What was promised is written by the loop, whatever is asked for after it and before it."""
    done: list[tuple[int, bool]] = []

    def note(at: int) -> None:
        done.append((at, threading.get_ident() == loop_thread))

    loop_thread = threading.get_ident()
    before = writer.submit(lambda _: note(0), size=100)
    assert writer.promise(20)
    promised = writer.submit(lambda _: note(1), size=20)
    after = [writer.submit(lambda _, at=at: note(at), size=LONG) for at in (2, 3)]
    assert done == [(0, True), (1, True)]
    await asyncio.gather(before, promised, *after)
    assert done[2:] == [(2, False), (3, False)]


@pytest.mark.usefixtures("quick")
async def test_who_was_told_early_shares_the_commit_with_what_it_was_told(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hears of a promise, and asks for something at once, costs no sync of its own."""
    commits: list[None] = []
    commit = Transaction.commit

    def counted(transaction: Transaction) -> None:
        commits.append(None)
        commit(transaction)

    async def ask(told: "asyncio.Future[None]") -> None:
        await told
        await asyncio.sleep(0)
        await writer.submit(lambda _: None, size=1)

    monkeypatch.setattr(Transaction, "commit", counted)
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asking = asyncio.gather(ask(told))
    await asyncio.sleep(0)
    assert writer.promise(1)
    told.set_result(None)
    await writer.submit(lambda _: None, size=1)
    await asking
    assert len(commits) == 1


@pytest.mark.usefixtures("quick")
async def test_nothing_is_promised_that_the_thread_would_have_to_write(writer: Writer) -> None:
    """Much work, and work behind a thread that is busy: those who want to hear of it wait until it is durable."""
    assert not writer.promise(LONG)
    with held(writer):
        assert not writer.promise(1)


@pytest.mark.usefixtures("quick")
@pytest.mark.req("ACK-3")
@pytest.mark.parametrize("waiting", [126, 127])
async def test_nothing_is_promised_to_who_would_make_a_crowd(writer: Writer, waiting: int) -> None:
    """With one caller more the thread gets what is asked for next: that is promised to nobody."""
    loop_thread = threading.get_ident()
    before = [writer.submit(lambda _: None, size=1) for _ in range(waiting)]
    is_promised = writer.promise(1)
    written_by = await writer.submit(lambda _: threading.get_ident(), size=1)
    assert is_promised == (written_by == loop_thread)
    await asyncio.gather(*before)


async def test_nothing_is_promised_on_a_slow_disk(writer: Writer) -> None:
    """Where a commit takes long the loop does not write, so reads could not wait for it."""
    await writer.submit(lambda _: time.sleep(0.5), size=1)
    assert not writer.promise(1)


@pytest.mark.req("PIPE-3")
def test_a_writer_serves_the_next_loop_after_one_that_was_closed_in_the_middle(database_file: Path) -> None:
    """What a closed loop left behind holds up nobody."""
    database = Database.open_writer(database_file)
    writer = Writer(database, transaction=Transaction(database))

    async def leave_behind() -> None:
        with held(writer):
            append(writer, 1)
            writer.submit(lambda _: None, size=1)

    async def use() -> int | Code | type[Exception]:
        assert await writer.submit(lambda _: 7, size=1) == 7
        return await outcome(append(writer, 2))

    try:
        asyncio.run(leave_behind())
        assert isinstance(asyncio.run(asyncio.wait_for(use(), 30)), int)
    finally:
        writer.stop()
        database.close()
