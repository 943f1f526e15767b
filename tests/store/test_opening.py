"""Opening and closing the store on a disk: what was there is there, and what must not be touched is not."""

import asyncio
from pathlib import Path

import apsw
import pytest

from agentpost.protocol.errors import Code
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.database import Database, check_sqlite_version
from agentpost.store.home import Home
from agentpost.store.integrity import check_home
from agentpost.store.interface import Store
from agentpost.store.queries import migrations
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import AuditEntry, Incident, LocalAgent, MirrorBatch
from agentpost.testing import START_MS, a_message, an_event_id
from tests.store.building import (
    EPOCH,
    NODE,
    a_batch,
    a_change,
    a_settlement,
    a_subscriber,
    append_messages,
    deliveries_of,
    from_peer,
    incoming,
    open_sqlite,
    outbox_seqs,
    refused,
    to_nodes,
    visible,
)

A_MIRROR_BATCH = MirrorBatch(
    source_node_id="node-b", epoch="any", after_seq=0, through_seq=0, events=(), head=b"", signature=b"", at_ms=1
)


def execute(home: Path, sql: str) -> None:
    connection = apsw.Connection(str(Home(home).database))
    connection.execute(sql)
    connection.close()


@pytest.mark.req("PIPE-3", "CUR-2")
async def test_a_store_opened_again_has_everything(home: Path) -> None:
    """Outbox, streams, deliveries, inbox, ledger, cursors and all the rest are after a restart what they were."""
    events = [to_nodes(a_message(1), "node-b", NODE), a_message(2), from_peer(1), from_peer(2)]
    store = open_sqlite(home)
    await store.append(events[:2], deliveries=deliveries_of(events[0], "bob", "cleo", due_at_ms=START_MS))
    await store.append([], changes=[a_change(events[0], DeliverySignal.ACCEPTED, due_at_ms=START_MS + 5)])
    await store.accept(a_batch(incoming(events[2]), incoming(events[3], "ada", "eve")))
    await store.engage(events[2].event_id, "ada", at_ms=START_MS)
    await store.mark_read(events[2].event_id, "ada", at_ms=START_MS)
    await store.settle(a_settlement(events[3]))
    await store.put_agent(LocalAgent(agent_id="ada", runtime="pull", created_at_ms=1))
    await store.raise_incident(Incident(kind="gap", subject="node-b", at_ms=1))
    await store.note_subscriber(a_subscriber(1))
    await store.record_audit([AuditEntry(at_ms=1, actor="ada", action="send")])
    before = visible(store, events=events)
    await store.close()

    store = open_sqlite(home)
    assert visible(store, events=events) == before
    await store.close()


async def test_the_epoch_is_that_of_the_first_opening(home: Path) -> None:
    """A life of the outbox goes on under the name it began with."""
    await open_sqlite(home).close()
    store = open_sqlite(home, epoch="another life")
    assert store.epoch == EPOCH
    await store.close()


@pytest.mark.req("PIPE-1")
async def test_the_home_of_another_node_is_refused(home: Path) -> None:
    """A home belongs to the node that made it."""
    await open_sqlite(home).close()
    with refused(Code.CONFLICT) as caught:
        open_sqlite(home, node_id="node-z")
    assert "node-a" in caught.value.message


async def test_a_newer_schema_is_refused_and_the_file_untouched(home: Path) -> None:
    """An older program does not open what a newer one wrote, and changes no byte of it."""
    store = open_sqlite(home)
    await append_messages(store, 3)
    await store.close()
    execute(home, f"PRAGMA user_version = {len(migrations()) + 1}")
    before = Home(home).database.read_bytes()
    with refused(Code.SCHEMA_TOO_NEW):
        open_sqlite(home)
    assert Home(home).database.read_bytes() == before


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA application_id = 1234; CREATE TABLE songs (title TEXT)",
        "CREATE TABLE songs (title TEXT)",
    ],
)
async def test_a_database_of_another_program_is_refused_and_untouched(home: Path, sql: str) -> None:
    """Whether it says whose it is or not, a database that is not ours is left alone."""
    execute(home, sql)
    before = Home(home).database.read_bytes()
    with refused(Code.STORAGE_CORRUPT) as caught:
        open_sqlite(home)
    assert "another program" in caught.value.message
    assert Home(home).database.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused_and_untouched(home: Path) -> None:
    """Something else under the name of the database is told as damage."""
    Home(home).database.write_bytes(b"this is a letter, not a database. " * 100)
    with refused(Code.STORAGE_CORRUPT):
        open_sqlite(home)
    assert Home(home).database.read_bytes().startswith(b"this is a letter")


