"""The faulty disk on plain SQLite: it clears what SQLite promises, and catches what SQLite does not promise.

The promises are those of https://sqlite.org/pragma.html#pragma_synchronous; a disk that is kinder or harsher than
they assume would fail here, before it can mislead a test of the store.
"""

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest

from tests.faults.disk import SECTOR_BYTES, Disk, Fault, Keep, Point, refusal

DATABASE = "rows.db"
WAL = "rows.db-wal"
ROWS = 6
SEEDS = range(3 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1")))


@dataclass
class Outcome:
    """What a run was told: the rows whose commit returned, and the errors of the other statements."""

    acknowledged: set[int] = field(default_factory=set)
    errors: list[apsw.Error] = field(default_factory=list)


@contextmanager
def connection(disk: Disk, directory: Path) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(directory / DATABASE), vfs=disk.name)) as db:
        db.set_busy_timeout(5000)
        yield db


def prepare(db: apsw.Connection, *, journal_mode: str = "wal", synchronous: str = "full") -> None:
    """A table of rows that take a page every other time, and a checkpoint after every few."""
    db.pragma("journal_mode", journal_mode)
    db.pragma("synchronous", synchronous)
    db.pragma("wal_autocheckpoint", 4)
    db.execute("create table rows (id integer primary key, body blob)")


def insert(db: apsw.Connection, row: int) -> None:
    db.execute("insert into rows values (?, zeroblob(1500))", (row,))


def count(db: apsw.Connection) -> int:
    return db.execute("select count(*) from rows").get


def commit_rows(disk: Disk, directory: Path, **settings: str) -> Outcome:
    """Commit the rows one by one, and go on with the next when one fails."""
    outcome = Outcome()
    try:
        with connection(disk, directory) as db:
            prepare(db, **settings)
            for row in range(ROWS):
                try:
                    insert(db, row)
                    outcome.acknowledged.add(row)
                except apsw.Error as error:
                    outcome.errors.append(error)
    except apsw.Error as error:
        outcome.errors.append(error)
    return outcome


def read_back(directory: Path) -> set[int]:
    """The rows that are there when the machine is up again; a damaged file raises."""
    with closing(apsw.Connection(str(directory / DATABASE))) as db:
        db.pragma("synchronous", "off")
        if (verdict := db.pragma("integrity_check")) != "ok":
            raise apsw.CorruptError(verdict)
        has_table = db.execute("select count(*) from sqlite_schema").get
        return {row for (row,) in db.execute("select id from rows")} if has_table else set()


