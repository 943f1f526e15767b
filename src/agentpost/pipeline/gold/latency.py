"""`latency`: how long deliveries took, exact percentiles per kind, pair of nodes and hour (OBS-2)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import KINDS, text_of
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names

__all__ = ["build", "by_day"]

_SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each hour, kind, sender's and recipient's node."""
    rows = inputs.silver["deliveries"].where(sf.col("sends").isNotNull())
    found = rows.groupBy("hour", "kind", "source", sf.col("to_max").alias("to")).agg(
        *_measures(sf.least("outcome_us", "replied_us"))
    )
    named = with_names(_told(found), inputs.names, source="source_node", to="to_node")
    return named.withColumn("kind", text_of(sf.col("kind"), KINDS))


def by_day(lifecycle: DataFrame) -> DataFrame:
    """The same for days, from the gold lifecycle: percentiles of hours cannot be joined, so they are taken anew."""
    day = sf.expr("hour div 24").alias("day")
    return _told(
        lifecycle.groupBy(day, "kind", "source_node", "to_node").agg(*_measures(sf.least("processed_us", "replied_us")))
    )


def _measures(answered: Column) -> list[Column]:
    """Delivery is from the first send to the accept, an answer from the first send to the first outcome or reply."""
    delivery = (sf.col("accepted_us") - sf.col("emitted_us")) / 1000
    answer = (answered - sf.col("emitted_us")) / 1000
    # All shares of a measure at once: each aggregate keeps all values that it has seen.
    shares = sf.array(*[sf.lit(share) for _, share in _SHARES])
    return [
        sf.count("*").alias("deliveries"),
        sf.count(delivery).alias("accepted"),
        sf.percentile(delivery, shares).alias("delivery"),
        sf.max(delivery).alias("delivery_max_ms"),
        sf.count(answer).alias("answered"),
        sf.percentile(answer, shares).alias("answer"),
    ]


def _told(measured: DataFrame) -> DataFrame:
    """The shares of each measure as columns, in the place of the list."""
    columns: list[Column] = []
    for name in measured.columns:
        each = [sf.col(name)[place].alias(f"{name}_{share}_ms") for place, (share, _) in enumerate(_SHARES)]
        columns += each if name in ("delivery", "answer") else [sf.col(name)]
    return measured.select(*columns)
