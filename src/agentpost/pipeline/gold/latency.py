"""`latency`: how long deliveries took, exact percentiles per kind, pair of nodes and hour (OBS-2)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import KINDS, text_of
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names

__all__ = ["build", "by_day", "measures"]

_SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each hour, kind, sender's and recipient's node."""
    rows = inputs.silver["deliveries"].where(sf.col("sends").isNotNull())
    found = rows.groupBy("hour", "kind", "source", sf.col("to_max").alias("to")).agg(
        *measures(sf.least("outcome_us", "replied_us"))
    )
    named = with_names(found, inputs.names, source="source_node", to="to_node")
    return named.withColumn("kind", text_of(sf.col("kind"), KINDS))


def by_day(lifecycle: DataFrame) -> DataFrame:
    """The same for days, from the gold lifecycle: percentiles of hours cannot be joined, so they are taken anew."""
    day = sf.expr("hour div 24").alias("day")
    return lifecycle.groupBy(day, "kind", "source_node", "to_node").agg(
        *measures(sf.least("processed_us", "replied_us"))
    )


def measures(answered: Column) -> list[Column]:
    """Delivery is from the first send to the accept, an answer from the first send to the first outcome or reply."""
    delivery = (sf.col("accepted_us") - sf.col("emitted_us")) / 1000
    answer = (answered - sf.col("emitted_us")) / 1000
    return [
        sf.count("*").alias("deliveries"),
        sf.count(delivery).alias("accepted"),
        *[sf.percentile(delivery, share).alias(f"delivery_{name}_ms") for name, share in _SHARES],
        sf.max(delivery).alias("delivery_max_ms"),
        sf.count(answer).alias("answered"),
        *[sf.percentile(answer, share).alias(f"answer_{name}_ms") for name, share in _SHARES],
    ]
