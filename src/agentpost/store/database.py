"""One connection to the database file, and the only module that touches APSW.

SQLite's errors leave here in the mesh's words. What a disk does wrong is told apart: a full one can be used again, a
failed one cannot (`Refusal` with `storage_failed`).
"""

# apsw's type stubs use collections.abc.Buffer, which Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import os
import time
from array import array
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

import apsw

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.queries import migrations

__all__ = ["ConstraintViolated", "Database", "FileKind", "Row", "check_sqlite_version"]

# Before 3.51.3 a WAL reset could corrupt the database.
_OLDEST_SQLITE: Final = (3, 51, 3)
_BUSY_TIMEOUT_MS: Final = 5_000
_RETRY_SECONDS: Final = 0.005
_LOG_BYTES_KEPT: Final = 64 * 1024 * 1024
# The log of SQLite: a header, and frames of a header and a page. Both headers have two salts that say what belongs
# together, at these places.
_LOG_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_SALTS_OF_LOG: Final = slice(16, 24)
_SALTS_OF_FRAME: Final = slice(8, 16)
# SQLite's own writes of 128 KiB and more would fail.
_RENEWED_AT_ONCE: Final = 64 * 1024

_SYNC: Final = "PRAGMA synchronous = FULL"
_NO_SYNC: Final = "PRAGMA synchronous = NORMAL"

Row = tuple[Any, ...]
Packed: TypeAlias = "Sequence[bytes] | Sequence[str] | array[int]"


class FileKind(Enum):
    """What a database file is for, as its header says; the name is what a user calls it."""

    GATEWAY = (0x61675074, "a gateway's home")  # "agPt"
    MAILBOX = (0x61674D62, "a mailbox")  # "agMb"


class ConstraintViolated(Exception):  # noqa: N818 - reads as what happened
    """A statement broke a constraint of the schema. The transaction has to be rolled back by whoever started it."""


def check_sqlite_version(version: str) -> None:
    """Refuse an SQLite that is known to lose data."""
    if tuple(int(part) for part in version.split(".")) < _OLDEST_SQLITE:
        raise Refusal(
            Code.UNAVAILABLE,
            f"SQLite {version} can corrupt a database in WAL mode; install apsw 3.54 or newer from PyPI",
        )