class Laboratory:
    """Fresh directories, since no run and no survivor may see the files of another."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made = 0

    def directory(self) -> Path:
        self._made += 1
        path = self._root / str(self._made)
        path.mkdir()
        return path

    def points(self, **settings: str) -> list[Point]:
        """The write points of a run in which nothing goes wrong."""
        with Disk() as disk:
            outcome = commit_rows(disk, self.directory(), **settings)
        assert outcome == Outcome(acknowledged=set(range(ROWS)))
        return disk.points

    def survivors(self, disk: Disk, keep: Keep) -> Iterator[Path]:
        for seed in SEEDS if keep is Keep.TORN else range(1):
            target = self.directory()
            disk.survive(target, keep=keep, seed=seed)
            yield target

    def losses(self, keep: Keep, **settings: str) -> list[Point]:
        """The points at which a power cut costs an acknowledged row."""
        lost: list[Point] = []
        for cut_at in range(len(self.points(**settings))):
            with Disk(cut_at=cut_at) as disk:
                outcome = commit_rows(disk, self.directory(), **settings)
            assert not disk.has_power
            survivors = self.survivors(disk, keep)
            lost += [disk.points[-1] for target in survivors if not outcome.acknowledged <= read_back(target)]
        return lost


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


@pytest.mark.parametrize("keep", Keep)
def test_a_power_cut_at_any_point_loses_no_acknowledged_row(laboratory: Laboratory, keep: Keep) -> None:
    """Wherever the power goes, a WAL database with synchronous=FULL comes back whole, with every committed row."""
    assert laboratory.losses(keep, synchronous="full") == []


def test_a_wal_that_is_not_synced_at_commit_is_caught(laboratory: Laboratory) -> None:
    """With synchronous=NORMAL a power cut costs a committed row, and a process crash does not."""
    assert laboratory.losses(Keep.NOTHING, synchronous="normal")
    assert laboratory.losses(Keep.TORN, synchronous="normal")
    assert laboratory.losses(Keep.EVERYTHING, synchronous="normal") == []


def test_a_deletion_without_a_sync_of_the_directory_is_caught(laboratory: Laboratory) -> None:
    """A rollback journal that comes back undoes a committed row, unless synchronous=EXTRA made it stay away."""
    assert laboratory.losses(Keep.NOTHING, journal_mode="delete", synchronous="full")
    assert laboratory.losses(Keep.NOTHING, journal_mode="delete", synchronous="extra") == []
    assert laboratory.losses(Keep.TORN, journal_mode="delete", synchronous="extra") == []


def test_writes_that_land_in_any_order_are_caught(laboratory: Laboratory) -> None:
    """With synchronous=OFF a power cut leaves a database that is damaged."""
    with pytest.raises((apsw.CorruptError, apsw.NotADBError)):
        laboratory.losses(Keep.TORN, journal_mode="delete", synchronous="off")


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("fault", Fault)
def test_a_fault_at_any_point_is_reported_and_loses_no_acknowledged_row(
    laboratory: Laboratory, fault: Fault, sticky: bool
) -> None:
    """A full or broken disk makes a statement fail with SQLite's own error, and no committed row is lost."""
    points = laboratory.points()
    for point in points:
        with Disk(fault=fault, fault_at=point.index, sticky=sticky) as disk:
            outcome = commit_rows(disk, laboratory.directory())
        assert disk.struck[0] == point
        codes = {error.extendedresult for error in outcome.errors}
        assert codes <= {refusal(struck.op, fault) for struck in disk.struck}, point
        if not sticky:
            assert len(disk.struck) == 1
            assert len(outcome.errors) == 1 or (not outcome.errors and may_be_in_checkpoint(point, points))
        for keep in Keep:
            for target in laboratory.survivors(disk, keep):
                assert outcome.acknowledged <= read_back(target), (point, keep)


def may_be_in_checkpoint(point: Point, points: list[Point]) -> bool:
    """Whether SQLite may keep a failure to itself: the next checkpoint will do it again."""
    if point.file == DATABASE:
        return point.index > wal_creation(points)
    return point.file == WAL and point.op in {"sync", "delete"}


def wal_creation(points: list[Point]) -> int:
    return next(point.index for point in points if point.file == WAL)


def test_a_commit_stands_when_only_the_checkpoint_after_it_fails(laboratory: Laboratory) -> None:
    """A disk that refuses the checkpoint does not make the commit before it look as if it had failed."""
    with Disk(
        fault=Fault.EIO,
        fault_at=wal_creation(laboratory.points()),
        sticky=True,
        only=lambda point: point.file == DATABASE,
    ) as disk:
        outcome = commit_rows(disk, laboratory.directory())
    assert disk.struck
    assert outcome == Outcome(acknowledged=set(range(ROWS)))


def test_a_failed_sync_loses_what_was_pending_for_good(laboratory: Laboratory) -> None:
    """After a sync has failed, a second one that succeeds has not saved the bytes of the first."""
    with Disk(fault=Fault.EIO, fault_at=0, only=lambda point: point.op == "sync") as disk:
        file = raw_file(disk, laboratory.directory())
        file.xWrite(b"first", 0)
        with pytest.raises(apsw.IOError) as failure:
            file.xSync(apsw.SQLITE_SYNC_NORMAL)
        assert failure.value.extendedresult == apsw.SQLITE_IOERR_FSYNC
        file.xWrite(b"second", 5)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
        assert file.xRead(11, 0) == b"firstsecond"
        assert after(laboratory, disk, Keep.NOTHING) == bytes(5) + b"second"
        assert after(laboratory, disk, Keep.EVERYTHING) == b"firstsecond"
        file.xClose()