async def test_an_empty_file_becomes_a_home(home: Path) -> None:
    """A database that was made and never filled, as after a crash at the first start, is a new one."""
    Home(home).database.touch(mode=0o600)
    store = open_sqlite(home)
    await append_messages(store, 1)
    await store.close()


async def test_a_database_without_its_owner_is_completed(home: Path) -> None:
    """A crash between the schema and the name of the node leaves a home that can be claimed."""
    database = Database.open_writer(Home(home).database)
    database.migrate()
    database.close()
    store = open_sqlite(home)
    assert store.node_id == "node-a"
    await store.close()


@pytest.mark.parametrize("version", range(len(migrations())))
async def test_a_home_of_any_earlier_version_is_upgraded_at_once(home: Path, version: int) -> None:
    """Whatever steps are missing, the home is whole afterwards, with the schema that a new one has."""
    database = Database.open_writer(Home(home).database)
    database.migrate(migrations()[:version])
    database.close()
    store = open_sqlite(home)
    await append_messages(store, 2)
    await store.close()
    new = open_sqlite(home.with_name("new"))
    await new.close()
    assert schema_of(home) == schema_of(home.with_name("new"))
    assert check_home(home).problems == ()


async def test_an_upgrade_that_fails_changes_nothing(home: Path) -> None:
    """A step that cannot be done takes those before it back: the version that wrote the file can still open it."""
    store = open_sqlite(home)
    await append_messages(store, 2)
    await store.close()
    before = schema_of(home)
    database = Database.open_writer(Home(home).database)
    steps = [*migrations(), "CREATE TABLE plans (name TEXT)", "CREATE TABLE plans (name TEXT)"]
    with pytest.raises(apsw.SQLError, match="already exists"):
        database.migrate(steps)
    assert database.schema_version() == len(migrations())
    database.close()
    assert schema_of(home) == before
    again = open_sqlite(home)
    assert outbox_seqs(again) == [1, 2]
    await again.close()


def schema_of(home: Path) -> list[tuple[str, ...]]:
    connection = apsw.Connection(str(Home(home).database))
    found = list(connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"))
    connection.close()
    return found


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "2.8.17"])
def test_an_sqlite_that_can_lose_data_is_refused(version: str) -> None:
    """Versions with the WAL-reset bug are not used, and the message says what to install."""
    with refused(Code.UNAVAILABLE) as caught:
        check_sqlite_version(version)
    assert version in caught.value.message
    assert "apsw" in caught.value.message


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "4.0.0", apsw.sqlite_lib_version()])
def test_a_good_sqlite_is_used(version: str) -> None:
    """The version that fixed it, all later ones, and the one that is installed here."""
    check_sqlite_version(version)


@pytest.mark.req("PIPE-3")
async def test_every_commit_is_synced(home: Path) -> None:
    """The store runs in WAL mode with full syncs; only then does a commit survive a power loss."""
    store = open_sqlite(home)
    database = Database.open_writer(Home(home).database)
    assert database.value("PRAGMA journal_mode") == "wal"
    assert database.value("PRAGMA synchronous") == 2
    database.close()
    await store.close()


@pytest.mark.req("ENV-2", "PIPE-1")
async def test_the_database_itself_refuses_to_change_the_outbox(home: Path) -> None:
    """Even with SQL in hand an event is not changed."""
    store = open_sqlite(home)
    await append_messages(store, 2)
    with pytest.raises(apsw.ConstraintError, match="append-only"):
        execute(home, "UPDATE outbox SET body = x'00' WHERE seq = 1")
    await store.close()


@pytest.mark.req("PIPE-3")
async def test_closing_finishes_what_was_asked_before(home: Path) -> None:
    """Whoever appended before the close has their answer, and their events are there afterwards."""
    store = open_sqlite(home)
    appends = [store.append([a_message(number)]) for number in range(1, 51)]
    await store.close()
    assert [(await append).first_seq for append in appends] == list(range(1, 51))
    store = open_sqlite(home)
    assert outbox_seqs(store) == list(range(1, 51))
    await store.close()


