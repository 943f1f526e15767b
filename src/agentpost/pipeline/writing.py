"""DataFrames into the files of a run under way."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from agentpost.pipeline.warehouse import Attempt, DataFile, Warehouse, hardly_repeats

__all__ = ["PIECE_BYTES", "TableWriter", "side_by_side"]

_AT_ONCE: Final = 6
_SMALL_ROWS: Final = 5_000
_MOST_SMALL: Final = 24
# Row groups of tables that are read by the hour. pyarrow reads whole ones, so small ones leave less to read.
PIECE_BYTES: Final = 2 * 1024 * 1024

Item = TypeVar("Item")
Result = TypeVar("Result")


class TableWriter:
    """Writes tables for one attempt, and remembers their schemas."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse, attempt: Attempt, schemas: dict[str, str]) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self.attempt = attempt
        self.schemas = dict(schemas)

    def write(
        self,
        table: str,
        rows: DataFrame,
        *,
        by_hour: bool = True,
        part: str = "",
        piece_bytes: int | None = None,
    ) -> tuple[DataFile, ...]:
        """Run what these rows are made of, and write them. `part` tells several writes of one table apart.

        `piece_bytes`: in pieces of about that size, since single hours will be read.
        """
        self.schemas[table] = rows.schema.json()
        self._spark.sparkContext.setJobDescription(table)
        directory = self.attempt.directory(table + part)
        plain = {f"parquet.enable.dictionary#{name}": "false" for name in rows.columns if hardly_repeats(name)}
        pieces = {} if piece_bytes is None else {"parquet.block.size": str(piece_bytes)}
        rows.write.options(**plain, **pieces).parquet(self._warehouse.files.url(directory))
        return self._warehouse.described(directory, by_hour=by_hour)

    def write_rows(self, table: str, rows: pa.Table, schema: str | None = None) -> tuple[DataFile, ...]:
        """Write rows of a table of the hours that the driver has; the schema is as Spark tells it."""
        if schema is not None:
            self.schemas[table] = schema
        return self._warehouse.write(self.attempt, table, rows, by_hour=True)

    def joined(self, table: str, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
        """The files of a table with hours; if many of them are small, one takes their place: each would be opened."""
        small = [file for file in files if file.rows < _SMALL_ROWS]
        if len(small) <= _MOST_SMALL:
            return tuple(files)
        rows = self._warehouse.rows(small).sort_by("hour")
        whole = self._warehouse.write(self.attempt, f"{table}-joined", rows, by_hour=True)
        return (*(file for file in files if file not in small), *whole)

    def write_small(self, table: str, rows: pa.Table, *, by_hour: bool = False) -> tuple[DataFile, ...]:
        """Write rows that the driver has."""
        self.schemas[table] = from_arrow_schema(rows.schema).json()
        return self._warehouse.write(self.attempt, table, rows, by_hour=by_hour)

    def schema(self, table: str) -> StructType:
        return StructType.fromJson(msgspec.json.decode(self.schemas[table]))


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Do all of it at once: where there is little to do, Spark's jobs wait more than they work."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _AT_ONCE)) as pool:
        return list(pool.map(work, items))
