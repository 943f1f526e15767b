"""`throughput`: one row for each node, kind and minute: how much it appended (OBS-2). The hour is that of the minute."""

from typing import Final

from pyspark.sql import DataFrame

from agentpost.pipeline.codes import KINDS, quoted
from agentpost.pipeline.silver import merging
from agentpost.pipeline.silver.merging import Column

__all__ = ["COLUMNS", "KEY", "merge", "partials"]

_MINUTE_US: Final = 60_000_000
_KNOWN: Final = ", ".join(quoted(str(kind)) for kind in KINDS)
KEY: Final = ("hour", "minute", "node", "kind")
COLUMNS: Final[merging.Columns] = {
    "events": Column("sum", "bigint", "1"),
    "resends": Column("sum", "bigint", "if(attempt > 1, 1, 0)"),
    "recipients": Column("sum", "bigint", "size(to_agents)"),
    "payload_bytes": Column("sum", "bigint", "coalesce(payload_bytes, 0)"),
    "last_us": Column("max", "bigint", "created_us"),
}


def partials(bronze: DataFrame) -> DataFrame:
    """What these nodes did, minute by minute."""
    rows = bronze.selectExpr(
        f"cast(created_us div {60 * _MINUTE_US} as int) as hour",
        f"cast(created_us div {_MINUTE_US} as int) as minute",
        "node",
        f"if(kind in ({_KNOWN}), kind, 'unreadable') as kind",
        "attempt",
        "to_agents",
        "payload_bytes",
        "created_us",
    )
    return merging.gather(rows, KEY, COLUMNS, at="created_us")


def merge(rows: DataFrame) -> DataFrame:
    """One row for each node, kind and minute."""
    return merging.merge(rows, KEY, COLUMNS)
