"""`delivery_minutes`: what began and what ended to wait for every gateway, minute by minute, and how much was in time.

The small table that `backlog` and `slo` are made of. A delivery waits from its first send until it is accepted,
answered or given up.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import ROUTES
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names
from agentpost.pipeline.lifecycle_sql import is_accepted
from agentpost.protocol.routing import Decision

__all__ = ["build"]

_MINUTE_US: Final = 60_000_000


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each hour of ids, gateway and minute in which something began or ended to wait."""
    accepted = sf.when(is_accepted(), sf.coalesce("accepted_us", "outcome_us", "replied_us"))
    # OBS-3 is about nodes that are online: what was sent to one that is known to be away is no part of it.
    was_away = sf.coalesce(sf.col("routes").bitwiseAND(sf.lit(ROUTES[Decision.WAIT])) != 0, sf.lit(False))
    in_time = accepted - sf.col("emitted_us") <= sf.lit(inputs.params.delivery_objective_us)
    waits = (
        inputs.silver["deliveries"]
        .where(sf.col("sends").isNotNull())
        .select(
            "hour",
            sf.coalesce("to_max", "source").alias("to"),
            sf.col("emitted_us"),
            sf.least(accepted, sf.col("dead_us")).alias("ended_us"),
            (~was_away).cast("int").alias("eligible"),
            (~was_away & sf.coalesce(in_time, sf.lit(False))).cast("int").alias("in_time"),
        )
    )
    begun = waits.select(
        "hour", "to", sf.col("emitted_us").alias("at_us"), _one("begun"), _none("ended"), "eligible", "in_time"
    )
    ended = waits.where(sf.col("ended_us").isNotNull()).select(
        "hour",
        "to",
        sf.col("ended_us").alias("at_us"),
        _none("begun"),
        _one("ended"),
        _none("eligible"),
        _none("in_time"),
    )
    minute = sf.expr(f"at_us div {_MINUTE_US}").cast("int").alias("minute")
    found = (
        begun.unionByName(ended)
        .groupBy("hour", "to", minute)
        .agg(*[sf.sum(name).alias(name) for name in ("begun", "ended", "eligible", "in_time")])
    )
    return with_names(found, inputs.names, to="node")


def _one(name: str) -> Column:
    return sf.lit(1).alias(name)


def _none(name: str) -> Column:
    return sf.lit(0).alias(name)
