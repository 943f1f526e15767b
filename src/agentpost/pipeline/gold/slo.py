"""`slo`: the two objectives of OBS-3 over four windows, and how fast their budgets burn."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.gold import backlog
from agentpost.pipeline.gold.inputs import GoldInputs

__all__ = ["WINDOWS", "build"]

_HOUR_US: Final = 3_600_000_000
WINDOWS: Final = {"1h": 1, "6h": 6, "24h": 24, "3d": 72}  # hours, back from now


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each objective and window.

    "delivery": `good` of `total` deliveries between online nodes were accepted within the objective. `burn_rate` 1
    means that exactly the share that may be late is late. "backlog": `total` minutes in which a backlog changed, `good`
    of them without an alert; a single alert burns.
    """
    params = inputs.params
    named = [sf.struct(sf.lit(name).alias("window"), sf.lit(hours).alias("hours")) for name, hours in WINDOWS.items()]
    windows = inputs.spark.range(1).select(sf.inline(sf.array(*named)))
    since = (sf.lit(params.now_us) - sf.col("hours") * sf.lit(_HOUR_US)) / 60_000_000
    is_within = (sf.col("minute") >= since) & (sf.col("minute") <= sf.lit(params.now_us / 60_000_000))
    is_recent = sf.col("minute") >= sf.lit((params.now_us - max(WINDOWS.values()) * _HOUR_US) / 60_000_000)
    deliveries = inputs.hour_gold["delivery_minutes"].where(is_recent)
    delivery = deliveries.select("minute", sf.col("in_time").alias("good"), sf.col("eligible").alias("total"))
    waiting = backlog.build(inputs).where(is_recent)
    quiet = waiting.select("minute", (~sf.col("is_alert")).cast("bigint").alias("good"), sf.lit(1).alias("total"))
    rows = [
        _windowed(delivery, windows, is_within, "delivery", params.delivery_objective_share),
        _windowed(quiet, windows, is_within, "backlog", 1.0),
    ]
    return rows[0].unionByName(rows[1])


def _windowed(measured: DataFrame, windows: DataFrame, is_within: Column, objective: str, target: float) -> DataFrame:
    found = (
        sf.broadcast(windows)
        .join(measured, is_within, how="left")
        .groupBy("window", "hours")
        .agg(
            sf.coalesce(sf.sum("good"), sf.lit(0)).alias("good"), sf.coalesce(sf.sum("total"), sf.lit(0)).alias("total")
        )
    )
    share = sf.when(sf.col("total") > 0, sf.col("good") / sf.col("total"))
    bad = 1 - sf.col("share")
    burn = bad / sf.lit(1 - target) if target < 1 else sf.when(bad > 0, sf.lit(float("inf"))).otherwise(sf.lit(0.0))
    return found.withColumn("share", share).select(
        sf.lit(objective).alias("objective"),
        "window",
        "hours",
        "good",
        "total",
        "share",
        sf.lit(target).alias("target"),
        sf.when(sf.col("share").isNotNull(), burn).alias("burn_rate"),
        sf.coalesce(sf.col("share") >= sf.lit(target), sf.lit(True)).alias("is_met"),
    )
