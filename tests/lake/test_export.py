"""Export: every event is sealed once, in order, whatever happens in between and whoever else exports."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agentpost.lake.manifest import manifest_path, segment_path
from agentpost.lake.place import Lake, NameTaken, open_lake
from agentpost.lake.remote import RemoteLake
from agentpost.lake.schema import SEGMENT
from agentpost.lake.segments import is_vouched_for, last_manifest, manifests, outboxes
from agentpost.protocol.heads import chain_over
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import CHAIN_START, Subscriber
from agentpost.testing import START_MS, a_message, an_identity
from tests.lake.building import NODE, an_exporter, ranges, rows_of
from tests.store.building import EPOCH, PEER, PEER_EPOCH, from_peer, open_sqlite, to_nodes
from tests.store.test_mirrors import READERS, a_mirror_batch, keep, raw_at


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = open_sqlite(tmp_path / "home")
    yield store
    await store.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


async def append(store: SqliteStore, count: int, *, start: int = 1) -> None:
    await store.append([a_message(number, body="x" * 100) for number in range(start, start + count)])


def bodies(store: SqliteStore) -> list[bytes]:
    return [event.raw for event in store.read_outbox(0, limit=100_000, max_bytes=1 << 30).events]


def files_in(lake: Path) -> set[str]:
    return {path.relative_to(lake).as_posix() for path in lake.rglob("*") if path.is_file()}


@pytest.mark.req("OBS-4")
async def test_an_outbox_is_sealed_whole_and_once(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """All events are in the lake once, in order and byte for byte; a second export adds nothing."""
    await append(store, 250)
    exporter = an_exporter(lake, tmp_path / "home", seal_events=100)
    assert len(exporter.export(now=True)) == 3
    assert exporter.export(now=True) == []
    assert ranges(lake, NODE, EPOCH) == [(1, 100), (101, 200), (201, 250)]
    table = rows_of(lake, NODE, EPOCH)
    assert table.column("body").to_pylist() == bodies(store)
    assert table.column("seq").to_pylist() == list(range(1, 251))
    (progress,) = exporter.progress()
    assert (progress.exported_seq, progress.lag_events, progress.problem) == (250, 0, None)


async def test_a_manifest_says_what_the_file_is(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """A manifest has the size and hash of its file and the chain around it, and the node's key signed it."""
    await append(store, 5)
    an_exporter(lake, tmp_path / "home", seal_events=3).export(now=True)
    first, second = manifests(open_lake(str(lake)), NODE, EPOCH)
    content = (lake / first.path).read_bytes()
    assert (first.size_bytes, first.sha256) == (len(content), sha256(content).hexdigest())
    assert first.path == segment_path(NODE, EPOCH, 1, 3)
    assert first.start_chain == CHAIN_START.hex()
    assert first.end_chain == second.start_chain == chain_over(CHAIN_START, bodies(store)[:3]).hex()
    assert first.sealed_by == NODE
    assert is_vouched_for(first, an_identity(NODE).signing_public)
    assert not is_vouched_for(first, an_identity("node-b").signing_public)
    assert pq.read_schema(lake / first.path).equals(SEGMENT)


