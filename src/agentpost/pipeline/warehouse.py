"""The warehouse: Delta tables side by side, and a table of snapshots that says which versions of them belong together.

A batch commits table after table and writes its snapshot last. A reader that begins at the snapshot sees a batch whole
or not at all; what a batch that was cut off committed is in no snapshot, and the next batch takes it back.

    _snapshots/_delta_log/          one commit for each snapshot, without files
    lifecycle/_delta_log/           each table is a Delta table that other programs read by themselves
    lifecycle/batch-00000042-3fa9…/ the files that batch 42 wrote
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from msgspec import Struct

from agentpost.pipeline.delta import Conflict, TableFile, commit, described, last_number, live_files, open_table
from agentpost.pipeline.files import Files
from agentpost.protocol.errors import Code, Refusal

__all__ = ["Batch", "Snapshot", "Warehouse"]

SNAPSHOTS: Final = "_snapshots"
_TOLD: Final = "snapshot"
_SCHEMA: Final = pa.schema([("number", pa.int64())])
# A reader that began with an older snapshot finds its files for so long.
_KEEP_HOURS: Final = 24


class Snapshot(Struct, frozen=True, kw_only=True, rename="camel"):
    """The versions of all tables that belong together. `batch` is how many batches with new events led here."""

    number: int
    created_us: int
    now_us: int
    batch: int = 0
    events: int = 0
    newest_us: int = 0  # when the newest event that is read was made
    tables: dict[str, int] = {}
    # What the batch took in, and how long its phases took.
    new_events: int = 0
    new_segments: int = 0
    seconds: dict[str, float] = {}
    # What each table was computed with: when it changes, the table is computed anew.
    formulas: dict[str, str] = {}


class Batch(Struct, frozen=True, kw_only=True):
    """A batch under way: its number, and the name of the directories that are its own."""

    number: int
    name: str


_decoder = msgspec.json.Decoder(Snapshot)


class Warehouse:
    """The tables at one place."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def current(self) -> Snapshot | None:
        """The newest snapshot; None before the first batch."""
        table = open_table(self.files, SNAPSHOTS)
        return None if table is None else self._snapshot(table)

    def require(self) -> Snapshot:
        snapshot = self.current()
        if snapshot is None:
            raise Refusal(
                Code.NOT_FOUND, f"there are no tables at {self.files.where} yet", hint="Run `agentpost pipeline run`."
            )
        return snapshot

    def begin(self) -> Batch:
        """A number that no batch had, not even one that came to nothing."""
        tables = self.files.directories("")
        numbers = [last_number(open_table(self.files, name)) for name in tables]
        number = 1 + max(numbers, default=0)
        return Batch(number=number, name=f"batch-{number:08d}-{secrets.token_hex(6)}")

    def write(self, batch: Batch, table: str, rows: pa.Table) -> list[TableFile]:
        """Write rows that are at hand as a file of the batch; without rows there is no file."""
        if not rows.num_rows:
            return []
        directory = f"{table}/{batch.name}"
        self.files.make_directory(directory)
        path = f"{directory}/part-{secrets.token_hex(4)}.parquet"
        pq.write_table(rows, self.files.at(path), filesystem=self.files.system, compression="zstd")
        return [file for file in described(self.files, table, batch.name) if path.endswith(file.path)]

    def written(self, batch: Batch, table: str) -> list[TableFile]:
        """The files that Spark wrote for a table in a batch, safe on the disk."""
        found = described(self.files, table, batch.name)
        self.files.sync(f"{table}/{file.path}" for file in found)
        return found

    def commit(
        self,
        batch: Batch,
        table: str,
        *,
        before: Snapshot | None,
        adds: Sequence[TableFile],
        gone: Iterable[str] = (),
        schema: pa.Schema,
    ) -> int:
        """Commit a table as it is in the snapshot before, with files added and removed. Gives its version."""
        based_on = None if before is None else before.tables.get(table)
        return commit(self.files, table, batch.number, based_on=based_on, adds=adds, gone=gone, schema=schema)

    def publish(self, batch: Batch, snapshot: Snapshot, *, before: Snapshot | None) -> None:
        """Show the batch to readers, if `before` is still the newest snapshot: one writer wins, whatever the store."""
        table = open_table(self.files, SNAPSHOTS)
        newest = None if table is None else self._snapshot(table)
        if newest != before:
            raise Conflict(self.files.where, "its snapshot is newer than what this batch began with")
        told = {_TOLD: msgspec.json.encode(snapshot).decode()}
        version = None if table is None else table.version()
        commit(self.files, SNAPSHOTS, batch.number, based_on=version, schema=_SCHEMA, told=told, is_next=True)

    def open(self, snapshot: Snapshot | None, table: str) -> DeltaTable | None:
        """A table as of a snapshot; None if the snapshot does not have it."""
        version = None if snapshot is None else snapshot.tables.get(table)
        return None if version is None else open_table(self.files, table, version=version)

    def schema(self, table: DeltaTable) -> pa.Schema:
        """The columns of a table."""
        return cast("Any", table.to_pyarrow_dataset()).schema

    def live(self, snapshot: Snapshot | None, table: str) -> dict[str, TableFile]:
        """The files of a table as of a snapshot, by path."""
        return live_files(self.open(snapshot, table))

    def read(
        self,
        snapshot: Snapshot | None,
        table: str,
        schema: pa.Schema | None = None,
        *,
        columns: list[str] | None = None,
        where: ds.Expression | None = None,
    ) -> pa.Table:
        """The rows of a table, without Spark. `schema` is for a table that the snapshot does not have."""
        found = self.open(snapshot, table)
        if found is None:
            empty = (schema or pa.schema([])).empty_table()
            return empty if columns is None else empty.select([name for name in columns if name in empty.column_names])
        try:
            rows = cast("Any", found.to_pyarrow_dataset()).to_table(columns=columns, filter=where)
        except (pa.ArrowException, OSError, DeltaError) as problem:
            raise Refusal(
                Code.STORAGE_CORRUPT,
                f"the table {table} at {self.files.where} cannot be read: {str(problem).partition(chr(10))[0][:200]}",
                hint="Run `agentpost pipeline run --full`: the lake has everything.",
            ) from None
        return rows

    def vacuum(self, *, keep: Sequence[Snapshot], hours: int = _KEEP_HOURS) -> int:
        """Delete files that were superseded longer ago than that, and those of batches that came to nothing.

        The files of the snapshots in `keep` stay. Gives how many files went.
        """
        gone = 0
        for name in sorted({name for snapshot in keep for name in snapshot.tables}):
            table = open_table(self.files, name)
            if table is not None:
                pinned = sorted({snapshot.tables[name] for snapshot in keep if name in snapshot.tables})
                gone += len(
                    table.vacuum(
                        hours, dry_run=False, enforce_retention_duration=False, full=True, keep_versions=pinned
                    )
                )
        return gone

    def _snapshot(self, table: DeltaTable) -> Snapshot:
        (newest,) = table.history(1)
        try:
            return _decoder.decode(newest[_TOLD])
        except (KeyError, TypeError, msgspec.DecodeError):
            raise Refusal(
                Code.STORAGE_CORRUPT,
                f"the newest snapshot of {self.files.where} cannot be read",
                hint="Remove the directory and run `agentpost pipeline run`: the lake has everything.",
            ) from None
