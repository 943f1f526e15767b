"""Checking a home and backing it up, beside a gateway that runs."""

import asyncio
import stat
from pathlib import Path

import apsw
import pytest

from agentpost.protocol.codec import encode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import next_chain
from agentpost.store import integrity
from agentpost.store.home import Home
from agentpost.store.integrity import back_up, check_home
from agentpost.store.queries import migrations
from agentpost.store.sqlite import SqliteStore
from agentpost.testing import START_MS, a_message
from tests.store.building import (
    EPOCH,
    NODE,
    a_batch,
    a_settlement,
    a_subscriber,
    append_messages,
    from_peer,
    incoming,
    open_sqlite,
    refused,
    to_nodes,
)


@pytest.fixture
async def filled(home: Path) -> Path:
    """A home with ten events in its outbox and three in its inbox, closed."""
    store = open_sqlite(home)
    await append_messages(store, 5)
    await store.accept(a_batch(*(incoming(from_peer(number)) for number in (1, 2, 3))))
    await store.settle(a_settlement(from_peer(1)))
    await store.settle(a_settlement(from_peer(2)))
    await store.close()
    return home


def tamper(home: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    """What somebody with the file and SQL could do."""
    connection = apsw.Connection(str(Home(home).database))
    connection.execute("DROP TRIGGER outbox_is_append_only")
    for sql, values in statements:
        connection.execute(sql, values)
    connection.close()


def findings(home: Path) -> tuple[str, ...]:
    """What a check finds, be it that the file cannot even be read."""
    try:
        return check_home(home).problems
    except Refusal as refusal:
        return (refusal.code.value,)


def body_at(home: Path, seq: int) -> bytes:
    connection = apsw.Connection(str(Home(home).database))
    body = connection.execute("SELECT body FROM outbox WHERE seq = ?", (seq,)).fetchone()[0]
    connection.close()
    return body


async def test_a_whole_home_has_no_problems(filled: Path) -> None:
    """A check tells whose home it is, what is in it, and that it is whole."""
    steps: list[tuple[int, int]] = []
    report = check_home(filled, progress=lambda done, total: steps.append((done, total)))
    assert report.problems == ()
    assert (report.node_id, report.epoch, report.schema_version) == (NODE, EPOCH, len(migrations()))
    assert (report.outbox_events, report.outbox_first_seq, report.outbox_last_seq) == (10, 1, 10)
    assert report.inbox_events == 3
    assert steps[-1] == (13, 13)
    assert report.remedies == ()


async def test_an_empty_home_is_whole(home: Path) -> None:
    """A home in which nothing happened yet has nothing wrong with it."""
    await open_sqlite(home).close()
    report = check_home(home)
    assert (report.problems, report.outbox_events, report.outbox_first_seq, report.outbox_last_seq) == ((), 0, 0, 0)


async def test_a_pruned_home_is_whole(filled: Path) -> None:
    """After a compaction the check begins where the outbox does."""
    store = open_sqlite(filled)
    await store.note_subscriber(a_subscriber(6))
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))
    await store.close()
    report = check_home(filled)
    assert report.problems == ()
    assert (report.outbox_events, report.outbox_first_seq, report.outbox_last_seq) == (4, 7, 10)


async def test_a_flipped_byte_is_found(filled: Path) -> None:
    """One altered byte in one event breaks the chain at its place, and only there."""
    body = bytearray(body_at(filled, 4))
    body[body.index(b"ada")] ^= 1
    tamper(filled, ("UPDATE outbox SET body = ? WHERE seq = 4", (bytes(body),)))
    assert check_home(filled).problems == ("outbox: the hash chain breaks at seq 4",)


@pytest.fixture
async def with_streams(home: Path) -> Path:
    """A home with four events for two readers in its outbox, of which the first was pruned, closed."""
    store = open_sqlite(home)
    await store.append([to_nodes(a_message(number), "node-b", "node-c") for number in range(1, 5)])
    await store.note_subscriber(a_subscriber(1))
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))
    await store.close()
    return home


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("UPDATE streams SET chain = zeroblob(32) WHERE seq = 3", "the hash chain breaks at seq 3"),
        ("DELETE FROM streams WHERE seq = 4 AND consumer_node_id = 'node-c'", "stream of node-c: seq 4 is missing"),
        ("INSERT INTO streams VALUES ('node-z', 3, zeroblob(32))", "streams: 1 rows have no event in the outbox"),
        ("DELETE FROM stream_floors", "stream of node-b: the hash chain breaks at seq 2"),
    ],
)
@pytest.mark.req("PIPE-9")
async def test_a_stream_that_does_not_fit_the_outbox_is_found(with_streams: Path, sql: str, problem: str) -> None:
    """Each reader's stream has the events that name it and no others, under the chain that they have."""
    assert check_home(with_streams).problems == ()
    tamper(with_streams, (sql, ()))
    assert any(problem in found for found in check_home(with_streams).problems)


async def test_bytes_that_are_no_event_are_found(filled: Path) -> None:
    """An event that cannot be read is named with its place."""
    tamper(filled, ("UPDATE outbox SET body = ? WHERE seq = 4", (b"\xc1",)))
    problems = check_home(filled).problems
    assert "outbox: the hash chain breaks at seq 4" in problems
    assert any(problem.startswith("outbox: seq 4 cannot be read") for problem in problems)


@pytest.mark.req("ENV-2")
async def test_a_missing_event_is_found(filled: Path) -> None:
    """A hole in the sequence is named, and so is the chain that breaks over it."""
    tamper(filled, ("DELETE FROM outbox WHERE seq IN (4, 5)", ()))
    problems = check_home(filled).problems
    assert "outbox: seq 4 to 5 are missing" in problems
    assert "outbox: the hash chain breaks at seq 6" in problems


