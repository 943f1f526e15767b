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
    found = _measured(
        rows.select(
            "hour", "kind", "source", sf.col("to_max").alias("to"), *_times(sf.least("outcome_us", "replied_us"))
        ),
        "hour",
        "kind",
        "source",
        "to",
    )
    named = with_names(found, inputs.names, source="source_node", to="to_node")
    return named.withColumn("kind", text_of(sf.col("kind"), KINDS))


def by_day(lifecycle: DataFrame) -> DataFrame:
    """The same for days, from the gold lifecycle: percentiles of hours cannot be joined, so they are taken anew."""
    day = sf.expr("hour div 24").alias("day")
    times = _times(sf.least("processed_us", "replied_us"))
    return _measured(
        lifecycle.select(day, "kind", "source_node", "to_node", *times), "day", "kind", "source_node", "to_node"
    )


def _times(answered: Column) -> list[Column]:
    """Delivery is from the first send to the accept, an answer from the first send to the first outcome or reply."""
    emitted = sf.col("emitted_us")
    return [(sf.col("accepted_us") - emitted).alias("delivery_us"), (answered - emitted).alias("answer_us")]


def _measured(rows: DataFrame, *key: str) -> DataFrame:
    """The measures of each key, from all of its values in order: keys are many, and the values of one are few.

    The rows of a key meet before anything is made of them: to join lists, each would be written and read once more.
    """
    delivery, answer = sf.col("delivery"), sf.col("answer")
    found = (
        rows.repartition(*key)
        .groupBy(*key)
        .agg(
            sf.count("*").alias("deliveries"),
            sf.sort_array(sf.collect_list("delivery_us")).alias("delivery"),
            sf.sort_array(sf.collect_list("answer_us")).alias("answer"),
        )
    )
    return found.select(
        *key,
        "deliveries",
        sf.size(delivery).cast("bigint").alias("accepted"),
        *[_share(delivery, share).alias(f"delivery_{name}_ms") for name, share in _SHARES],
        _ms(delivery, sf.size(delivery) - 1).alias("delivery_max_ms"),
        sf.size(answer).cast("bigint").alias("answered"),
        *[_share(answer, share).alias(f"answer_{name}_ms") for name, share in _SHARES],
    )


def _share(values: Column, share: float) -> Column:
    """The value that so much of all is not above, between two of them if it is none; null if there are none."""
    place = (sf.size(values) - 1) * sf.lit(share)
    low = sf.floor(place)
    lower, higher = _ms(values, low.cast("int")), _ms(values, sf.ceil(place).cast("int"))
    return lower + (place - low) * (higher - lower)


def _ms(values: Column, nth: Column) -> Column:
    return sf.get(values, nth) / 1000
