"""`spark.read.format("agentpost")`: the events of a lake in anybody's own Spark, in batch and as a stream.

    from agentpost.pipeline.source import register
    register(spark)
    events = spark.read.format("agentpost").load("s3://bucket/lake")
    events.where("node = 'lab-jane' and kind = 'ack'").groupBy("ack_type").count().show()

The rows are those of the segments, with the node and the epoch of the outbox. Filters on node, epoch and seq choose the
segments, those on other plain columns are applied while a segment is read, before Spark sees a row. Segments are read
as Arrow batches, one task each; only those whose manifest is there count. Bulk work over everything is quicker with
Spark's own Parquet reader over the same files.
"""

# Neither PySpark nor pyarrow says much about its types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false, reportMissingTypeStubs=false

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.place import open_lake
from agentpost.lake.schema import SEGMENT
from agentpost.lake.segments import manifests, outboxes
from agentpost.protocol.errors import Code, Refusal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["AgentpostSource", "register"]

_NAME: Final = "agentpost"
_PATH: Final = "path"
_BODY: Final = "body"
_MAX_ROWS: Final = 10_000
_SCHEMA: Final = pa.schema(
    [pa.field("node", pa.string(), nullable=False), pa.field("epoch", pa.string(), nullable=False), *SEGMENT]
)
_PLAIN: Final = frozenset(
    field.name
    for field in _SCHEMA
    if pa.types.is_string(field.type) or pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)
)
_COMPARISONS: Final[dict[type[Filter], str]] = {
    EqualTo: "equal",
    EqualNullSafe: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
    In: "is_in",
}

# (column, comparison, value): what every row has to satisfy.
Condition = tuple[str, str, Any]


