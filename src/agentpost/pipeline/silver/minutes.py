"""One row for each node, kind and minute: how much it appended. The hour is that of the minute, not of an id."""

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import KINDS, code_of
from agentpost.pipeline.silver import merging

__all__ = ["COLUMNS", "merge", "merge_rows", "partials"]

_MINUTE_US: Final = 60_000_000
COLUMNS: Final[merging.Columns] = {
    "events": ("sum", "bigint"),
    "resends": ("sum", "bigint"),
    "recipients": ("sum", "bigint"),
    "payload_bytes": ("sum", "bigint"),
    "last_us": ("max", "bigint"),
}
_KEY: Final = ("hour", "minute", "node", "kind")


def partials(bronze: DataFrame) -> DataFrame:
    """What these nodes did, minute by minute."""
    minute = sf.expr(f"created_us div {_MINUTE_US}")
    keyed = bronze.select(
        sf.expr(f"created_us div {60 * _MINUTE_US}").cast("int").alias("hour"),
        minute.cast("int").alias("minute"),
        "node",
        code_of(sf.col("kind"), KINDS, other=0).alias("kind"),
        "attempt",
        "to_agents",
        sf.col("payload_bytes").alias("_bytes"),
        "created_us",
    )
    rows = merging.rows_of(
        keyed,
        _KEY,
        COLUMNS,
        events=sf.lit(1),
        resends=sf.when(sf.col("attempt") > 1, sf.lit(1)),
        recipients=sf.size("to_agents"),
        payload_bytes=sf.col("_bytes"),
        last_us=sf.col("created_us"),
    )
    return merge(rows)


def merge(rows: DataFrame) -> DataFrame:
    """One row for each node, kind and minute."""
    return merging.merge(rows, _KEY, COLUMNS)


def merge_rows(rows: pa.Table) -> pa.Table:
    """The same for what the driver has."""
    return merging.merge_rows(rows, _KEY, COLUMNS)
