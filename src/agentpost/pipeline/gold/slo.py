"""`slo`: the two objectives of OBS-3 over four windows, and how fast their budgets burn."""

from typing import Final

from pyspark.sql import DataFrame

from agentpost.pipeline.gold.inputs import FleetInputs

__all__ = ["WINDOWS", "build"]

_MINUTE_US: Final = 60_000_000
WINDOWS: Final = {"1h": 1, "6h": 6, "24h": 24, "3d": 72}  # hours, back from now


def build(inputs: FleetInputs) -> DataFrame:
    """One row for each objective and window.

    "delivery": `good` of `total` deliveries between online nodes were accepted within the objective. `burn_rate` 1
    means that exactly the share that may be late is late. "backlog": `total` minutes in which a backlog changed, `good`
    of them without an alert; a single alert burns. Only what is complete counts: of each gateway what was sent to it
    before its outbox ends in the lake. Without anything to count, `is_met` is null.
    """
    params = inputs.params
    now_us, limit_us = params.now_us, params.delivery_objective_us
    first_minute = -(-(now_us - max(WINDOWS.values()) * 60 * _MINUTE_US) // _MINUTE_US)
    windows = ", ".join(f"('{name}', {hours})" for name, hours in WINDOWS.items())
    return inputs.backlog.sparkSession.sql(
        f"""
        with heads as (
          -- Nothing that was sent in the last complete minute, or before, can still be accepted in time.
          select node, (complete_us - {limit_us}L) div {_MINUTE_US} as end_minute from {{completeness}}
        ), measured as (
          select 'delivery' as objective, minute, in_time as good, eligible as total
          from {{minutes}} join heads using (node)
          where minute >= {first_minute} and minute < end_minute and minute <= {now_us // _MINUTE_US}
          union all
          select 'delivery', emitted_us div {_MINUTE_US}, 0, 1
          from {{open}} join heads on node = to_node
          where accepted_us is null and is_eligible and emitted_us div {_MINUTE_US} between {first_minute} and end_minute - 1
          union all
          select 'backlog', minute, if(is_alert, 0, 1), 1
          from {{backlog}} join heads using (node)
          where minute >= {first_minute} and minute < end_minute and minute <= {now_us // _MINUTE_US}
        ), windows as (
          select * from values {windows} as w(window, hours)
        ), objectives as (
          select * from values ('delivery', {params.delivery_objective_share}D), ('backlog', 1D) as o(objective, target)
        ), summed as (
          select objective, window, hours, target,
            coalesce(sum(if(minute >= since, good, 0)), 0) as good,
            coalesce(sum(if(minute >= since, total, 0)), 0) as total
          from (
            select *, ceil(({now_us} - hours * {60 * _MINUTE_US}L) / {_MINUTE_US}) as since
            from objectives cross join windows
          ) left join measured using (objective)
          group by objective, window, hours, target
        ), shares as (
          select *, if(total = 0, null, good / total) as share from summed
        )
        select objective, window, hours, good, total, share, target,
          case when share is null then null when target < 1 then (1 - share) / (1 - target)
            when share < 1 then double('infinity') else 0D end as burn_rate,
          share >= target as is_met
        from shares
        """,
        completeness=inputs.completeness,
        minutes=inputs.delivery_minutes,
        open=inputs.open_deliveries,
        backlog=inputs.backlog,
    )