async def test_a_closed_store_refuses_everything(store: Store) -> None:
    """After the close every call says that the store is closed, in whatever thread; a second close does nothing."""
    event = a_message(1)
    await store.append([event])
    await store.close()
    await store.close()
    writes = [
        lambda: store.append([a_message(2)]),
        lambda: store.append([], changes=[a_change(event, DeliverySignal.ACCEPTED)]),
        lambda: store.accept(a_batch(incoming(from_peer(1)))),
        lambda: store.engage(event.event_id, "ada", at_ms=1),
        lambda: store.postpone(event.event_id, "ada", due_at_ms=1, error=""),
        lambda: store.settle(a_settlement(from_peer(1))),
        lambda: store.reschedule([(event.event_id, "ada", 1)]),
        lambda: store.purge_deliveries([(event.event_id, "ada")]),
        lambda: store.mark_read(event.event_id, "ada", at_ms=1),
        lambda: store.restart_cursor("node-b", epoch="any", at_ms=1),
        lambda: store.prune_settled(before_ms=1),
        lambda: store.keep_mirror(A_MIRROR_BATCH),
        lambda: store.restart_mirror("node-b", epoch="any", at_ms=1),
        lambda: store.prune_mirror("node-b", through_seq=1),
        lambda: store.put_agent(LocalAgent(agent_id="ada", runtime="pull", created_at_ms=1)),
        lambda: store.remove_agent("ada"),
        lambda: store.raise_incident(Incident(kind="any", subject="any", at_ms=1)),
        lambda: store.close_incident("any", "any", at_ms=1),
        lambda: store.note_subscriber(a_subscriber(1)),
        lambda: store.compact(store.watermarks(now_ms=1, retention_events=1)),
        lambda: store.remember_once("nonce", "abc", now_ms=1, expires_at_ms=2),
        lambda: store.record_audit([]),
        lambda: store.put_chunk("0" * 64, 0, b""),
        lambda: store.complete_blob("0" * 64),
        lambda: store.drop_blob("0" * 64),
    ]
    for write in writes:
        with refused(Code.UNAVAILABLE):
            await write()
    reads = [
        store.head,
        lambda: store.read_outbox(0),
        lambda: store.read_stream("node-b", 0),
        lambda: store.find_event(event.event_id),
        lambda: store.deliveries_in([DeliveryState.EMITTED]),
        lambda: store.deliveries_by_corr(event.corr_id),
        store.count_deliveries,
        lambda: store.backlog_size("ada"),
        store.waiting_agents,
        store.engaged_entries,
        lambda: store.inbox_items("ada"),
        lambda: store.inbox_item(event.event_id, "ada"),
        lambda: store.inbox_by_corr(event.corr_id),
        store.mirrors,
        lambda: store.mirror_position("node-b"),
        lambda: store.read_mirror("node-b", "node-c", 0),
        lambda: store.read_whole_mirror("node-b", 0),
        store.local_agents,
        lambda: store.local_agent("ada"),
        store.incidents,
        lambda: store.deliveries_of(event.event_id),
        lambda: store.due_deliveries(1),
        store.next_due_at_ms,
        lambda: store.backlog("ada"),
        lambda: store.ledger_entry(an_event_id("any"), "ada"),
        store.inbox_position,
        store.quarantined,
        lambda: store.cursor("node-b"),
        store.cursors,
        store.subscribers,
        store.audit_log,
        lambda: store.blob("0" * 64),
        lambda: store.chunk("0" * 64, 0),
        lambda: store.missing_chunks("0" * 64),
    ]
    for read in reads:
        with refused(Code.UNAVAILABLE):
            read()
        with refused(Code.UNAVAILABLE):
            await asyncio.to_thread(read)


async def test_a_caller_that_gives_up_does_not_harm_the_others(sqlite_store: SqliteStore) -> None:
    """A cancelled append may or may not be there; the sequence has no hole and everybody else is answered."""
    appends = [sqlite_store.append([a_message(number)]) for number in range(1, 21)]
    for append in appends[::2]:
        append.cancel()
    seqs = [(await append).first_seq for append in appends[1::2]]
    assert seqs == sorted(seqs)
    last = (await sqlite_store.append([a_message(21)])).last_seq
    assert outbox_seqs(sqlite_store) == list(range(1, last + 1))


async def test_a_slice_read_during_a_compaction_has_no_hole(
    home: Path, sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long read that a compaction overtakes ends where the events do; it does not leap over what was pruned."""
    await append_messages(sqlite_store, 200)
    read = Database.rows

    def overtaken(self: Database, sql: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        rows = read(self, sql, values)
        execute(home, "DELETE FROM outbox WHERE seq <= 150")
        return rows

    monkeypatch.setattr(Database, "rows", overtaken)
    seqs = [stored.seq for stored in sqlite_store.read_outbox(0).events]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) < 150
