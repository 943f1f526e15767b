"""`backlog`: what waited at every gateway, and when it grew for too long (OBS-3)."""

from typing import Final

from pyspark.sql import DataFrame

from agentpost.pipeline.gold.inputs import FleetInputs

__all__ = ["alerts", "build"]

_MINUTE_US: Final = 60_000_000


def build(inputs: FleetInputs) -> DataFrame:
    """One row for each gateway and minute in which its backlog changed; `is_alert` once it grew for too long.

    A growth begins with the first minute in which more began than ended to wait, and lasts until one in which more
    ended than began. Minutes in which nothing changed are part of it. Rows are made from `since_hour` on; what stood
    before is carried on from the last row of each gateway.
    """
    first_minute = 60 * inputs.since_hour
    limit = inputs.params.backlog_alert_us // _MINUTE_US
    return inputs.backlog.sparkSession.sql(
        f"""
        with before as (
          select node, max_by(waiting, minute) as waiting, max_by(growing_since, minute) as since
          from {{backlog}} where hour < {inputs.since_hour} group by node
        ), changes as (
          select node, minute, sum(begun) as begun, sum(ended) as ended
          from {{minutes}} where minute >= {first_minute} group by node, minute
        ), told as (
          select node, minute, begun, ended, begun - ended as change, minute as since, true as is_told from changes
          union all
          -- Where a gateway stood: a growth that goes on, or none.
          select node, {first_minute} - 1, waiting, 0L, if(since is null, -1L, 1L), since, false from before
        ), stretched as (
          select *,
            sum(begun - ended) over (partition by node order by minute) as waiting,
            sum(if(change < 0, 1, 0)) over (partition by node order by minute) as stretch
          from told
        ), grown as (
          select *, min(if(change > 0, since, null)) over (partition by node, stretch order by minute) as growing_since
          from stretched
        )
        select cast(minute div 60 as int) as hour, node, minute, begun, ended, waiting,
          if(change >= 0, growing_since, null) as growing_since,
          coalesce(change > 0 and minute - growing_since > {limit}, false) as is_alert
        from grown where is_told
        """,
        backlog=inputs.backlog,
        minutes=inputs.delivery_minutes,
    )


def alerts(backlog: DataFrame) -> DataFrame:
    """One row for each growth that lasted too long: `node`, `since_us`, `until_us`, `waiting`."""
    return backlog.sparkSession.sql(
        f"""
        select node, cast(growing_since as bigint) * {_MINUTE_US} as since_us,
          cast(max(minute) as bigint) * {_MINUTE_US} as until_us, max(waiting) as waiting
        from {{backlog}} where is_alert group by node, growing_since
        """,
        backlog=backlog,
    )
