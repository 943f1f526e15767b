"""Bits that change on the disk: a check notices each of them, says what it is part of, and what can be done."""

import asyncio
import random
from pathlib import Path

import apsw
import pytest

from agentpost.protocol.codec import encode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import OutboxHead, StreamMark, encode_head, next_chain
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.store import writer
from agentpost.store.blobs import seal_blob
from agentpost.store.home import Home
from agentpost.store.integrity import back_up, check_home, drop_damaged_payloads
from agentpost.store.sqlite import SqliteStore
from agentpost.store.transaction import Transaction
from agentpost.store.values import CHAIN_START, MirrorBatch, MirrorEvent
from agentpost.testing import START_MS, a_message
from tests.faults.words import message_naming
from tests.store.building import (
    PEER,
    PEER_EPOCH,
    a_batch,
    a_change,
    a_settlement,
    a_subscriber,
    an_offer,
    append_messages,
    deliveries_of,
    from_peer,
    incoming,
    open_sqlite,
    to_nodes,
)

KEY = b"k" * 32
SEALED = seal_blob(random.Random(1).randbytes(700_000), KEY)


async def fill(store: SqliteStore) -> None:
    """Something in every table."""
    await append_messages(store, 30)
    await store.append([to_nodes(a_message(100 + number), PEER, "node-c") for number in range(10)])
    dead = to_nodes(a_message(200), PEER)
    await store.append([dead], deliveries=deliveries_of(dead, "bob"))
    await store.append([], changes=[a_change(dead, DeliverySignal.EXPIRED)])
    await store.append([an_offer(1, by="ada", at_ms=START_MS)])
    await store.note_subscriber(a_subscriber(41))
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))
    await append_messages(store, 30, first=300)
    await store.append([to_nodes(a_message(400 + number), PEER, "node-c") for number in range(10)])
    named = message_naming(SEALED, 50, node=PEER, seq=50)
    await store.accept(a_batch(*(incoming(from_peer(number)) for number in range(1, 40)), incoming(named)))
    await store.settle(a_settlement(from_peer(1)))
    await store.begin_blob(SEALED.blob, at_ms=START_MS)
    for part, data in enumerate(SEALED.chunks):
        await store.put_chunk(SEALED.blob.sha256, part, data)
    await store.complete_blob(SEALED.blob.sha256)
    await store.keep_mirror(a_mirror())
    await store._writer.submit(fill_the_rest)  # pyright: ignore[reportPrivateUsage] - a row in each other table


def a_mirror() -> MirrorBatch:
    chain = CHAIN_START
    events: list[MirrorEvent] = []
    for seq in range(1, 21):
        raw = encode_event(to_nodes(a_message(seq, seq=seq, source_node_id=PEER), "node-c"))
        chain = next_chain(chain, raw)
        events.append(MirrorEvent(seq=seq, chain=chain, raw=raw, to_nodes=("node-c",)))
    head = OutboxHead(
        node_id=PEER, epoch=PEER_EPOCH, seq=20, chain=chain, streams={"node-c": StreamMark(seq=20, chain=chain)}
    )
    return MirrorBatch(
        source_node_id=PEER,
        epoch=PEER_EPOCH,
        after_seq=0,
        through_seq=20,
        events=tuple(events),
        head=encode_head(head),
        signature=b"signature",
        at_ms=START_MS,
    )


def fill_the_rest(tx: Transaction) -> None:
    tx.flush()
    values = {"TEXT": "'{}'", "INTEGER": "7", "BLOB": "x'1234'"}
    for (table,) in tx.database.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"):
        if not tx.database.value(f"SELECT count(*) FROM {table}"):  # noqa: S608 - names of the schema
            kinds = [row[0] for row in tx.database.rows(f"SELECT type FROM pragma_table_info('{table}')")]  # noqa: S608
            tx.database.run(f"INSERT INTO {table} VALUES ({', '.join(values[kind] for kind in kinds)})")  # noqa: S608


@pytest.fixture
async def filled(home: Path) -> Path:
    """A home with something in every table, closed."""
    store = open_sqlite(home)
    await fill(store)
    await store.close()
    return home


