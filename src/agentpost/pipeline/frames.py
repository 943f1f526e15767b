"""Files as DataFrames: the events of segments, and the tables of a version. Always with the schema at hand: no job and
no opened file before there is work to do."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from agentpost.lake.schema import SEGMENT
from agentpost.pipeline.files import Files
from agentpost.pipeline.ranges import members
from agentpost.pipeline.warehouse import DataFile, Version, Warehouse, live_files

__all__ = ["bronze_events", "bronze_rows", "bronze_schema", "frame_of", "local_frame", "table_frame"]

_SEALED: Final = ("chain", "body")
_OUTBOX: Final = "outbox"
_OF_PATHS: Final = ("node", "epoch")


def bronze_schema(*, with_bodies: bool = False) -> StructType:
    """The columns of a segment, and the node and epoch that its path tells."""
    columns = SEGMENT if with_bodies else pa.schema([field for field in SEGMENT if field.name not in _SEALED])
    found = from_arrow_schema(columns)
    fields = [StructField(f.name, _loose(f.dataType)) for f in found.fields]
    return StructType([*fields, StructField("node", StringType()), StructField("epoch", StringType())])


def bronze_events(
    spark: SparkSession, lake: Files, segments: Iterable[dict[str, Any]], *, with_bodies: bool = False
) -> DataFrame:
    """The events of these rows of `segments`: every seq once, as the slices say."""
    whole: list[str] = []
    sliced: list[tuple[str, int, int]] = []
    for row in segments:
        slices = list(zip(row["slice_first"], row["slice_last"], strict=True))
        if slices == [(row["first_seq"], row["last_seq"])]:
            whole.append(row["path"])
        else:
            sliced += [(row["path"], first, last) for first, last in slices]
    schema = bronze_schema(with_bodies=with_bodies)
    events = _read(spark, lake, whole, schema)
    if not sliced:
        return events
    names = sorted({path for path, _, _ in sliced})
    some = _read(spark, lake, names, schema).withColumn(
        "_file", sf.element_at(sf.split("_metadata.file_path", "/"), -1)
    )
    wanted = spark.createDataFrame(
        [(path.rsplit("/", 1)[-1], *_outbox_of(path), first, last) for path, first, last in sliced],
        "_name string, _node string, _epoch string, _first bigint, _last bigint",
    )
    match = (
        (sf.col("_file") == sf.col("_name"))
        & (sf.col("node") == sf.col("_node"))
        & (sf.col("epoch") == sf.col("_epoch"))
        & sf.col("seq").between(sf.col("_first"), sf.col("_last"))
    )
    cut = some.join(sf.broadcast(wanted), match, how="inner").select(*schema.names)
    return events.unionByName(cut) if whole else cut


def bronze_rows(lake: Files, segments: Iterable[dict[str, Any]]) -> pa.Table:
    """The same events as `bronze_events` has, for the driver."""
    schema = to_arrow_schema(bronze_schema())
    columns = [name for name in schema.names if name not in _OF_PATHS]
    parts = [schema.empty_table()]
    for row in segments:
        rows = pq.read_table(lake.at(row["path"]), filesystem=lake.system, partitioning=None, columns=columns)
        slices = list(zip(row["slice_first"], row["slice_last"], strict=True))
        cut = [rows.slice(first - row["first_seq"], last - first + 1) for first, last in slices]
        whole = pa.concat_tables(cut)
        for name, value in zip(_OF_PATHS, _outbox_of(row["path"]), strict=True):
            whole = whole.append_column(name, pa.repeat(value, whole.num_rows))
        parts.append(whole.select(schema.names).cast(schema))
    return pa.concat_tables(parts)


def _read(spark: SparkSession, lake: Files, names: Sequence[str], schema: StructType) -> DataFrame:
    if not names:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", lake.url(_OUTBOX))
    return reader.parquet(*[lake.url(name) for name in names])


def _outbox_of(path: str) -> tuple[str, str]:
    _, node, epoch, _ = path.split("/")
    return unquote(node.removeprefix("node=")), unquote(epoch.removeprefix("epoch="))


def table_frame(spark: SparkSession, warehouse: Warehouse, version: Version, table: str) -> DataFrame:
    """A table of a version."""
    schema = StructType.fromJson(msgspec.json.decode(version.schemas[table]))
    return frame_of(spark, warehouse, version.tables.get(table, ()), schema)


def frame_of(
    spark: SparkSession,
    warehouse: Warehouse,
    files: Iterable[DataFile],
    schema: StructType,
    *,
    hours: frozenset[int] | None = None,
) -> DataFrame:
    """The rows of these files that count; those of some hours only, if hours are given."""
    wanted = live_files(files, hours)
    whole = [file for file in wanted if not file.is_partial]
    partial = [file for file in wanted if file.is_partial]
    # Where all hours of a file are wanted, no row has to be asked for its own.
    covered = [file for file in whole if hours is None or hours.issuperset(members(file.hours))]
    others = [file for file in whole if file not in covered]
    frames: list[DataFrame] = []
    if covered:
        frames.append(_paths(spark, warehouse, covered, schema))
    if others:
        frames.append(_of_hours(_paths(spark, warehouse, others, schema), hours))
    if partial:
        frames.append(_live_rows(spark, _paths(spark, warehouse, partial, schema), partial, hours))
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.unionByName, frames)


def local_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A small table that the driver has."""
    if not table.num_rows:
        return spark.createDataFrame([], from_arrow_schema(table.schema))
    # In one piece: of what follows an empty piece, Spark reads nothing.
    return spark.createDataFrame(cast("Any", table.combine_chunks()))


def _paths(spark: SparkSession, warehouse: Warehouse, files: Sequence[DataFile], schema: StructType) -> DataFrame:
    return spark.read.schema(schema).parquet(*[warehouse.files.url(file.path) for file in files])


def _of_hours(frame: DataFrame, hours: frozenset[int] | None) -> DataFrame:
    return frame if hours is None else frame.where(sf.col("hour").isin(*sorted(hours)))


def _live_rows(
    spark: SparkSession, frame: DataFrame, files: Sequence[DataFile], hours: frozenset[int] | None
) -> DataFrame:
    """The rows of hours that other files have not replaced."""
    live = [
        ("/".join(file.path.split("/")[1:]), hour)
        for file in files
        for hour in members(file.hours)
        if hours is None or hour in hours
    ]
    columns = frame.columns
    pairs = spark.createDataFrame(live, "_live_file string, _live_hour int")
    # Where a file lies is told from its run on: part-00000 alone would be the name of many.
    place = sf.concat_ws("/", sf.slice(sf.split("_metadata.file_path", "/"), -3, 3))
    marked = _of_hours(frame.withColumn("_place", place), hours)
    match = (sf.col("_place") == sf.col("_live_file")) & (sf.col("hour") == sf.col("_live_hour"))
    return marked.join(sf.broadcast(pairs), match, how="left_semi").select(*columns)


def _loose(kind: DataType) -> DataType:
    """Lists whose elements may be null: how a file writes that down is no reason not to read it."""
    return ArrayType(kind.elementType, containsNull=True) if isinstance(kind, ArrayType) else kind
