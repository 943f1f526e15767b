"""Manifests checked in the Python workers of Spark: one partition a share, one row of the ledger back for each."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from agentpost.lake.schema import FACTS
from agentpost.pipeline.checking import Checked, Claim, check_manifest
from agentpost.pipeline.files import Files, Listed
from agentpost.pipeline.ledger import SEGMENTS, Segment

__all__ = ["LOGGED", "check_manifests", "read_logs", "rows_of_log"]

_names: Final = pa.list_(pa.field("element", pa.string()))
_CHECKED: Final = pa.schema([*SEGMENTS, pa.field("names", _names)])
_CLAIMS: Final = pa.schema(
    [("name", pa.string()), ("size", pa.int64()), ("stamp", pa.int64()), ("since_us", pa.int64())]
)
# The rows of change logs; `problem` is why a log cannot be read.
LOGGED: Final = pa.schema(
    [
        ("log", pa.string()),
        *[pa.field(field.name, field.type) for field in FACTS],
        ("problem", pa.string()),
    ]
)
# A share is small enough that the cores end at about the same time.
_SEGMENTS_A_SHARE: Final = 8
_MOST_SHARES: Final = 512


def check_manifests(
    spark: SparkSession, lake: Files, claims: Sequence[Claim], keys: Mapping[str, Sequence[str]], *, now_us: int
) -> list[Checked]:
    """Check each of them."""
    where, known = lake.where, dict(keys)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = Files(where)
        for batch in batches:
            found = [check_manifest(files, Claim(**row), known, now_us=now_us) for row in batch.to_pylist()]
            rows = [{**each.segment.row(), "names": sorted(each.names)} for each in found]
            yield from pa.Table.from_pylist(rows, _CHECKED).to_batches()

    if not claims:
        return []
    shares = min(-(-len(claims) // _SEGMENTS_A_SHARE), _MOST_SHARES)
    named = _frame(spark, pa.Table.from_pylist([_row(claim) for claim in claims], _CLAIMS)).repartition(shares, "name")
    told = cast("pa.Table", named.mapInArrow(cast("Any", check), from_arrow_schema(_CHECKED)).toArrow())
    return [Checked(Segment.of(row), frozenset(row["names"])) for row in told.to_pylist()]


def read_logs(spark: SparkSession, lake: Files, logs: Sequence[Listed]) -> DataFrame:
    """The rows of these change logs; one row with the problem for a log that cannot be read."""
    where = lake.where

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = Files(where)
        for batch in batches:
            for name in batch["name"].to_pylist():
                yield from rows_of_log(files, name).to_batches()

    names = pa.table({"name": pa.array([log.name for log in logs], pa.string())})
    shares = max(1, min(len(logs) // _SEGMENTS_A_SHARE, _MOST_SHARES))
    return _frame(spark, names).repartition(shares).mapInArrow(cast("Any", read), from_arrow_schema(LOGGED))


def rows_of_log(files: Files, name: str) -> pa.Table:
    """The rows of a change log, or one row with why it cannot be read."""
    try:
        table = (
            pq.read_table(files.at(name), filesystem=files.system, partitioning=None).select(FACTS.names).cast(FACTS)
        )
    except (pa.ArrowException, OSError, KeyError, ValueError) as problem:
        said = f"the change log cannot be read: {(str(problem).splitlines() or [''])[0][:200]}"
        return pa.Table.from_pylist([{"log": name, "problem": said}], LOGGED)
    named = table.add_column(0, "log", pa.repeat(name, table.num_rows))
    return named.append_column("problem", pa.nulls(table.num_rows, pa.string())).cast(LOGGED)


def _row(claim: Claim) -> dict[str, Any]:
    return {name: getattr(claim, name) for name in _CLAIMS.names}


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(cast("Any", table.combine_chunks()))
