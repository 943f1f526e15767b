"""What readers see: the tables of a version, as they read at `now`, and the views that are made only when asked.

- `lifecycle` has a `state`, and `tasks` has `is_late`, both at now: what is open changes as time passes.
- `latency_daily` are exact percentiles of days; those of hours cannot be joined.
- `backlog_alerts` is one row for each growth that lasted too long.
- `audit` is every event of the lake with its session, in the order of its conversation (OBS-10).
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from agentpost.pipeline.gold import backlog, latency, lifecycle, tasks
from agentpost.pipeline.params import Params

__all__ = ["audit", "register", "views"]

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

    `tables` are those of the version by name; with `bronze` and `facts` among them there is an `audit`.
    """
    found = {**tables, **views(tables, params)}
    for name, frame in found.items():
        frame.createOrReplaceTempView(name)
    return sorted(found)


def views(tables: Mapping[str, DataFrame], params: Params) -> dict[str, DataFrame]:
    """The views that these tables allow."""
    found: dict[str, DataFrame] = {}
    if "lifecycle" in tables:
        found["lifecycle"] = lifecycle.with_state(tables["lifecycle"], params)
        found["latency_daily"] = latency.by_day(tables["lifecycle"])
    if "tasks" in tables:
        found["tasks"] = tasks.with_lateness(tables["tasks"], params)
    if "backlog" in tables:
        found["backlog_alerts"] = backlog.alerts(tables["backlog"])
    if "bronze" in tables and "facts" in tables:
        found["audit"] = audit(tables["bronze"], tables["facts"])
    return found


def audit(bronze: DataFrame, facts: DataFrame) -> DataFrame:
    """Every event, what it refers to, and the session that its conversation belongs to.

    `position` is its place in its conversation. An event comes after the one it refers to, and after what that refers
    to, whatever the clocks say; `pipeline trace` follows chains of any length.
    """
    sessions = (
        facts.where(sf.col("topic") == "session")
        .select(sf.col("key").alias("corr_id"), sf.get_json_object("value", "$.sessionId").alias("session_id"))
        .distinct()
    )
    events = bronze.select(*_AUDITED)
    cause = _cause(bronze, "ref_event_id", "_cause", "_root_id")
    root = _cause(bronze, "_root_id", "_root", "_beyond")
    told = (
        events.join(cause, ["corr_id", "ref_event_id"], how="left")
        .join(root.drop("_beyond"), ["corr_id", "_root_id"], how="left")
        .join(sf.broadcast(sessions), "corr_id", how="left")
    )
    depth = sf.when(sf.col("_root_us").isNotNull(), 2).when(sf.col("_cause_us").isNotNull(), 1).otherwise(0)
    since_us = sf.greatest("created_us", "_cause_us", "_root_us")
    order = Window.partitionBy("corr_id").orderBy(since_us, depth, "created_us", "node", "seq")
    return told.select("session_id", sf.row_number().over(order).alias("position"), *_AUDITED)


def _cause(bronze: DataFrame, key: str, name: str, next_key: str) -> DataFrame:
    """The first send of every event as what others refer to: its time, and what it refers to itself."""
    first = bronze.where((sf.col("attempt") == 1) & (sf.col("kind") != "signal")).dropDuplicates(
        ["corr_id", "event_id"]
    )
    return first.select(
        "corr_id",
        sf.col("event_id").alias(key),
        sf.col("created_us").alias(f"{name}_us"),
        sf.col("ref_event_id").alias(next_key),
    )
