"""`throughput`: how much every node appended, minute by minute (OBS-2)."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import KINDS, text_of
from agentpost.pipeline.gold.inputs import GoldInputs

__all__ = ["build"]


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each minute, node and kind."""
    return inputs.silver["minutes"].select(
        "hour",
        "minute",
        "node",
        text_of(sf.col("kind"), KINDS, other="unreadable").alias("kind"),
        "events",
        sf.coalesce("resends", sf.lit(0)).alias("resends"),
        "recipients",
        sf.coalesce("payload_bytes", sf.lit(0)).alias("payload_bytes"),
        "last_us",
    )
