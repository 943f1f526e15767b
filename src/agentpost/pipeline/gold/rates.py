"""`rates`: how much of what a node sent was sent again, was sent twice, failed, or never arrived (OBS-1, OBS-2)."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import DEAD_REASONS
from agentpost.pipeline.gold.inputs import HourInputs
from agentpost.pipeline.gold.names import with_names

__all__ = ["build"]


def build(inputs: HourInputs) -> DataFrame:
    """One row for each hour and sending node."""
    counts = {
        "deliveries": "count(*)",
        "sends": "sum(sends)",
        "resends": "sum(bit_count(attempt_bits) - 1)",
        "duplicates": "sum(sends - bit_count(attempt_bits))",
        "dead_letters": "count_if(dead_us is not null)",
        "expired": f"count_if(dead_us is not null and dead_reason = {DEAD_REASONS['expired']})",
        "failed": "count_if(failures > 0)",
    }
    rows = inputs.deliveries.where("sends is not null").groupBy("hour", "source")
    found = rows.agg(*[sf.expr(text).alias(name) for name, text in counts.items()]).selectExpr(
        "*",
        "resends / deliveries as retry_rate",
        "duplicates / deliveries as duplicate_rate",
        "dead_letters / deliveries as dead_letter_rate",
    )
    return with_names(found, inputs.names, source="node")