def test_retrying_after_a_failed_sync_loses_acknowledged_rows(laboratory: Laboratory) -> None:
    """A writer that syncs several commits at once, and tries again when that fails, reports rows that are lost."""
    assert rows_after_one_sync_for_two_commits(laboratory, sync_fails=False) == {1, 2}
    assert rows_after_one_sync_for_two_commits(laboratory, sync_fails=True) == set()


def rows_after_one_sync_for_two_commits(laboratory: Laboratory, *, sync_fails: bool) -> set[int]:
    last_commit = threading.Event()
    with (
        Disk(fault=Fault.EIO, fault_at=0, only=lambda point: last_commit.is_set() and point.op == "sync") as disk,
        connection(disk, laboratory.directory()) as db,
    ):
        prepare(db)
        db.pragma("wal_autocheckpoint", 0)
        db.pragma("synchronous", "normal")
        insert(db, 1)
        db.pragma("synchronous", "full")
        if sync_fails:
            last_commit.set()
            with pytest.raises(apsw.IOError):
                insert(db, 2)
        insert(db, 2)
        assert count(db) == 2
        disk.cut()
    (target,) = laboratory.survivors(disk, Keep.NOTHING)
    return read_back(target)


@pytest.mark.parametrize("cut_at", [None, 60], ids=["power", "power-cut"])
def test_readers_in_other_threads_work_beside_the_writer(laboratory: Laboratory, cut_at: int | None) -> None:
    """Connections in several threads share a WAL database; those that read go on when the power is gone."""
    directory = laboratory.directory()
    writer_is_done = threading.Event()

    def read() -> list[int]:
        counts = []
        with connection(disk, directory) as db:
            while not writer_is_done.is_set():
                counts.append(count(db))
            counts.append(count(db))
        return counts

    with (
        Disk(cut_at=cut_at) as disk,
        connection(disk, directory) as db,
        ThreadPoolExecutor(max_workers=3) as threads,
    ):
        prepare(db)
        readers = [threads.submit(read) for _ in range(3)]
        acknowledged = 0
        try:
            for row in range(50):
                insert(db, row)
                acknowledged += 1
        except apsw.IOError:
            assert cut_at is not None
        finally:
            writer_is_done.set()
        for reader in readers:
            counts = reader.result()
            assert counts == sorted(counts)
            assert counts[-1] == acknowledged
    assert disk.has_power == (cut_at is None)
    for keep in Keep:
        for target in laboratory.survivors(disk, keep):
            assert set(range(acknowledged)) <= read_back(target)


def test_what_a_crashed_process_leaves_is_what_it_wrote(laboratory: Laboratory) -> None:
    """When only the process dies, its files are there to the last byte."""
    directory = laboratory.directory()
    with Disk() as disk, connection(disk, directory) as db:
        prepare(db)
        for row in range(ROWS):
            insert(db, row)
        (target,) = laboratory.survivors(disk, Keep.EVERYTHING)
        for name in (DATABASE, WAL):
            assert (target / name).read_bytes() == (directory / name).read_bytes()
        assert {path.name for path in target.iterdir()} == {DATABASE, WAL}


def test_a_second_power_cut_finds_what_survived_the_first(laboratory: Laboratory) -> None:
    """A WAL from before the first power cut is there after a second one that comes before it was read."""
    with Disk() as first, connection(first, laboratory.directory()) as db:
        prepare(db)
        insert(db, 1)
        first.cut()
    (directory,) = laboratory.survivors(first, Keep.NOTHING)
    with Disk(cut_at=0) as second, connection(second, directory):
        pass
    (target,) = laboratory.survivors(second, Keep.NOTHING)
    assert read_back(target) == {1}


