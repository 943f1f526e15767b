"""`pipeline compact`: fewer and larger files, the same rows. A version like any other: readers notice nothing.

A run leaves the rows of an hour in few files; this joins the files of all hours, and drops the versions and files that
nobody reads.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import SparkSession

from agentpost.pipeline.frames import frame_of
from agentpost.pipeline.hours import Catalog
from agentpost.pipeline.ranges import members
from agentpost.pipeline.run import LOCK
from agentpost.pipeline.tables import SilverTable
from agentpost.pipeline.warehouse import DataFile, Version, Warehouse, replace_hours
from agentpost.pipeline.writing import PIECE_BYTES, TableWriter, side_by_side

__all__ = ["Compacted", "compact"]

# A file that is larger than this, and all of whose rows count, stays as it is.
_LARGE_BYTES: Final = 64 * 1024 * 1024
_ROWS_A_FILE: Final = 2_000_000


class Compacted(Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of the files."""

    version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    versions_dropped: int


def compact(
    spark: SparkSession,
    warehouse: Warehouse,
    *,
    catalog: Catalog | None = None,
    keep_versions: int = 1,
    at_phase: Callable[[str], None] = lambda _name: None,
) -> Compacted:
    """Join small files and merge partials, publish that as a version, and drop old ones."""
    catalog = catalog or Catalog()
    with warehouse.files.locked(LOCK):
        attempt = warehouse.begin()
        before = warehouse.require()
        at_phase("compact_begun")
        writer = TableWriter(spark, warehouse, attempt, before.schemas)
        tables = dict(before.tables)

        def merge(table: SilverTable) -> None:
            name = f"silver_{table.name}"
            tables[name] = _merged(spark, warehouse, writer, table, tables.get(name, ()))

        def join(name: str) -> None:
            tables[name] = _joined(spark, warehouse, writer, name, tables.get(name, ()))

        side_by_side(merge, catalog.silver)
        # Tables of the fleet that are made anew as a whole have no hours, and no more than a file each.
        of_fleet = [table.name for table in catalog.fleet if any(file.hours for file in tables.get(table.name, ()))]
        side_by_side(join, [*(table.name for table in catalog.gold), *of_fleet])
        at_phase("compact_written")
        after = replace(
            before,
            number=attempt.number,
            attempt=attempt.name,
            created_us=time.time_ns() // 1000,
            tables=tables,
            schemas=writer.schemas,
        )
        warehouse.commit(attempt, after)
        at_phase("compact_version")
        warehouse.publish(attempt)
        at_phase("compact_pointer")
        dropped = warehouse.prune(keep=keep_versions, keep_seconds=0)
        at_phase("compact_pruned")
    return Compacted(
        version=after.number,
        files_before=_count(before),
        files_after=_count(after),
        bytes_before=_bytes(before),
        bytes_after=_bytes(after),
        versions_dropped=dropped,
    )


def _merged(
    spark: SparkSession, warehouse: Warehouse, writer: TableWriter, table: SilverTable, files: Sequence[DataFile]
) -> tuple[DataFile, ...]:
    """One row for each key, for the hours that several files tell of; and the rows of poor files in few."""
    counts = Counter(hour for file in files for hour in members(file.hours))
    poor = _poor(files)
    of_poor = {hour for file in poor for hour in members(file.hours)} if len(poor) > 1 else set[int]()
    hours = frozenset(hour for hour, count in counts.items() if count > 1 or hour in of_poor)
    if not hours:
        return tuple(files)
    name = f"silver_{table.name}"
    rows = table.merge(frame_of(spark, warehouse, files, writer.schema(name), hours=hours))
    rows = rows.coalesce(_parts(files)).sortWithinPartitions("hour")
    written = writer.write(name, rows, piece_bytes=PIECE_BYTES)
    return (*replace_hours(files, hours), *written)


def _joined(
    spark: SparkSession, warehouse: Warehouse, writer: TableWriter, name: str, files: Sequence[DataFile]
) -> tuple[DataFile, ...]:
    """The rows of small files, and of those with dead rows, in few files."""
    poor = _poor(files)
    if len(poor) < 2:
        return tuple(files)
    rows = frame_of(spark, warehouse, poor, writer.schema(name))
    written = writer.write(name, rows.coalesce(_parts(poor)).sortWithinPartitions("hour"))
    return (*(file for file in files if file not in poor), *written)


def _poor(files: Sequence[DataFile]) -> list[DataFile]:
    """Small files, and those with dead rows."""
    return [file for file in files if file.is_partial or file.size_bytes < _LARGE_BYTES]


def _parts(files: Sequence[DataFile]) -> int:
    return max(1, sum(file.rows for file in files) // _ROWS_A_FILE)


def _count(version: Version) -> int:
    return sum(len(files) for files in version.tables.values())


def _bytes(version: Version) -> int:
    return sum(file.size_bytes for files in version.tables.values() for file in files)
