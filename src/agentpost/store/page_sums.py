"""Sums of the pages of the database file, in a file beside it: so that a check can tell each bit that has changed.

The database file changes only when the log is moved into it. Before that, the pages that the log holds get their sums.
A page that the log holds needs none yet: what counts of it is in the log, and it gets a sum before it leaves.

Both files have a generation, which a table of the database keeps: sums beside a file that was copied from elsewhere are
not its sums. Pages without one, of a file that came without sums, get theirs little by little, as they are then.
"""

import contextlib
import logging
import mmap
import os
import struct
from array import array
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database
from agentpost.store.queries import SQL

__all__ = ["PageSums", "damaged_pages", "sums_file"]

_log = logging.getLogger(__name__)

_MAGIC: Final = b"agentpost sums 1"
# What it is, the generation, the size of a page.
_HEADER: Final = struct.Struct("<16sQI4x")
_NONE: Final = 0
# How many pages without a sum get one with each checkpoint: some milliseconds.
_FILLED_AT_ONCE: Final = 2_048
_LOG_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
# How many pages of the file a check reads at once.
_READ_AT_ONCE: Final = 1_024


def sums_file(database: Path) -> Path:
    return database.with_name(database.name + "-sums")


def page_sum(content: bytes | memoryview) -> int:
    """Never 0, which says that a page has no sum."""
    return crc32(content) or 1