def test_a_file_that_was_never_synced_may_be_gone(laboratory: Laboratory) -> None:
    """Without a sync a new file survives a process crash, and of a power cut only by luck."""
    with Disk() as disk:
        file = raw_file(disk, laboratory.directory())
        file.xWrite(b"new", 0)
        assert after(laboratory, disk, Keep.NOTHING) is None
        assert after(laboratory, disk, Keep.EVERYTHING) == b"new"
        assert {after(laboratory, disk, Keep.TORN, seed) for seed in range(50)} == {None, b"", b"new", bytes(3)}
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
        assert after(laboratory, disk, Keep.NOTHING) == b"new"
        file.xClose()


def test_a_write_is_torn_between_sectors_only(laboratory: Laboratory) -> None:
    """Of the write at which the power goes, each sector is there or is not, and so with a truncation before it."""
    old, new = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES
    with Disk(cut_at=4) as disk:
        file = raw_file(disk, laboratory.directory())
        file.xWrite(old * 3, 0)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
        file.xTruncate(2 * SECTOR_BYTES)
        with pytest.raises(apsw.IOError):
            file.xWrite(new * 2, 0)
        file.xClose()
    assert [point.op for point in disk.points] == ["open-create", "write", "sync", "truncate", "write"]
    assert after(laboratory, disk, Keep.NOTHING) == old * 3
    assert after(laboratory, disk, Keep.EVERYTHING) == old * 2
    whole = {first + second + rest for first in (old, new) for second in (old, new) for rest in (b"", old)}
    zeroed = {image[: 2 * SECTOR_BYTES] + bytes(SECTOR_BYTES) for image in whole}
    outcomes = {after(laboratory, disk, Keep.TORN, seed) for seed in range(200)}
    assert whole <= outcomes <= whole | zeroed


def raw_file(disk: Disk, directory: Path) -> apsw.VFSFile:
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_READWRITE
    return apsw.VFSFile(disk.name, str(directory / DATABASE), [flags, 0])


def after(laboratory: Laboratory, disk: Disk, keep: Keep, seed: int = 0) -> bytes | None:
    target = laboratory.directory()
    disk.survive(target, keep=keep, seed=seed)
    file = target / DATABASE
    return file.read_bytes() if file.exists() else None


def test_the_same_seed_tears_the_same_way(laboratory: Laboratory) -> None:
    """A failure that a torn disk has shown can be shown again by its seed."""
    with Disk() as disk, connection(disk, laboratory.directory()) as db:
        prepare(db, synchronous="off")
        insert(db, 1)
        outcomes = [after(laboratory, disk, Keep.TORN, seed) for seed in (1, 2, 3, 1, 2, 3)]
    assert outcomes[:3] == outcomes[3:]


def test_a_disk_leaves_nothing_behind(laboratory: Laboratory, capfd: pytest.CaptureFixture[str]) -> None:
    """A connection may outlive its disk's power and name; when it is forgotten, nothing is left and nothing said."""
    with Disk() as disk:
        db = apsw.Connection(str(laboratory.directory() / DATABASE), vfs=disk.name)
        prepare(db)
        insert(db, 1)
        disk.cut()
        with pytest.raises(apsw.IOError):
            insert(db, 2)
        assert disk.name in apsw.vfs_names()
    assert disk.name not in apsw.vfs_names()
    assert count(db) == 1
    forgotten = weakref.ref(disk)
    del disk, db
    gc.collect()
    assert forgotten() is None
    assert capfd.readouterr() == ("", "")


def test_survivors_do_not_mix(laboratory: Laboratory) -> None:
    """A directory with files in it is refused: a WAL of another run would be taken for this one's."""
    with Disk() as disk:
        commit_rows(disk, laboratory.directory())
    (target,) = laboratory.survivors(disk, Keep.NOTHING)
    with pytest.raises(FileExistsError):
        disk.survive(target, keep=Keep.NOTHING)
