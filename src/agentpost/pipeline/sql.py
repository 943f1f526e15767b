"""`pipeline sql`: the tables of the current version as views, and a query over them."""

from typing import Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession

from agentpost.pipeline.files import Files
from agentpost.pipeline.frames import bronze_events, table_frame
from agentpost.pipeline.gold.views import register
from agentpost.pipeline.ledger import SEGMENTS, Segment
from agentpost.pipeline.params import Params
from agentpost.pipeline.warehouse import Snapshot, Warehouse
from agentpost.protocol.errors import Code, Refusal

__all__ = ["query", "register_tables"]


def register_tables(
    spark: SparkSession, lake: Files, warehouse: Warehouse, snapshot: Snapshot, params: Params
) -> list[str]:
    """Make every table of the snapshot, and every view over them, known to the session; gives their names."""
    tables = {name: table_frame(spark, warehouse, snapshot, name) for name in snapshot.tables}
    segments = warehouse.read(snapshot, "segments", SEGMENTS).to_pylist()
    used = [Segment.of(row) for row in segments if row["slice_first"]]
    return register(spark, tables | {"bronze": bronze_events(spark, lake, used)}, params)


def query(spark: SparkSession, text: str, *, limit: int | None = None) -> pa.Table:
    """The answer to a query; a refusal that says where it is wrong."""
    try:
        found = spark.sql(text)
        return cast("pa.Table", cast("Any", found if limit is None else found.limit(limit)).toArrow())
    except (ParseException, AnalysisException) as problem:
        raise Refusal(
            Code.INVALID_FIELD,
            _said(problem),
            field="query",
            hint="`agentpost pipeline sql 'show views'` lists the tables, `'describe lifecycle'` the columns of one.",
        ) from None
    except PySparkException as problem:
        raise Refusal(Code.INVALID_FIELD, _said(problem), field="query", hint="Correct the query.") from None


def _said(problem: PySparkException) -> str:
    text = str(problem).strip().split("\n\nJVM stacktrace", 1)[0]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("'", "+-"))]
    return " ".join(lines[:3])[:400]
