"""The warehouse: tables as plain Parquet files, and versions that say which files, and which hours in them, count.

A run writes its files under a name of its own, then one version file that nobody else can have written, then moves the
pointer `CURRENT`. Whoever reads starts at the pointer, so that a run is seen whole or not at all; what a killed run
left is in no version, and goes with the next one. There is no other state: everything comes in exactly once.

    CURRENT                                   the number of the version that counts
    versions/000000000042.json                the files of every table
    batches/000000000042-3fa9…/lifecycle/…    what the run that made version 42 wrote
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import secrets
import time
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from agentpost.pipeline.files import Files
from agentpost.pipeline.ranges import Ranges, members, overlaps, ranges_of, size, without
from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "Attempt",
    "DataFile",
    "Version",
    "Warehouse",
    "hardly_repeats",
    "live_files",
    "replace_hours",
    "rows_within",
]

_POINTER: Final = "CURRENT"
_KEEP_VERSIONS: Final = 3
# Whoever began to read a version has so long to finish.
_KEEP_SECONDS: Final = 120
_UNIQUE: Final = frozenset({"event_id", "task_id", "corr_id", "seq", "place"})


class DataFile(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One Parquet file of a table. By hour: `hours` are those whose rows count, `is_partial` if others do not.

    `rows` are those that count; about so many, if others do not.
    """

    path: str
    rows: int
    size_bytes: int
    hours: Ranges = ()
    is_partial: bool = False


class Version(Struct, frozen=True, kw_only=True, rename="camel"):
    """All that a reader has to know. `batch` is how many runs with new events led here."""

    number: int
    attempt: str
    created_us: int
    now_us: int
    batch: int = 0
    events: int = 0
    newest_us: int = 0  # when the newest event that is read was made
    tables: dict[str, tuple[DataFile, ...]] = {}
    # Of the tables that Spark writes, as Spark tells them: so nobody has to open files to know.
    schemas: dict[str, str] = {}


class Attempt(Struct, frozen=True, kw_only=True):
    """A run under way: the version it wants to make, and the directory that is its own."""

    number: int
    name: str

    def directory(self, table: str) -> str:
        return f"batches/{self.number:012d}-{self.name}/{table}"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Version)


class Warehouse:
    """The tables at one place."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def current(self) -> Version | None:
        """The version that counts; None before the first run."""
        pointer = self.files.read(_POINTER)
        if pointer is None:
            return None
        return self._version(_number_of(pointer))

    def require(self) -> Version:
        version = self.current()
        if version is None:
            raise Refusal(
                Code.NOT_FOUND, f"there are no tables at {self.files.where} yet", hint="Run `agentpost pipeline run`."
            )
        return version

    def begin(self) -> Attempt:
        """Start a run: finish a version that only lacks its pointer, take away what killed runs left."""
        current = self.current()
        number = 0 if current is None else current.number
        while self.files.exists(_version_path(number + 1)):
            number += 1
            self._point(number)
        # Whoever wanted to make a later version is gone: there is one run at a time, and this is it.
        self._drop([name for name in self.files.directories("batches") if _number_of_directory(name) > number])
        return Attempt(number=number + 1, name=secrets.token_hex(6))

    def commit(self, attempt: Attempt, version: Version) -> None:
        """Make the version, but do not show it yet. What it names is on the disk before it is."""
        own = attempt.directory("")
        self.files.sync(file.path for files in version.tables.values() for file in files if file.path.startswith(own))
        if not self.files.create(_version_path(attempt.number), _encoder.encode(version)):
            raise Refusal(
                Code.CONFLICT,
                f"another run has written version {attempt.number} of {self.files.where}",
                hint="Run it again; what the other one read is not read twice.",
            )

    def publish(self, attempt: Attempt) -> None:
        """Show the version to readers."""
        self._point(attempt.number)

    def prune(self, *, keep: int = _KEEP_VERSIONS, keep_seconds: float = _KEEP_SECONDS) -> int:
        """Drop versions that nobody reads any more, and the files that only they name. Gives how many."""
        current = self.current()
        if current is None:
            return 0
        listed = [item.name for item in self.files.listing("versions")]
        numbers = sorted(_number_of_path(name) for name in listed if _is_version(name))
        oldest_us = int((time.time() - keep_seconds) * 1_000_000)
        dropped = 0
        for number in numbers[: max(0, len(numbers) - keep)]:
            if number >= current.number or self._version(number).created_us > oldest_us:
                break
            self.files.delete(_version_path(number))
            dropped += 1
        if dropped:
            self._drop_unnamed(self._version(numbers[dropped]))
        return dropped

    def described(self, directory: str, *, by_hour: bool) -> tuple[DataFile, ...]:
        """The files that were written into a directory, as a version names them; empty ones are left out."""
        found: list[DataFile] = []
        for item in sorted(self.files.listing(directory)):
            if not item.name.endswith(".parquet"):
                continue
            with pq.ParquetFile(self.files.at(item.name), filesystem=self.files.system) as file:
                rows = file.metadata.num_rows
                hours = _hours_in(file.read(columns=["hour"])["hour"]) if by_hour and rows else ()
            if rows:
                found.append(DataFile(path=item.name, rows=rows, size_bytes=item.size, hours=hours))
        return tuple(found)

    def write(
        self, attempt: Attempt, table: str, content: pa.Table, *, by_hour: bool = False, part: str = "0"
    ) -> tuple[DataFile, ...]:
        """Write a small table that is at hand; without rows there is no file. `part` tells several of them apart."""
        if content.num_rows == 0:
            return ()
        directory = attempt.directory(table)
        self.files.make_directory(directory)
        path = f"{directory}/part-{part}.parquet"
        # A list, which the stubs do not know.
        repeated = cast("Any", [name for name in content.column_names if not hardly_repeats(name)])
        where, system = self.files.at(path), self.files.system
        pq.write_table(content, where, filesystem=system, compression="zstd", use_dictionary=repeated)
        hours = _hours_in(content["hour"]) if by_hour else ()
        return (DataFile(path=path, rows=content.num_rows, size_bytes=self.files.size(path), hours=hours),)

    def read(
        self, version: Version | None, table: str, schema: pa.Schema | None = None, *, columns: list[str] | None = None
    ) -> pa.Table:
        """A table of a version, with pyarrow alone. The schema is for one without rows."""
        return self.rows(() if version is None else version.tables.get(table, ()), schema, columns=columns)

    def rows(
        self,
        files: Iterable[DataFile],
        schema: pa.Schema | None = None,
        *,
        columns: list[str] | None = None,
        hours: frozenset[int] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """The rows of these files that count, with pyarrow alone; those of some hours only, if hours are given."""
        parts = [self._part(file, columns, _live(file, hours, where)) for file in live_files(files, hours)]
        if not parts:
            empty = (schema or pa.schema([])).empty_table()
            return empty if columns is None else empty.select([name for name in columns if name in empty.column_names])
        return pa.concat_tables(parts, promote_options="default")

    def _part(self, file: DataFile, columns: list[str] | None, where: pc.Expression | None) -> pa.Table:
        path, system = self.files.at(file.path), self.files.system
        try:
            return pq.read_table(path, filesystem=system, partitioning=None, columns=columns, filters=where)
        except (pa.ArrowException, OSError) as problem:
            raise Refusal(
                Code.STORAGE_CORRUPT,
                f"{path} cannot be read: {str(problem).partition(chr(10))[0][:200]}",
                hint="Run `agentpost pipeline run --full`: the lake has everything.",
            ) from None

    def _version(self, number: int) -> Version:
        content = self.files.read(_version_path(number))
        try:
            if content is not None:
                return _decoder.decode(content)
        except msgspec.DecodeError:
            pass
        raise Refusal(
            Code.STORAGE_CORRUPT,
            f"version {number} of {self.files.where} cannot be read",
            hint="Remove the directory and run `agentpost pipeline run`: the lake has everything.",
        )

    def _point(self, number: int) -> None:
        self.files.replace(_POINTER, b'{"version": %d}\n' % number)

    def _drop_unnamed(self, oldest: Version) -> None:
        """Remove what only versions before the oldest one named. What it does not name, no later one names again."""
        named = {file.path.split("/")[1] for files in oldest.tables.values() for file in files}
        directories = self.files.directories("batches")
        self._drop([d for d in directories if d not in named and _number_of_directory(d) <= oldest.number])

    def _drop(self, directories: Iterable[str]) -> None:
        for directory in directories:
            if self.files.is_local or self._is_old(directory):
                self.files.delete_directory(f"batches/{directory}")

    def _is_old(self, directory: str) -> bool:
        """Without a lock a directory may be somebody's who is still at work."""
        newest = max((item.stamp for item in self.files.listing(f"batches/{directory}")), default=0)
        return newest < (time.time() - 86_400) * 1e9


