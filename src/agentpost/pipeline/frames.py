"""Files as DataFrames: the events of segments, and files of tables. Always with the schema at hand: no job and no opened
file before there is work to do."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from agentpost.lake.schema import SEGMENT
from agentpost.pipeline.files import Files
from agentpost.pipeline.ledger import Segment
from agentpost.pipeline.warehouse import Snapshot, Warehouse

__all__ = ["bronze_events", "bronze_schema", "files_frame", "local_frame", "of_hours", "table_frame"]

_SEALED: Final = ("chain", "body")
_OUTBOX: Final = "outbox"


def bronze_schema(*, with_bodies: bool = False) -> StructType:
    """The columns of a segment, and the node and epoch that its path tells."""
    columns = SEGMENT if with_bodies else pa.schema([field for field in SEGMENT if field.name not in _SEALED])
    found = from_arrow_schema(columns)
    fields = [StructField(f.name, _loose(f.dataType)) for f in found.fields]
    return StructType([*fields, StructField("node", StringType()), StructField("epoch", StringType())])


def bronze_events(
    spark: SparkSession, lake: Files, segments: Iterable[Segment], *, with_bodies: bool = False
) -> DataFrame:
    """The events of these segments: every seq once, as the slices say."""
    whole = [each.path for each in segments if each.slices == (each.seqs,)]
    sliced = [(each, first, last) for each in segments if each.slices != (each.seqs,) for first, last in each.slices]
    schema = bronze_schema(with_bodies=with_bodies)
    events = _read(spark, lake, whole, schema)
    if not sliced:
        return events
    names = sorted({each.path for each, _, _ in sliced})
    some = _read(spark, lake, names, schema).withColumn(
        "_file", sf.expr("element_at(split(_metadata.file_path, '/'), -1)")
    )
    wanted = spark.createDataFrame(
        [(each.path.rsplit("/", 1)[-1], each.node, each.epoch, first, last) for each, first, last in sliced],
        "_name string, _node string, _epoch string, _first bigint, _last bigint",
    )
    match = sf.expr("_file = _name and node = _node and epoch = _epoch and seq between _first and _last")
    cut = some.join(sf.broadcast(wanted), match, how="inner").select(*schema.names)
    return events.unionByName(cut) if whole else cut


def table_frame(spark: SparkSession, warehouse: Warehouse, snapshot: Snapshot, table: str) -> DataFrame:
    """A table of a snapshot."""
    found = warehouse.open(snapshot, table)
    if found is None:
        raise KeyError(table)
    schema = from_arrow_schema(warehouse.schema(found))
    return files_frame(spark, warehouse, table, list(warehouse.live(snapshot, table)), schema)


def files_frame(
    spark: SparkSession, warehouse: Warehouse, table: str, paths: Sequence[str], schema: StructType
) -> DataFrame:
    """The rows of these files of a table."""
    loose = StructType([StructField(field.name, _loose(field.dataType)) for field in schema.fields])
    if not paths:
        return spark.createDataFrame([], loose)
    return spark.read.schema(loose).parquet(*[warehouse.files.url(f"{table}/{path}") for path in paths])


def of_hours(rows: DataFrame, hours: Iterable[int], *, is_in: bool = True) -> DataFrame:
    """The rows of these hours, or all others."""
    listed = ", ".join(map(str, sorted(hours)))
    if not listed:
        return rows.where("false") if is_in else rows
    return rows.where(f"hour {'in' if is_in else 'not in'} ({listed})")


def local_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A small table that the driver has."""
    if not table.num_rows:
        return spark.createDataFrame([], from_arrow_schema(table.schema))
    # In one piece: of what follows an empty piece, Spark reads nothing.
    return spark.createDataFrame(cast("Any", table.combine_chunks()))


def _read(spark: SparkSession, lake: Files, names: Sequence[str], schema: StructType) -> DataFrame:
    if not names:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", lake.url(_OUTBOX))
    return reader.parquet(*[lake.url(name) for name in names])


def _loose(kind: DataType) -> DataType:
    """Lists whose elements may be null: how a file writes that down is no reason not to read it."""
    if isinstance(kind, ArrayType):
        return ArrayType(_loose(kind.elementType), containsNull=True)
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _loose(field.dataType)) for field in kind.fields])
    return kind