@pytest.mark.req("PIPE-1", "ENV-8")
async def test_a_foreign_event_is_found_even_with_its_chain_made_right(filled: Path) -> None:
    """An event of another node does not pass in an outbox, even where the hashes fit."""
    connection = apsw.Connection(str(Home(filled).database))
    chain = connection.execute("SELECT chain FROM outbox WHERE seq = 10").fetchone()[0]
    connection.close()
    body = encode_event(a_message(99, source_node_id="node-z", seq=11))
    values = (11, a_message(99).event_id, next_chain(chain, body), body)
    tamper(filled, ("INSERT INTO outbox (seq, event_id, chain, body) VALUES (?, ?, ?, ?)", values))
    assert check_home(filled).problems == ("outbox: seq 11 holds event 11 of node-z",)


async def test_an_open_entry_without_its_event_is_found(filled: Path) -> None:
    """An agent could never be given what the inbox no longer has."""
    tamper(filled, ("DELETE FROM inbox WHERE source_seq = 3", ()))
    event_id = from_peer(3).event_id
    assert check_home(filled).problems == (f"reference: ledger: {event_id} for ada is open and its event is gone",)


async def test_a_damaged_file_is_found(filled: Path) -> None:
    """Damage of the file itself is a problem or a refusal, never a clean report."""
    database = Home(filled).database
    content = bytearray(database.read_bytes())
    page = 4096 * 4
    content[page : page + 2048] = b"\xff" * 2048
    database.write_bytes(content)
    assert findings(filled)


async def test_a_check_beside_a_running_gateway_is_not_misled_by_a_compaction(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are pruned while the check runs do not look missing."""
    monkeypatch.setattr(integrity, "_ROWS_A_STEP", 2)
    store = open_sqlite(filled)
    await store.note_subscriber(a_subscriber(10))
    loop = asyncio.get_running_loop()
    pruned: list[int] = []

    async def compact() -> int:
        return (await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))).outbox_events

    def prune(_done: int, _total: int) -> None:
        pruned.append(asyncio.run_coroutine_threadsafe(compact(), loop).result())

    report = await asyncio.to_thread(check_home, filled, progress=prune)
    assert pruned[0] == 10
    assert (report.problems, report.outbox_events) == ((), 10)
    await store.close()


@pytest.mark.parametrize(("version", "code"), [(99, Code.SCHEMA_TOO_NEW), (0, Code.CONFLICT)])
async def test_a_home_of_another_version_is_not_checked(filled: Path, version: int, code: Code) -> None:
    """A check knows one schema; of any other it says so."""
    tamper(filled, (f"PRAGMA user_version = {version}", ()))
    with refused(code):
        check_home(filled)


def test_there_must_be_something_to_check(tmp_path: Path) -> None:
    """A directory without a home is not one, and stays as it was."""
    for path in (tmp_path, tmp_path / "nowhere"):
        with refused(Code.NOT_FOUND):
            check_home(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("PIPE-3")
async def test_a_backup_made_while_writes_go_on_is_consistent(
    home: Path, tmp_path: Path, sqlite_store: SqliteStore
) -> None:
    """The copy is whole, and has every event that was acknowledged before it began."""
    await append_messages(sqlite_store, 300)
    done = asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            await sqlite_store.append([a_message(number, source_agent_id=f"agent-{writer}")])

    async with asyncio.TaskGroup() as group:
        for writer in range(8):
            group.create_task(write(writer), name=f"writer {writer}")
        for copy in range(5):
            await sqlite_store.append([a_message(1_000 + copy)])
            acknowledged = sqlite_store.head().seq
            target = tmp_path / f"backup-{copy}.db"
            size = await asyncio.to_thread(back_up, home, target)
            report = await asyncio.to_thread(check_home, target)
            assert report.problems == ()
            assert report.outbox_last_seq >= acknowledged
            assert report.outbox_events == report.outbox_last_seq
            assert size == target.stat().st_size
        done.set()
    assert check_home(home).problems == ()


async def test_a_backup_opens_as_a_home(filled: Path, tmp_path: Path) -> None:
    """A copy put in the place of the database is the home as it was."""
    restored = tmp_path / "restored"
    restored.mkdir(mode=0o700)
    back_up(filled, Home(restored).database)
    store = open_sqlite(restored)
    assert (store.node_id, store.epoch, store.head().seq) == (NODE, EPOCH, 10)
    await append_messages(store, 1, first=6)
    await store.close()
    assert check_home(restored).problems == ()


async def test_a_backup_never_overwrites(filled: Path, tmp_path: Path) -> None:
    """A file that is there stays as it is."""
    target = tmp_path / "backup.db"
    target.write_bytes(b"the only copy of something")
    with refused(Code.CONFLICT):
        back_up(filled, target)
    assert target.read_bytes() == b"the only copy of something"


async def test_a_backup_is_its_owners_alone_and_leaves_no_draft(filled: Path, tmp_path: Path) -> None:
    """Nobody else can read the copy, and what an interrupted backup left behind is cleared away."""
    (tmp_path / "backup.db.part").write_bytes(b"left over from a crash")
    target = tmp_path / "backup.db"
    back_up(filled, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert not (tmp_path / "backup.db.part").exists()


async def test_a_backup_needs_a_place_and_a_home(filled: Path, tmp_path: Path) -> None:
    """A directory that does not exist, or a home that does not, is told as such."""
    with refused(Code.NOT_FOUND):
        back_up(filled, tmp_path / "nowhere" / "backup.db")
    with refused(Code.NOT_FOUND):
        back_up(tmp_path / "nowhere", tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()
