"""`delivery_minutes`: what began and what ended to wait for every gateway, minute by minute, and how much was in time.

The small table that `backlog` and `slo` are made of. A delivery waits from its first send until it is accepted,
answered or given up. What is neither counts as begun only: whether it is late, or not known yet, is a matter of now.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import ROUTES
from agentpost.pipeline.gold.inputs import HourInputs
from agentpost.pipeline.gold.names import with_names
from agentpost.protocol.routing import Decision

__all__ = ["WAS_AWAY", "build"]

_MINUTE_US: Final = 60_000_000
# OBS-3 is about nodes that are online: what was sent to one that is known to be away is no part of it.
WAS_AWAY: Final = f"coalesce(routes & {ROUTES[Decision.WAIT]} != 0, false)"
_COUNTS: Final = ("begun", "ended", "eligible", "in_time", "skewed")


def build(inputs: HourInputs) -> DataFrame:
    """One row for each hour of ids, gateway and minute in which something began or ended to wait."""
    limit_us = inputs.params.delivery_objective_us
    waits = inputs.deliveries.where("sends is not null").selectExpr(
        "hour",
        "coalesce(`to`, source) as `to`",
        "emitted_us",
        # Nothing ends before it began, whatever the clock of the other gateway said.
        "if(coalesce(heard_us, dead_us) is null, null, greatest(least(heard_us, dead_us), emitted_us)) as ended_us",
        f"not {WAS_AWAY} and coalesce(heard_us < emitted_us, false) as is_skewed",
        f"not {WAS_AWAY} and coalesce(heard_us, dead_us) is not null as is_eligible",
        f"coalesce(heard_us - emitted_us <= {limit_us}L, false) as is_in_time",
    )
    begun = waits.selectExpr(
        "hour",
        "`to`",
        "emitted_us as at_us",
        "1 as begun",
        "0 as ended",
        "if(is_eligible and not is_skewed, 1, 0) as eligible",
        "if(is_eligible and not is_skewed and is_in_time, 1, 0) as in_time",
        "if(is_skewed, 1, 0) as skewed",
    )
    ended = waits.where("ended_us is not null").selectExpr(
        "hour", "`to`", "ended_us as at_us", "0 as begun", "1 as ended", "0 as eligible", "0 as in_time", "0 as skewed"
    )
    found = (
        begun.unionByName(ended)
        .groupBy("hour", "to", sf.expr(f"cast(at_us div {_MINUTE_US} as int)").alias("minute"))
        .agg(*[sf.sum(name).alias(name) for name in _COUNTS])
    )
    return with_names(found, inputs.names, to="node")
