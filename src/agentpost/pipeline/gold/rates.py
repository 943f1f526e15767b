"""`rates`: how much of what a node sent was sent again, was sent twice, failed, or never arrived (OBS-1, OBS-2)."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import DEAD_REASONS
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names

__all__ = ["build"]


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each hour and sending node."""
    attempts = sf.bit_count("attempt_bits")
    is_dead = sf.col("dead_us").isNotNull()
    is_expired = is_dead & (sf.col("dead_reason") == DEAD_REASONS["expired"])
    rows = inputs.silver["deliveries"].where(sf.col("sends").isNotNull())
    found = rows.groupBy("hour", "source").agg(
        sf.count("*").alias("deliveries"),
        sf.sum("sends").alias("sends"),
        sf.sum(attempts - 1).alias("resends"),
        sf.sum(sf.col("sends") - attempts).alias("duplicates"),
        sf.count_if(is_dead).alias("dead_letters"),
        sf.count_if(is_expired).alias("expired"),
        sf.count_if(sf.col("failures") > 0).alias("failed"),
    )
    shares = [
        (sf.col(count) / sf.col("deliveries")).alias(rate)
        for count, rate in (
            ("resends", "retry_rate"),
            ("duplicates", "duplicate_rate"),
            ("dead_letters", "dead_letter_rate"),
        )
    ]
    return with_names(found.select("*", *shares), inputs.names, source="node")
