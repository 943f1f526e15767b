"""What readers see: the tables of a snapshot, as they read at `now`, and the views that are made only when asked.

- `lifecycle` has a `state`, and `tasks` has `is_late`, both at now: what is open changes as time passes.
- `latency_daily` are exact percentiles of days; those of hours cannot be joined.
- `backlog_alerts` is one row for each growth that lasted too long.
- `quarantine` is everything that is not read, with the reason.
- `audit` is every event of the lake with its session, in the order of its conversation (OBS-10).
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from agentpost.pipeline.gold import backlog, latency, lifecycle, tasks
from agentpost.pipeline.params import Params

__all__ = ["audit", "quarantine", "register", "views"]

_AUDITED: Final = (
    "corr_id",
    "event_id",
    "kind",
    "attempt",
    "node",
    "epoch",
    "seq",
    "source_agent",
    "to_agents",
    "ref_event_id",
    "ack_type",
    "acked_by_agent",
    "reason",
    "task_id",
    "created_us",
)


def register(spark: SparkSession, tables: Mapping[str, DataFrame], params: Params) -> list[str]:
    """Make every table and view known to the session's SQL; gives their names.

    `tables` are those of the snapshot by name; with `bronze` and `facts` among them there is an `audit`.
    """
    found = {**tables, **views(tables, params)}
    for name, frame in found.items():
        frame.createOrReplaceTempView(name)
    return sorted(found)


def views(tables: Mapping[str, DataFrame], params: Params) -> dict[str, DataFrame]:
    """The views that these tables allow."""
    found: dict[str, DataFrame] = {}
    if "lifecycle" in tables and "completeness" in tables:
        found["lifecycle"] = lifecycle.with_state(tables["lifecycle"], tables["completeness"], params)
        found["latency_daily"] = latency.by_day(tables["lifecycle"])
    if "tasks" in tables:
        found["tasks"] = tasks.with_lateness(tables["tasks"], params)
    if "backlog" in tables:
        found["backlog_alerts"] = backlog.alerts(tables["backlog"])
    if "segments" in tables and "change_logs" in tables:
        found["quarantine"] = quarantine(tables["segments"], tables["change_logs"])
    if "bronze" in tables and "facts" in tables:
        found["audit"] = audit(tables["bronze"], tables["facts"])
    return found


def quarantine(segments: DataFrame, change_logs: DataFrame) -> DataFrame:
    """Everything that is not read: segments, single events of those that are, and change logs."""
    whole = segments.where("status in ('set_aside', 'retry')").selectExpr(
        "coalesce(nullif(path, ''), manifest) as path", "node", "epoch", "first_seq", "last_seq", "reason"
    )
    told = segments.where("size(left_out) > 0").selectExpr("*", "inline(findings) as (rule, seq, e, c, at, text)")
    single = told.where("array_contains(left_out, seq)").selectExpr(
        "path", "node", "epoch", "seq as first_seq", "seq as last_seq", "concat(rule, ': ', text) as reason"
    )
    logs = change_logs.where("problem is not null").selectExpr(
        "name as path", "'' as node", "'' as epoch", "0L as first_seq", "0L as last_seq", "problem as reason"
    )
    return whole.unionByName(single).unionByName(logs)


def audit(bronze: DataFrame, facts: DataFrame) -> DataFrame:
    """Every event once, what it refers to, and the session that its conversation was last known to belong to.

    `position` is its place in its conversation. An event comes after the one it refers to, and after what that refers
    to, whatever the clocks say; `pipeline trace` follows chains of any length.
    """
    return bronze.sparkSession.sql(
        f"""
        with sessions as (
          select key as corr_id, max_by(get_json_object(value, '$.sessionId'), at_us) as session_id
          from {{facts}} where topic = 'session' and value is not null group by key
        ), firsts as (
          -- The first send of every event, as what others refer to.
          select corr_id, event_id, min(created_us) as at_us, min_by(ref_event_id, created_us) as cause_id
          from {{bronze}} where attempt = 1 and kind <> 'signal' group by corr_id, event_id
        ), told as (
          select events.*, cause.at_us as cause_us, root.at_us as root_us
          from (select {", ".join(_AUDITED)} from {{bronze}}) as events
          left join firsts as cause on cause.corr_id = events.corr_id and cause.event_id = events.ref_event_id
          left join firsts as root on root.corr_id = events.corr_id and root.event_id = cause.cause_id
        )
        select session_id, row_number() over (
            partition by told.corr_id
            order by greatest(created_us, cause_us, root_us),
              case when root_us is not null then 2 when cause_us is not null then 1 else 0 end, created_us, node, seq
          ) as position, {", ".join(f"told.{name}" for name in _AUDITED)}
        from told left join sessions on sessions.corr_id = told.corr_id
        """,
        bronze=bronze,
        facts=facts,
    )
