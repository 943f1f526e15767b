"""Rows that are gathered ahead of their transaction: written as they are if they fit what is there, else made anew."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.protocol.envelope import Event, MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database
from agentpost.store.home import Home
from agentpost.store.integrity import check_home
from agentpost.store.jobs import append_many
from agentpost.store.rows import Rows, UnknownAhead
from agentpost.store.transaction import Transaction
from agentpost.store.values import Appended
from agentpost.store.writer import Writer
from agentpost.testing import START_MS, a_message
from tests.store.building import NODE, PEER, an_offer, deliveries_of, open_sqlite

# More than are written on the loop at once, so that they are handed over in several parts.
CROWD = 600


async def make_home(home: Path) -> None:
    """With two streams that have begun: what is gathered ahead has to know where they end."""
    store = open_sqlite(home)
    await store.append([to_peers(10_000)])
    await store.close()


def to_peers(number: int, *, node_id: str = NODE) -> MessageEvent:
    return replace(a_message(number, source_node_id=node_id), to_nodes=(PEER, "node-c"))


class Opened:
    """A writer with its parts, and how often its transaction took rows that were gathered ahead."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.database = Database.open_writer(Home(home).database)
        self.transaction = Transaction(self.database)
        self.taken: list[bool] = []
        take = self.transaction.take

        def counted(ahead: Rows) -> bool:
            self.taken.append(take(ahead))
            return self.taken[-1]

        self.transaction.take = counted
        self.writer = Writer(self.database, transaction=self.transaction)

    def close(self) -> None:
        self.writer.stop()
        self.database.close()

    def append(self, number: int, *, node_id: str = NODE) -> "asyncio.Future[Appended]":
        event = to_peers(number, node_id=node_id)
        return self.writer.append((event,), deliveries_of(event, "bob"))

    def problems(self) -> list[str]:
        return list(check_home(self.home).problems)


@pytest.fixture
async def opened(home: Path) -> AsyncIterator[Opened]:
    await make_home(home)
    opened = Opened(home)
    # The first event of a stream is not gathered ahead: only the file knows where that ends.
    await opened.append(10_001)
    yield opened
    opened.close()


async def seq_or_code(future: "asyncio.Future[Appended]") -> int | Code:
    try:
        return (await future).first_seq
    except Refusal as refusal:
        return refusal.code


@pytest.mark.req("ENV-2", "PIPE-3")
async def test_a_crowd_is_gathered_ahead_and_has_its_seqs_without_a_hole(opened: Opened) -> None:
    """Six hundred callers at once, every seventh of them refused: the others stand one after the other, all chained."""
    futures = [opened.append(n, node_id="node-z" if n % 7 == 0 else NODE) for n in range(1, CROWD + 1)]
    found = [await seq_or_code(future) for future in futures]
    good = [answer for answer in found if isinstance(answer, int)]
    assert good == list(range(3, 3 + len(good)))
    assert [n for n, answer in enumerate(found, start=1) if answer is Code.FOREIGN_SOURCE] == list(
        range(7, CROWD + 1, 7)
    )
    assert opened.taken
    assert all(opened.taken)
    assert opened.problems() == []


@pytest.mark.req("ENV-2", "PIPE-3")
async def test_what_follows_a_failed_commit_is_made_anew(opened: Opened) -> None:
    """The disk was full for the first part of a crowd: the parts gathered behind it take the places that were free."""
    commit, begun, go_on = opened.transaction.commit, threading.Event(), threading.Event()

    def full_once() -> None:
        begun.set()
        go_on.wait()
        opened.transaction.commit = commit
        raise Refusal(Code.STORAGE_FULL, "the disk is full; nothing was written")

    opened.transaction.commit = full_once
    futures = [opened.append(n) for n in range(1, CROWD + 1)]
    await asyncio.to_thread(begun.wait)
    go_on.set()
    found = [await seq_or_code(future) for future in futures]
    refused = found.count(Code.STORAGE_FULL)
    assert 0 < refused < CROWD
    assert found[:refused] == [Code.STORAGE_FULL] * refused
    assert found[refused:] == list(range(3, 3 + CROWD - refused))
    assert False in opened.taken
    assert opened.problems() == []


@pytest.mark.req("ENV-2")
async def test_one_bad_row_among_those_gathered_ahead_is_the_fault_of_one(opened: Opened) -> None:
    """A delivery that is there already is refused to its caller, and the neighbours are written."""
    futures = [opened.append(10_001 if n == 5 else n) for n in range(1, CROWD + 1)]
    found = [await seq_or_code(future) for future in futures]
    assert found[4] is Code.CONFLICT
    assert [answer for answer in found if answer is not Code.CONFLICT] == list(range(3, 2 + CROWD))
    assert opened.problems() == []


@pytest.mark.req("ENV-2")
async def test_work_between_two_parts_of_a_crowd_keeps_its_place(opened: Opened) -> None:
    """What is asked for in the middle of a crowd is written between those who asked before and after it."""
    half = CROWD // 2
    before = [opened.append(n) for n in range(1, half + 1)]
    between = opened.writer.submit(lambda tx: tx.append([to_peers(half + 1)]))
    after = [opened.append(n) for n in range(half + 2, CROWD + 1)]
    found = [await seq_or_code(future) for future in [*before, between, *after]]
    assert found == list(range(3, 3 + CROWD))
    assert opened.problems() == []


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param(lambda: an_offer(1, by="ada", at_ms=START_MS), id="a task"),
        pytest.param(lambda: replace(a_message(1), to_nodes=("node-new",)), id="a new stream"),
    ],
)
async def test_what_only_the_file_knows_is_not_gathered_ahead(opened: Opened, unknown: Callable[[], Event]) -> None:
    """The state of a task, and the end of a stream that was not read yet, are looked up in the transaction."""
    with pytest.raises(UnknownAhead):
        opened.transaction.ahead().append((unknown(),), ())
    answers = append_many(opened.transaction, [((unknown(),), ())])
    assert answers == [Appended(first_seq=3, last_seq=3)]
    opened.transaction.rollback()