def flip(file: Path, at: int, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        (byte,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << bit]))


@pytest.mark.req("PIPE-5", "PIPE-9")
@pytest.mark.parametrize(
    ("table", "column", "problem"),
    [
        ("inbox", "body", "inbox: evt_"),
        ("blob_chunks", "data", "payload: "),
        ("mirror_events", "body", "mirror of node-b: the hash chain breaks at seq "),
        ("mirror_streams", "chain", "mirror of node-b: the hash chain of the stream of node-c breaks at seq"),
        ("task_events", "body", "task event: evt_"),
        ("tasks", "record", "task: tsk_"),
        ("outbox", "body", "outbox: the hash chain breaks at seq "),
    ],
)
async def test_each_bit_of_content_that_changes_is_noticed(
    filled: Path, tmp_path: Path, table: str, column: str, problem: str
) -> None:
    """Random bits of what is kept: a check notices each, and says which event, payload or task it is part of."""
    restored = tmp_path / "restored"
    restored.mkdir(mode=0o700)
    back_up(filled, Home(restored).database)
    assert check_home(restored).problems == ()
    chance = random.Random(table)
    content = Home(restored).database.read_bytes()
    connection = apsw.Connection(str(Home(restored).database))
    values = [row[0] for row in connection.execute(f"SELECT {column} FROM {table}")]  # noqa: S608
    connection.close()
    for _ in range(25):
        value = chance.choice(values)
        # A large value stands in pieces.
        start = chance.randrange(len(value) - 32) if len(value) > 3_000 else 0
        piece = value[start : start + 32] if start else value
        # SQLite leaves copies of what it moved in bytes that it does not use any more, mostly further up.
        at = content.rindex(piece)
        byte, bit = at + chance.randrange(len(piece)), chance.randrange(8)
        flip(Home(restored).database, byte, bit)
        report = check_home(restored)
        flip(Home(restored).database, byte, bit)
        assert report.problems
        assert report.remedies
        # The same bytes may stand in another table as well, before.
        assert content.count(piece) > 1 or any(each.startswith(problem) for each in report.problems), report.problems


async def test_a_check_beside_a_busy_gateway_sees_no_damage(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While pages move from the log into the file, a check that runs meanwhile finds everything whole."""
    monkeypatch.setattr(writer, "_CHECKPOINT_AT_PAGES", 8)
    monkeypatch.setattr(writer, "_COMMITS_A_LOOK_AT_THE_LOG", 1)
    store = open_sqlite(home)
    await fill(store)
    done = asyncio.Event()

    async def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            await store.append([a_message(10_000 + number)])

    async with asyncio.TaskGroup() as group:
        group.create_task(write(), name="writer")
        try:
            for _ in range(15):
                report = await asyncio.to_thread(check_home, home)
                assert report.problems == ()
        finally:
            done.set()
    await store.close()
    assert check_home(home).problems == ()


@pytest.mark.req("PIPE-5")
async def test_a_repair_drops_damaged_payloads_that_others_have(filled: Path) -> None:
    """With the gateway stopped, what can be fetched again makes way for it; the check is clean afterwards."""
    database = Home(filled).database
    at = database.read_bytes().index(SEALED.chunks[1][50_000:50_032])
    flip(database, at + 3, 1)
    report = check_home(filled)
    assert f"payload: {SEALED.blob.sha256} of node-b (700,048 bytes) is damaged" in report.problems
    assert any(each.startswith("Payloads of other gateways are fetched again") for each in report.remedies)
    store = open_sqlite(filled)
    with pytest.raises(Refusal) as refused:
        drop_damaged_payloads(filled)
    assert refused.value.code is Code.HOME_IN_USE
    await store.close()
    assert drop_damaged_payloads(filled) == (SEALED.blob.sha256,)
    assert drop_damaged_payloads(filled) == ()
    store = open_sqlite(filled)
    assert store.blob(SEALED.blob.sha256) is None
    assert store.payload_sources(SEALED.blob.sha256) == [PEER]
    await store.close()
