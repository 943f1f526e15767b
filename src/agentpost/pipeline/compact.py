"""`pipeline compact`: fewer and larger files, the same rows; and files that no reader needs any more are deleted.

A batch leaves the rows of an hour in few files; this joins the small ones of each table. It is a snapshot like any other:
readers notice nothing.
"""

import time
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from agentpost.pipeline.frames import files_frame
from agentpost.pipeline.run import LOCK
from agentpost.pipeline.settings import batch_settings
from agentpost.pipeline.warehouse import Warehouse

__all__ = ["Compacted", "compact"]

# A larger file stays as it is.
_SMALL_BYTES: Final = 16 * 1024 * 1024
_JOINED_BYTES: Final = 64 * 1024 * 1024


class Compacted(Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of the files."""

    version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    files_deleted: int


def compact(spark: SparkSession, warehouse: Warehouse) -> Compacted:
    """Join the small files of each table; then delete those that were superseded a day ago, and leftovers."""
    with warehouse.files.locked(LOCK), batch_settings(spark):
        before = warehouse.require()
        batch = warehouse.begin()
        versions: dict[str, int] = {}
        sizes = [0, 0, 0, 0]
        for name in sorted(before.tables):
            live = warehouse.live(before, name)
            small = sorted(path for path, file in live.items() if file.size_bytes < _SMALL_BYTES)
            sizes[0] += len(live)
            sizes[1] += sum(file.size_bytes for file in live.values())
            total = sum(live[path].size_bytes for path in small)
            parts = max(1, -(-total // _JOINED_BYTES))
            if len(small) > parts:
                table = warehouse.open(before, name)
                assert table is not None  # noqa: S101 - it is in the snapshot
                schema = warehouse.schema(table)
                rows = files_frame(spark, warehouse, name, small, from_arrow_schema(schema))
                rows = rows.repartitionByRange(parts, "hour") if "hour" in rows.columns else rows.coalesce(parts)
                rows.write.mode("append").parquet(warehouse.files.url(f"{name}/{batch.name}"))
                adds = warehouse.written(batch, name)
                versions[name] = warehouse.commit(batch, name, before=before, adds=adds, gone=small, schema=schema)
                live = {path: file for path, file in live.items() if path not in small} | {f.path: f for f in adds}
            sizes[2] += len(live)
            sizes[3] += sum(file.size_bytes for file in live.values())
        after = replace(
            before, number=batch.number, created_us=time.time_ns() // 1000, tables={**before.tables, **versions}
        )
        warehouse.publish(batch, after, before=before)
        deleted = warehouse.vacuum(keep=(before, after))
    return Compacted(
        version=after.number,
        files_before=sizes[0],
        bytes_before=sizes[1],
        files_after=sizes[2],
        bytes_after=sizes[3],
        files_deleted=deleted,
    )