class PageSums:
    """The sums that the writer of a database keeps. `note` is called before each checkpoint, between transactions."""

    def __init__(self, database: Database, path: Path) -> None:
        self._database = database
        self._file = sums_file(path)
        self._log = path.with_name(path.name + "-wal")
        self._page_bytes = database.page_bytes()
        self._generation: int = database.value(SQL.sums_generation)
        found = _read(self._file)
        # One less: the last process was killed before it could write the sums of what its log holds.
        self._is_written = found is not None and found[0] in (self._generation, self._generation - 1)
        self._sums = found[1] if found is not None and self._is_written else array("I")
        # The pages that were there before may lack a sum: how far they were looked through.
        self._filled_through, self._fill_through = 0, database.page_count()
        # Of the log, what has its sums already.
        self._noted: tuple[bytes, int] = (b"", 0)

    def note(self) -> None:
        """Sum the pages that the log holds. Where that fails there are no sums any more, rather than wrong ones."""
        try:
            self._note()
        except OSError as error:
            _log.warning("the sums of pages cannot be written to %s: %s", self._file, error.strerror)
            self._forget()
            self._begin_generation()
        except Refusal as refusal:
            self._forget()
            if refusal.code is not Code.STORAGE_FULL:
                raise

    def _note(self) -> None:
        length = self._database.log_length()
        if length <= 0 or self._noted == (self._salts(), length):
            return
        self._begin_generation()
        changed = self._sum_log()
        changed += self._fill()
        self._write(changed)

    def _begin_generation(self) -> None:
        database, generation = self._database, self._generation + 1
        database.begin()
        try:
            database.run(SQL.begin_sums_generation, (generation,))
            database.commit()
        except Refusal:
            database.rollback()
            raise
        self._generation = generation

    def _salts(self) -> bytes:
        with _opened(self._log) as fd:
            return _salts_of(fd)

    def _sum_log(self) -> list[int]:
        """Give the pages of the log their sums; gives which they are."""
        frame_bytes = _FRAME_HEADER_BYTES + self._page_bytes
        length = self._database.log_length()
        with _opened(self._log) as fd:
            salts = _salts_of(fd)
            begin = _LOG_HEADER_BYTES + frame_bytes * (self._noted[1] if self._noted[0] == salts else 0)
            end = _LOG_HEADER_BYTES + frame_bytes * length
            # Mapped, because of most frames only the header is looked at. Nobody but this process shortens the log.
            with mmap.mmap(fd, end, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as log, log[begin:end] as frames:
                # A frame begins with the number of its page. What stands further on counts.
                numbers = (page for (page,) in struct.iter_unpack(f">I{frame_bytes - 4}x", frames))
                last = dict(zip(numbers, range(_FRAME_HEADER_BYTES, len(frames), frame_bytes), strict=True))
                pieces = map(slice, last.values(), (start + self._page_bytes for start in last.values()))
                pages = dict(zip(last, map(page_sum, map(frames.__getitem__, pieces)), strict=True))
        self._set(pages)
        self._noted = (salts, length)
        return list(pages)

    def _fill(self) -> list[int]:
        """Give some pages that have no sum one from the file. What the log holds has its sum already."""
        missing: list[int] = []
        while self._filled_through < self._fill_through and len(missing) < _FILLED_AT_ONCE:
            page = self._filled_through + 1
            if page <= len(self._sums):
                try:
                    page = self._sums.index(_NONE, page - 1) + 1
                except ValueError:
                    page = len(self._sums) + 1
            self._filled_through = page
            if page <= self._fill_through:
                missing.append(page)
        self._set({page: page_sum(content) for page, content in self._database.read_pages(missing)})
        return missing

    def _set(self, sums: Mapping[int, int]) -> None:
        kept = self._sums
        if (more := max(sums, default=0) - len(kept)) > 0:
            kept.extend(array("I", bytes(more * kept.itemsize)))
        for page, total in sums.items():
            kept[page - 1] = total

    def _write(self, changed: list[int]) -> None:
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if self._is_written:
                for first, last in _runs(sorted(changed)):
                    os.pwrite(fd, self._sums[first - 1 : last].tobytes(), _HEADER.size + 4 * (first - 1))
            else:
                os.ftruncate(fd, 0)
                os.pwrite(fd, self._sums.tobytes(), _HEADER.size)
            os.pwrite(fd, _HEADER.pack(_MAGIC, self._generation, self._page_bytes), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        self._is_written = True

    def _forget(self) -> None:
        self._sums, self._is_written, self._noted = array("I"), False, (b"", 0)
        self._filled_through, self._fill_through = 0, self._database.page_count()
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)


def damaged_pages(database: Database, path: Path) -> tuple[int, list[int]] | None:
    """How many pages have a sum, and which of these are not as they were written. None if there are no sums.

    `database` is inside a transaction that reads, so that nothing moves from the log into a page that it can see.
    """
    found = _read(sums_file(path))
    if found is None:
        return None
    generation, sums = found
    if database.value(SQL.sums_generation) not in (generation, generation + 1):
        # Perhaps a checkpoint came in between, of a gateway that runs.
        with contextlib.closing(Database.open_reader(path)) as latest:
            if latest.value(SQL.sums_generation) not in (generation, generation + 1):
                return None
    wanted = [page for page, total in enumerate(sums, start=1) if total != _NONE]
    checked = 0
    damaged: list[int] = []
    for at in range(0, len(wanted), _READ_AT_ONCE):
        for page, content in database.read_pages(wanted[at : at + _READ_AT_ONCE]):
            checked += 1
            if page_sum(content) != sums[page - 1]:
                damaged.append(page)
    if damaged:
        in_log = _pages_in_log(path.with_name(path.name + "-wal"), database.page_bytes())
        damaged = [page for page in damaged if page not in in_log]
    return checked, damaged


def _pages_in_log(log: Path, page_bytes: int) -> set[int]:
    """All pages that the log may hold, whether or not a transaction of it is committed."""
    pages: set[int] = set()
    try:
        with _opened(log) as fd:
            salts, at = _salts_of(fd), _LOG_HEADER_BYTES
            while len(head := os.pread(fd, _FRAME_HEADER_BYTES, at)) == _FRAME_HEADER_BYTES and head[8:16] == salts:
                pages.add(int.from_bytes(head[:4], "big"))
                at += _FRAME_HEADER_BYTES + page_bytes
    except FileNotFoundError:
        pass
    return pages


def _read(file: Path) -> tuple[int, "array[int]"] | None:
    """The generation and the sums of a file of sums, None if there is none or it is no such file."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    if len(content) < _HEADER.size:
        return None
    magic, generation, _page_bytes = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        return None
    sums = array("I")
    sums.frombytes(content[_HEADER.size : len(content) - (len(content) - _HEADER.size) % sums.itemsize])
    return generation, sums


def _runs(pages: list[int]) -> list[tuple[int, int]]:
    """The pages as (first, last) of those that follow each other."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and page <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], page)
        else:
            runs.append((page, page))
    return runs


def _salts_of(fd: int) -> bytes:
    """What the frames of a log have in common that were written since it last began anew."""
    return os.pread(fd, _LOG_HEADER_BYTES, 0)[16:24]


@contextlib.contextmanager
def _opened(path: Path) -> Generator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
