"""`backlog`: what waited at every gateway, and when it grew for too long (OBS-3)."""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from agentpost.pipeline.gold.inputs import GoldInputs

__all__ = ["alerts", "build"]

_MINUTE_US: Final = 60_000_000


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each gateway and minute in which its backlog changed; `is_alert` once it grew for too long.

    A growth begins with the first minute in which more began than ended to wait, and lasts until one in which more
    ended than began. Minutes in which nothing changed are part of it.
    """
    changes = (
        inputs.hour_gold["delivery_minutes"]
        .groupBy("node", "minute")
        .agg(sf.sum("begun").alias("begun"), sf.sum("ended").alias("ended"))
    )
    so_far = Window.partitionBy("node").orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    change = sf.col("begun") - sf.col("ended")
    growths = changes.select(
        "*",
        sf.sum(change).over(so_far).alias("waiting"),
        # The last minute that ended a growth; rows that share it belong together.
        sf.max(sf.when(change < 0, sf.col("minute"))).over(so_far).alias("_fell"),
    )
    within = (
        Window.partitionBy("node", "_fell").orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    since = sf.min(sf.when(change > 0, sf.col("minute"))).over(within)
    grows = (change > 0) & (
        sf.col("minute") - sf.col("growing_since") > sf.lit(inputs.params.backlog_alert_us // _MINUTE_US)
    )
    return growths.withColumn("growing_since", sf.when(change >= 0, since)).select(
        "node",
        "minute",
        "begun",
        "ended",
        "waiting",
        "growing_since",
        sf.coalesce(grows, sf.lit(False)).alias("is_alert"),
    )


def alerts(backlog: DataFrame) -> DataFrame:
    """One row for each growth that lasted too long: `node`, `since_us`, `until_us`, `waiting`."""
    found = backlog.where("is_alert").groupBy("node", "growing_since")
    return found.agg(sf.max("minute").alias("until"), sf.max("waiting").alias("waiting")).select(
        "node",
        (sf.col("growing_since").cast("bigint") * _MINUTE_US).alias("since_us"),
        (sf.col("until").cast("bigint") * _MINUTE_US).alias("until_us"),
        "waiting",
    )