class Database:
    """A connection. Used by one thread at a time."""

    def __init__(self, connection: apsw.Connection, kind: FileKind = FileKind.GATEWAY) -> None:
        self._connection = connection
        self._kind = kind
        # Grows with everything that is, or is about to be, written.
        self.writes = 0
        self._syncs = True
        self._only_reads = False

    @classmethod
    def open_writer(cls, path: Path, *, vfs: str | None = None, synchronous: str = "FULL") -> "Database":
        """A connection that may write, in WAL mode. FULL makes every commit survive a power loss (PIPE-3)."""
        check_sqlite_version(apsw.sqlite_lib_version())
        with translated:
            connection = apsw.Connection(str(path), vfs=vfs, statementcachesize=200)
        database = cls(connection)
        try:
            database._prepare(path, synchronous)
        except BaseException:
            database.abandon()
            raise
        return database

    @classmethod
    def open_shared(cls, path: Path, kind: FileKind, *, busy_timeout_ms: int, vfs: str | None = None) -> "Database":
        """A connection that may write a file which other processes write as well; each waits for its turn."""
        check_sqlite_version(apsw.sqlite_lib_version())
        with translated:
            connection = apsw.Connection(str(path), vfs=vfs, statementcachesize=200)
        database = cls(connection, kind)
        try:
            database._prepare(path, "FULL", busy_timeout_ms=busy_timeout_ms)
            with translated:
                # One plan for each statement: without this, SQLite makes a new one whenever a value is bound that an
                # index with a condition might care about, and that takes longer than the statement itself.
                connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        except BaseException:
            database.abandon()
            raise
        return database

    @classmethod
    def open_reader(cls, path: Path, *, vfs: str | None = None) -> "Database":
        """A connection that only reads; it never waits for the writer, nor the writer for it."""
        with translated:
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs, statementcachesize=200)
            connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
            connection.pragma("query_only", True)
            # Only the writer moves the log into the file, and hears of an error there.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        database = cls(connection)
        database._only_reads = True
        return database

    def _prepare(self, path: Path, synchronous: str, *, busy_timeout_ms: int = _BUSY_TIMEOUT_MS) -> None:
        connection = self._connection
        with translated:
            connection.set_busy_timeout(busy_timeout_ms)
            if not self._is_ours_or_new():
                raise Refusal(
                    Code.STORAGE_CORRUPT, f"{path} is a database of another program, not {self._kind.value[1]}"
                )
            if self._journal_mode(busy_timeout_ms) != "wal":
                raise Refusal(Code.UNAVAILABLE, f"{path} is on a file system that cannot hold a WAL database")
            connection.pragma("synchronous", synchronous)
            connection.pragma("journal_size_limit", _LOG_BYTES_KEPT)
            # The writer checkpoints by itself, where it can see a failing disk; SQLite's own hook would swallow that.
            connection.wal_autocheckpoint(0)

    def _journal_mode(self, busy_timeout_ms: int) -> str:
        """Have a log, as from now on; gives what the file has."""
        give_up_at = time.monotonic() + busy_timeout_ms / 1000
        while True:
            try:
                return self._connection.pragma("journal_mode", "wal")
            except apsw.BusyError:
                # Two that make a new file so at the same time would wait for each other: SQLite lets neither wait.
                if time.monotonic() > give_up_at:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _is_ours_or_new(self) -> bool:
        # In this order: another process may be filling the file, and writes its id with the tables.
        is_empty = self.value("SELECT count(*) FROM sqlite_schema") == 0
        application_id = self._connection.pragma("application_id")
        # Most programs leave the id at 0: what has it and is not empty is somebody's.
        return application_id == self._kind.value[0] or (application_id == 0 and is_empty)

    def migrate(self, scripts: Sequence[str] | None = None) -> None:
        """Bring the database to the schema of this version, in one transaction.

        If that fails, the file is as it was, and the version that wrote it can still open it.
        """
        scripts = migrations() if scripts is None else scripts
        if self._schema_before(scripts) == len(scripts):
            return
        self.begin()
        try:
            # Asked again: another process may have been faster.
            for script in scripts[self._schema_before(scripts) :]:
                self.run(script)
            self.run(f"PRAGMA application_id = {self._kind.value[0]}")
            self.run(f"PRAGMA user_version = {len(scripts)}")
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def _schema_before(self, scripts: Sequence[str]) -> int:
        found = self.schema_version()
        if found > len(scripts):
            raise Refusal(
                Code.SCHEMA_TOO_NEW,
                f"this file has schema {found}; this agentpost knows {len(scripts)} and must not touch it",
            )
        return found

    def schema_version(self) -> int:
        with translated:
            return self._connection.pragma("user_version")

    def sync_commits(self, wanted: bool) -> None:
        """Whether the next commits wait for the disk. One that does not may be lost with the power, and is durable
        with the next one that does: the log keeps their order. Between transactions only.
        """
        if wanted is not self._syncs:
            with translated:
                # SQLite obeys when it reads the statement, not when it runs it: one that is kept does nothing.
                self._connection.execute(_SYNC if wanted else _NO_SYNC, can_cache=False)
            self._syncs = wanted

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def begin_if_none(self) -> None:
        if not self._connection.in_transaction:
            self.begin()

    def commit(self) -> None:
        """End the transaction, if there is one: a single statement needs none."""
        if self._connection.in_transaction:
            self.run("COMMIT")

    def rollback(self) -> None:
        """End the transaction, if SQLite has not ended it already."""
        if self._connection.in_transaction:
            self.run("ROLLBACK")

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self.writes += 1
        try:
            self._connection.execute(sql, values)
        except apsw.Error as error:
            raise _in_our_words(error) from None

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.writes += 1
        try:
            self._connection.executemany(sql, rows)
        except apsw.Error as error:
            raise _in_our_words(error) from None

    def run_packed(self, sql: str, values: Sequence[Any], packed: Packed) -> list[Row]:
        """Run a statement whose last parameter is an array that SQLite reads by itself, without Python in between.

        Gives the rows that it returns, if it does.
        """
        self.writes += 1
        with translated:
            return self._connection.execute(sql, (*values, _carray(packed))).fetchall()

    def rows_packed(self, sql: str, values: Sequence[Any], packed: Packed) -> list[Row]:
        """The rows of such a statement; the array must not be empty."""
        with translated:
            return self._connection.execute(sql, (*values, _carray(packed))).fetchall()

    @contextmanager
    def one_view(self) -> Generator[None]:
        """All that is read inside is of one moment. For connections that only read."""
        self.run("BEGIN")
        try:
            yield
        finally:
            self.rollback()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except apsw.Error as error:
            raise _in_our_words(error) from None

    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        try:
            return self._connection.execute(sql, values).fetchone()
        except apsw.Error as error:
            raise _in_our_words(error) from None

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first column of the first row, None if there is no row or if it is NULL."""
        row = self.row(sql, values)
        return row[0] if row is not None else None

    def rows_for(self, sql: str, keys: Sequence[str]) -> list[Row]:
        """The rows of a statement whose one parameter is a list of texts; no key, no row."""
        return self.rows(sql, (apsw.carray(tuple(keys)),)) if keys else []

    def changed_rows(self) -> int:
        """How many rows this connection has changed so far."""
        return self._connection.total_changes()

    def checkpoint(self) -> None:
        """Move what the log holds into the database file, as far as no reader needs the log."""
        with translated:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def log_pages(self) -> int:
        """How many pages of the log are not in the database file yet."""
        with translated:
            pages, moved = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return pages - moved

    def renew_log(self) -> None:
        """Write the log anew and make it durable, then move it into the file: for a file that was just opened, before
        anything that is added to it counts as durable.

        A sync of an earlier process may have failed. Then the kernel has dropped from the disk, but not from what it
        shows us, part of the log; commits behind that hole would be synced, and lost with the power all the same.
        """
        with translated:
            pages, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if pages <= 0:
            return
        # So that no other process writes the log meanwhile.
        self.begin()
        try:
            with translated:
                self._rewrite_log(pages)
        finally:
            self.rollback()
        try:
            self.checkpoint()
        except Refusal as refusal:
            # The log is durable now, and that is enough: the disk is full, or another process moves it already.
            if refusal.code not in (Code.STORAGE_FULL, Code.UNAVAILABLE):
                raise

    def _rewrite_log(self, pages: int) -> None:
        frame_bytes = _FRAME_HEADER_BYTES + self._connection.pragma("page_size")
        flags = [apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL, 0]
        log = apsw.VFSFile(self._connection.open_vfs, self._connection.filename_wal, flags)
        try:
            size = log.xFileSize()
            if size < _LOG_HEADER_BYTES:
                return
            salts = log.xRead(_LOG_HEADER_BYTES, 0)[_SALTS_OF_LOG]
            end = min(_LOG_HEADER_BYTES + pages * frame_bytes, size)
            # What others have added since the pages were counted.
            while end + frame_bytes <= size and log.xRead(_FRAME_HEADER_BYTES, end)[_SALTS_OF_FRAME] == salts:
                end += frame_bytes
            for at in range(0, end, _RENEWED_AT_ONCE):
                log.xWrite(log.xRead(min(_RENEWED_AT_ONCE, end - at), at), at)
            log.xSync(apsw.SQLITE_SYNC_NORMAL)
        finally:
            log.xClose()

    def copy_to(self, target: Path) -> None:
        """A consistent, compacted copy as of now, durable when this returns. Readers and the writer go on meanwhile."""
        # Made before SQLite fills it, so that nobody else can read it meanwhile.
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with translated:
                self._connection.pragma("query_only", False)
                self._connection.execute("VACUUM INTO ?", (str(target),))
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of the file. The last one to do so moves the log into it, and what goes wrong there is not told.

        A connection that only reads leaves a log that holds something to the writer.
        """
        with translated:
            if self._only_reads:
                with suppress(apsw.Error):
                    self.rollback()
                    is_empty = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0] <= 0
                    self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(not is_empty))
            self._connection.close()

    def abandon(self) -> None:
        """Let go of the file without another write: the log stays beside it for the next start."""
        with translated:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._connection.close()


def _carray(packed: Packed) -> Any:
    return apsw.carray(packed if isinstance(packed, array) else tuple(packed))


class _Translated:
    """Turns what SQLite raises inside a `with` into what it means here. Has no state, so one serves all."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, apsw.Error):
            raise _in_our_words(error) from None


def _in_our_words(error: apsw.Error) -> Exception:
    match error:
        case apsw.ConstraintError():
            return ConstraintViolated(str(error))
        case apsw.FullError():
            return Refusal(Code.STORAGE_FULL, "the disk is full; nothing was written")
        case apsw.IOError():
            return Refusal(Code.STORAGE_FAILED, f"the disk failed: {error}")
        case apsw.CorruptError() | apsw.NotADBError():
            return Refusal(Code.STORAGE_CORRUPT, f"the database is damaged: {error}")
        case apsw.BusyError() | apsw.LockedError():
            return Refusal(Code.UNAVAILABLE, "another program holds the database")
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return Refusal(Code.STORAGE_FAILED, f"the database cannot be opened: {error}")
        case apsw.ConnectionClosedError():
            return Refusal(Code.UNAVAILABLE, "the store is closed")
        case _:
            return error


translated: Final = _Translated()