def hardly_repeats(column: str) -> bool:
    """Whether each row has another value: a dictionary of them is made, grows too large and is given up."""
    return column in _UNIQUE or column.endswith(("_us", "_place"))


def live_files(files: Iterable[DataFile], hours: frozenset[int] | None = None) -> list[DataFile]:
    """The files that have rows of these hours; all of them without hours."""
    return [file for file in files if hours is None or overlaps(file.hours, hours)]


def rows_within(files: Iterable[DataFile], hours: frozenset[int] | None = None) -> int:
    """About how many rows of these hours the files have, taking each of their hours to be as full as the others."""
    if hours is None:
        return sum(file.rows for file in files)
    return sum(file.rows * size(file.hours, hours) // size(file.hours) for file in live_files(files, hours))


def replace_hours(files: Iterable[DataFile], hours: frozenset[int]) -> tuple[DataFile, ...]:
    """The files without the rows of these hours, which others replace. A file without live rows is left out."""
    kept: list[DataFile] = []
    for file in files:
        left = without(file.hours, hours)
        if left == file.hours:
            kept.append(file)
        elif left:
            rows = file.rows * size(left) // size(file.hours)
            kept.append(replace(file, rows=rows, hours=left, is_partial=True))
    return tuple(kept)


def _live(file: DataFile, hours: frozenset[int] | None, where: pc.Expression | None) -> pc.Expression | None:
    """Which rows of a file are wanted; None if all of them are. What is beside them is not read at all."""
    if hours is None and not file.is_partial:
        return where
    wanted = [hour for hour in members(file.hours) if hours is None or hour in hours]
    is_live = pc.field("hour").isin(pa.array(wanted, pa.int32()))
    return is_live if where is None else is_live & where


def _hours_in(column: pa.ChunkedArray) -> Ranges:
    return ranges_of(cast("list[int]", pc.unique(column).to_pylist()))


def _version_path(number: int) -> str:
    return f"versions/{number:012d}.json"


def _is_version(name: str) -> bool:
    file = name.rsplit("/", 1)[-1]
    return file.endswith(".json") and file.removesuffix(".json").isdigit()


def _number_of_path(name: str) -> int:
    return int(name.rsplit("/", 1)[-1].removesuffix(".json"))


def _number_of_directory(name: str) -> int:
    number = name.split("-", 1)[0]
    return int(number) if number.isdigit() else 0


def _number_of(pointer: bytes) -> int:
    try:
        return int(msgspec.json.decode(pointer)["version"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise Refusal(Code.STORAGE_CORRUPT, "the pointer of the warehouse cannot be read") from None