@pytest.mark.req("OBS-4")
async def test_export_goes_on_where_the_lake_ends(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """A new exporter knows nothing but the lake, and continues after its last segment."""
    await append(store, 3)
    an_exporter(lake, tmp_path / "home").export(now=True)
    await append(store, 4, start=4)
    an_exporter(lake, tmp_path / "home").export(now=True)
    assert ranges(lake, NODE, EPOCH) == [(1, 3), (4, 7)]


async def test_a_segment_is_sealed_when_it_is_due(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """Nothing is sealed before there is enough of it, or before the first of it is old enough."""
    exporter = an_exporter(lake, tmp_path / "home", seal_events=10, seal_every_seconds=60)
    await append(store, 4)
    assert exporter.export() == []
    exporter._clock.advance(59_000)  # type: ignore[attr-defined]
    assert exporter.export() == []
    assert exporter.progress()[0].lag_events == 4
    exporter._clock.advance(1_000)  # type: ignore[attr-defined]
    assert [each.last_seq for each in exporter.export()] == [4]
    await append(store, 10, start=5)
    assert [each.last_seq for each in exporter.export()] == [14]


async def test_a_segment_is_not_longer_than_its_bytes(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """Large events make short segments."""
    await append(store, 6_000)
    an_exporter(lake, tmp_path / "home", seal_bytes=600_000).export(now=True)
    assert len(ranges(lake, NODE, EPOCH)) > 2
    assert rows_of(lake, NODE, EPOCH).num_rows == 6_000


@pytest.mark.req("PIPE-4")
async def test_the_content_stays_sealed(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """A segment has no column for what people say: only the event's own bytes, sealed by who sent them, hold it."""
    content = {"subject", "body_text", "title", "description", "note", "summary", "context"}
    assert not content & set(SEGMENT.names)
    await append(store, 1)
    an_exporter(lake, tmp_path / "home").export(now=True)
    others = rows_of(lake, NODE, EPOCH).drop_columns(["body"]).to_pylist()
    assert "x" * 100 not in str(others)


@pytest.mark.req("PIPE-9", "OBS-4")
async def test_mirrored_outboxes_are_exported_too(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """A gateway exports the outboxes that it mirrors, as their owners wrote them, under its own signature."""
    await keep(store, 3, 5)
    await append(store, 2)
    an_exporter(lake, tmp_path / "home").export(now=True)
    assert outboxes(open_lake(str(lake))) == [(NODE, EPOCH), (PEER, PEER_EPOCH)]
    (manifest,) = manifests(open_lake(str(lake)), PEER, PEER_EPOCH)
    assert (manifest.sealed_by, manifest.first_seq, manifest.last_seq) == (NODE, 1, 5)
    assert rows_of(lake, PEER, PEER_EPOCH).column("body").to_pylist() == [raw_at(seq) for seq in range(1, 6)]


async def test_a_mirror_that_began_in_the_middle_has_a_true_chain(
    store: SqliteStore, lake: Path, tmp_path: Path
) -> None:
    """Its segments begin where its chain is known, so that they can be checked like all others."""
    await store.keep_mirror(a_mirror_batch(2, 6))
    an_exporter(lake, tmp_path / "home").export(now=True)
    (manifest,) = manifests(open_lake(str(lake)), PEER, PEER_EPOCH)
    assert (manifest.first_seq, manifest.last_seq) == (4, 6)
    rows = rows_of(lake, PEER, PEER_EPOCH).column("body").to_pylist()
    assert chain_over(bytes.fromhex(manifest.start_chain), rows).hex() == manifest.end_chain


async def test_a_mirror_leaves_to_the_owner_what_it_does_not_have(
    store: SqliteStore, lake: Path, tmp_path: Path
) -> None:
    """A mirror that was pruned beyond what the owner has exported waits for it, and makes no hole in the lake."""
    owner = open_sqlite(tmp_path / "owner", node_id=PEER, epoch=PEER_EPOCH)
    try:
        await owner.append([to_nodes(from_peer(seq), *READERS[seq]) for seq in (1, 2)])
        an_exporter(lake, tmp_path / "owner", node_id=PEER).export(now=True)
        await keep(store, 3, 6)
        await store.prune_mirror(PEER, through_seq=4)
        exporter = an_exporter(lake, tmp_path / "home")
        assert exporter.export(now=True) == []
        await owner.append([to_nodes(from_peer(seq), *READERS[seq]) for seq in (3, 4, 5)])
        an_exporter(lake, tmp_path / "owner", node_id=PEER).export(now=True)
        exporter.export(now=True)
    finally:
        await owner.close()
    assert ranges(lake, PEER, PEER_EPOCH) == [(1, 2), (3, 5), (6, 6)]
    assert rows_of(lake, PEER, PEER_EPOCH).column("body").to_pylist() == [raw_at(seq) for seq in range(1, 7)]


@pytest.mark.req("OBS-4")
async def test_owner_and_seed_race_on_a_shared_lake(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """Exporters that run at the same moment seal each event once, and leave no file that nobody speaks of."""
    await append(store, 400)
    exporters = [an_exporter(lake, tmp_path / "home", seal_events=7 + turn) for turn in range(4)]
    start = threading.Barrier(len(exporters))

    def export(turn: int) -> None:
        start.wait()
        exporters[turn].export(now=True)

    await asyncio.gather(*(asyncio.to_thread(export, turn) for turn in range(len(exporters))))
    found = ranges(lake, NODE, EPOCH)
    assert [first for first, _ in found] == [1, *(last + 1 for _, last in found[:-1])]
    assert found[-1][1] == 400
    assert rows_of(lake, NODE, EPOCH).column("body").to_pylist() == bodies(store)
    files = files_in(lake)
    named = {each.path for each in manifests(open_lake(str(lake)), NODE, EPOCH)}
    assert files == named | {manifest_path(NODE, EPOCH, first) for first, _ in found}


class Crash(Exception):  # noqa: N818 - reads as what happened
    pass


class CrashingLake:
    """A lake whose writer dies after it has written the name of this number, or just before."""

    def __init__(self, lake: Lake, *, at: int, before: bool) -> None:
        self._lake = lake
        self._at = at
        self._before = before
        self._written = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._lake, name)

    def create(self, name: str, content: bytes) -> None:
        self._written += 1
        if self._before and self._written == self._at:
            raise Crash
        self._lake.create(name, content)
        if self._written == self._at:
            raise Crash


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("before", [True, False])
async def test_a_crash_at_any_write_loses_and_repeats_nothing(
    store: SqliteStore, lake: Path, tmp_path: Path, at: int, before: bool
) -> None:
    """An exporter that dies before or after any of its writes is continued by the next, which tidies up."""
    await append(store, 25)
    crashing = CrashingLake(open_lake(str(lake)), at=at, before=before)
    with pytest.raises(Crash):
        an_exporter(crashing, tmp_path / "home", seal_events=10).export(now=True)  # type: ignore[arg-type]
    await append(store, 5, start=26)
    for _ in range(2):
        an_exporter(lake, tmp_path / "home", seal_events=12).export(now=True)
    assert rows_of(lake, NODE, EPOCH).column("body").to_pylist() == bodies(store)
    assert {name for name in files_in(lake) if name.startswith("outbox/")} == {
        each.path for each in manifests(open_lake(str(lake)), NODE, EPOCH)
    }


async def test_another_exporters_data_without_a_manifest_is_left_alone(
    store: SqliteStore, lake: Path, tmp_path: Path
) -> None:
    """Data that begins where the lake ends may be somebody's segment in the making: it is no orphan yet."""
    await append(store, 5)
    an_exporter(lake, tmp_path / "home").export(now=True)
    making = lake / segment_path(NODE, EPOCH, 6, 9)
    making.write_bytes(b"being written")
    an_exporter(lake, tmp_path / "home").export(now=True)
    assert making.exists()
    await append(store, 4, start=6)
    an_exporter(lake, tmp_path / "home").export(now=True)
    an_exporter(lake, tmp_path / "home").export(now=True)
    assert not making.exists()
    assert rows_of(lake, NODE, EPOCH).num_rows == 9


@pytest.mark.req("CUR-6")
async def test_an_outbox_that_went_back_is_not_mixed_into_the_lake(
    store: SqliteStore, lake: Path, tmp_path: Path
) -> None:
    """A home that was put back from an older copy, under its old epoch, is noticed; the lake stays as it was."""
    await append(store, 5)
    an_exporter(lake, tmp_path / "home").export(now=True)
    other = open_sqlite(tmp_path / "older")
    try:
        await append(other, 3)
        exporter = an_exporter(lake, tmp_path / "older")
        assert exporter.export(now=True) == []
        assert "ends at 3" in (exporter.progress()[0].problem or "")
        await append(other, 4, start=104)
        exporter = an_exporter(lake, tmp_path / "older")
        assert exporter.export(now=True) == []
        assert "hash chain" in (exporter.progress()[0].problem or "")
    finally:
        await other.close()
    assert ranges(lake, NODE, EPOCH) == [(1, 5)]


async def test_a_pruned_outbox_begins_at_its_floor(store: SqliteStore, lake: Path, tmp_path: Path) -> None:
    """A lake that is set up late holds what is left, with the chain that it builds on."""
    await append(store, 10)
    await store.note_subscriber(
        Subscriber(
            consumer_node_id=PEER, epoch=EPOCH, last_seq=6, updated_at_ms=START_MS, lease_expires_at_ms=START_MS * 2
        )
    )
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))
    an_exporter(lake, tmp_path / "home").export(now=True)
    (manifest,) = manifests(open_lake(str(lake)), NODE, EPOCH)
    assert (manifest.first_seq, manifest.last_seq) == (7, 10)
    assert chain_over(bytes.fromhex(manifest.start_chain), bodies(store)).hex() == manifest.end_chain


async def test_a_lake_behind_a_url(store: SqliteStore, tmp_path: Path) -> None:
    """The same export works through pyarrow's file systems, as for an object store."""
    from pyarrow import fs

    root = tmp_path / "bucket"
    lake = RemoteLake(fs.LocalFileSystem(), str(root), where="bucket")
    await append(store, 25)
    exporter = an_exporter(lake, tmp_path / "home", seal_events=10)
    assert len(exporter.export(now=True)) == 3
    assert an_exporter(lake, tmp_path / "home").export(now=True) == []
    assert rows_of(root, NODE, EPOCH).column("body").to_pylist() == bodies(store)
    with pytest.raises(NameTaken):
        lake.create(manifest_path(NODE, EPOCH, 1), b"another")
    assert last_manifest(lake, NODE, EPOCH) == last_manifest(open_lake(str(root)), NODE, EPOCH)


def test_a_node_id_is_never_a_path(tmp_path: Path) -> None:
    """Whatever a node or an epoch is called, its files stay in their own directory of the lake."""
    for name in ("..", "a/b", "../../up", ".", "%2E%2E"):
        path = (tmp_path / manifest_path(name, name, 1)).resolve()
        assert path.is_relative_to(tmp_path / "manifests")
        assert len(path.relative_to(tmp_path).parts) == 4


def test_old_drafts_are_cleaned_away(tmp_path: Path) -> None:
    """What a writer left half done long ago is removed; what may still be being written stays."""
    lake = open_lake(str(tmp_path))
    lake.create("folder/one", b"1")
    old, new = tmp_path / "folder" / ".two.aa.part", tmp_path / "folder" / ".three.bb.part"
    for draft in (old, new):
        draft.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert lake.names("folder") == ["one"]
    assert (old.exists(), new.exists()) == (False, True)
