"""`pipeline sql`: the tables of the current version as views, and a query over them."""

from typing import Any, Final, cast

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession

from agentpost.lake.schema import FACTS
from agentpost.pipeline.files import Files
from agentpost.pipeline.frames import bronze_events, local_frame, table_frame
from agentpost.pipeline.gold.views import register
from agentpost.pipeline.intake import FINDINGS, QUARANTINE, SEGMENTS
from agentpost.pipeline.params import Params
from agentpost.pipeline.warehouse import Version, Warehouse
from agentpost.protocol.errors import Code, Refusal

__all__ = ["query", "register_tables"]

_LOCAL: Final = {"segments": SEGMENTS, "findings": FINDINGS, "quarantine": QUARANTINE, "facts": FACTS}


def register_tables(
    spark: SparkSession, lake: Files, warehouse: Warehouse, version: Version, params: Params
) -> list[str]:
    """Make every table of the version, and every view over them, known to the session; gives their names."""
    tables = {name: table_frame(spark, warehouse, version, name) for name in version.schemas}
    local = {name: warehouse.read(version, name, schema).cast(schema) for name, schema in _LOCAL.items()}
    tables |= {name: local_frame(spark, table) for name, table in local.items()}
    used = [row for row in local["segments"].to_pylist() if row["slice_first"]]
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