def register(spark: "SparkSession") -> None:
    """Let this session read lakes with `format("agentpost")`, filters included."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(AgentpostSource)


class _Segment(InputPartition):
    """One segment, or the part of it that a stream has not read yet."""

    def __init__(self, *, path: str, node_id: str, epoch: str, after_seq: int, through_seq: int) -> None:
        super().__init__(path)
        self.path = path
        self.node_id = node_id
        self.epoch = epoch
        self.after_seq = after_seq
        self.through_seq = through_seq


class AgentpostSource(DataSource):
    """Options: `path`, the lake; `body`, whether the events' own bytes are wanted (true)."""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> "StructType":
        return from_arrow_schema(_wanted(self.options))

    def reader(self, schema: "StructType") -> DataSourceReader:
        return _LakeReader(_lake_of(self.options), _as_spark_wants(schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _LakeStream(_lake_of(self.options), _as_spark_wants(schema))


class _LakeReader(DataSourceReader):
    def __init__(self, lake: str, schema: pa.Schema) -> None:
        self._lake = lake
        self._schema = schema
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for each in filters:
            condition = _condition(each)
            if condition is None:
                yield each
            else:
                self._conditions.append(condition)

    def partitions(self) -> Sequence[InputPartition]:
        return [
            _part(manifest, manifest.first_seq - 1)
            for manifest in _all_manifests(self._lake)
            if self._may_match(manifest)
        ]

    def _may_match(self, manifest: SegmentManifest) -> bool:
        """Whether a segment can have a row that is wanted, as far as its manifest says."""
        spans = {
            "node": (manifest.node_id, manifest.node_id),
            "epoch": (manifest.epoch, manifest.epoch),
            "seq": (manifest.first_seq, manifest.last_seq),
        }
        return all(name not in spans or _overlaps(spans[name], how, value) for name, how, value in self._conditions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._lake, cast(_Segment, partition), self._schema, self._conditions)


class _LakeStream(DataSourceStreamReader):
    """The same as a stream. An offset says for each outbox through which seq it was read."""

    def __init__(self, lake: str, schema: pa.Schema) -> None:
        self._lake = lake
        self._schema = schema

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {_outbox(manifest): manifest.last_seq for manifest in _all_manifests(self._lake)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [
            _part(manifest, after_seq, through_seq=end[_outbox(manifest)])
            for manifest in _all_manifests(self._lake)
            if manifest.last_seq > (after_seq := start.get(_outbox(manifest), 0))
            and manifest.first_seq <= end.get(_outbox(manifest), 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._lake, cast(_Segment, partition), self._schema, [])


def _read(lake: str, segment: _Segment, schema: pa.Schema, conditions: Sequence[Condition]) -> Iterator[pa.RecordBatch]:
    content = open_lake(lake).read(segment.path)
    if content is None:
        raise Refusal(Code.NOT_FOUND, f"{segment.path} is not in the lake any more")
    file = pq.ParquetFile(pa.BufferReader(content))
    conditions = [*conditions, ("seq", "greater", segment.after_seq), ("seq", "less_equal", segment.through_seq)]
    read = [name for name in schema.names if name in SEGMENT.names]
    # What is only asked about is read as well, and dropped before Spark sees it.
    asked = [name for name, _, _ in conditions if name in SEGMENT.names and name not in read]
    for batch in file.iter_batches(batch_size=_MAX_ROWS, columns=[*read, *asked]):
        whole = pa.Table.from_batches([batch])
        for name, value in (("epoch", segment.epoch), ("node", segment.node_id)):
            whole = whole.add_column(0, name, pa.array([value] * whole.num_rows, pa.string()))
        for name, how, value in conditions:
            whole = whole.filter(_mask(whole.column(name), how, value))
        if whole.num_rows:
            yield from whole.select(schema.names).cast(schema).to_batches()


def _mask(column: pa.ChunkedArray, how: str, value: Any) -> Any:
    if how == "is_in":
        return pc.is_in(column, value_set=pa.array(value, column.type))
    return getattr(pc, how)(column, pa.scalar(value, column.type))


def _condition(wanted: Filter) -> Condition | None:
    """The filter as a condition, if it is one that a segment can answer exactly."""
    how = _COMPARISONS.get(type(wanted))
    attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
    value: Any = getattr(wanted, "value", None)
    if how is None or len(attribute) != 1 or attribute[0] not in _PLAIN or value is None:
        return None
    return attribute[0], how, list(value) if how == "is_in" else value


def _overlaps(span: tuple[Any, Any], how: str, value: Any) -> bool:
    first, last = span
    match how:
        case "equal":
            return first <= value <= last
        case "is_in":
            return any(first <= each <= last for each in value)
        case "greater":
            return last > value
        case "greater_equal":
            return last >= value
        case "less":
            return first < value
        case _:
            return first <= value


def _all_manifests(lake: str) -> Iterator[SegmentManifest]:
    place = open_lake(lake)
    for node_id, epoch in outboxes(place):
        yield from manifests(place, node_id, epoch)


def _part(manifest: SegmentManifest, after_seq: int, *, through_seq: int | None = None) -> _Segment:
    return _Segment(
        path=manifest.path,
        node_id=manifest.node_id,
        epoch=manifest.epoch,
        after_seq=after_seq,
        through_seq=manifest.last_seq if through_seq is None else min(manifest.last_seq, through_seq),
    )


def _outbox(manifest: SegmentManifest) -> str:
    return f"{manifest.node_id}/{manifest.epoch}"


def _wanted(options: Any) -> pa.Schema:
    if str(options.get(_BODY, "true")).lower() == "true":
        return _SCHEMA
    return pa.schema([field for field in _SCHEMA if field.name not in (_BODY, "chain")])


def _as_spark_wants(schema: "StructType") -> pa.Schema:
    """Spark takes a batch only if its schema is this one to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def _lake_of(options: Any) -> str:
    lake = options.get(_PATH)
    if not lake:
        raise Refusal(
            Code.INVALID_FIELD, "the path of the lake is missing", field=_PATH, hint='Use .load("/path/to/lake").'
        )
    return str(lake)
