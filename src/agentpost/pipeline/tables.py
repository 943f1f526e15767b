"""Every table there is, as values: what a runner has to compute, in which order and from what.

Knows neither files nor versions: a table is a function of DataFrames, or of small tables for the fleet's.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from agentpost.pipeline.gold import (
    activity,
    backlog,
    cursors,
    delivery_findings,
    delivery_minutes,
    integrity,
    latency,
    lifecycle,
    names_table,
    open_deliveries,
    rates,
    reviews,
    slo,
    throughput,
)
from agentpost.pipeline.gold import tasks as gold_tasks
from agentpost.pipeline.gold.fleet import FleetInputs, FromHour
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.params import Params
from agentpost.pipeline.silver import deliveries, minutes, names, tasks

__all__ = [
    "FLEET",
    "GOLD",
    "SILVER",
    "FleetInputs",
    "FleetTable",
    "FromHour",
    "GoldInputs",
    "GoldTable",
    "Params",
    "SilverTable",
]


class SilverTable(NamedTuple):
    """Mergeable partials of bronze.

    `partials`: bronze events (the columns of a segment but `body` and `chain`, and `node` and `epoch` of the outbox) to
    partial rows, with an int column `hour`. `merge`: any union of partial rows to one row for each key, same columns;
    associative and commutative. `merge_rows`: the same for rows that the driver has. Every event has to come in once:
    bronze reads each seq once. `is_shared`: many gold tables are made of it, so that merged rows are worth keeping
    until all of them are.
    """

    name: str
    partials: Callable[[DataFrame], DataFrame]
    merge: Callable[[DataFrame], DataFrame]
    merge_rows: Callable[[pa.Table], pa.Table]
    is_shared: bool = False


class GoldTable(NamedTuple):
    """One table for readers with an int column `hour`; only touched hours are computed."""

    name: str
    build: Callable[[GoldInputs], DataFrame]


class FleetTable(NamedTuple):
    """One table for readers about the whole fleet, made by every run from tables of the hours.

    All of it, or with an int column `hour` what is not as it was, from an hour on.
    """

    name: str
    schema: pa.Schema
    build: Callable[[FleetInputs], pa.Table | FromHour]


SILVER: Final = (
    SilverTable("deliveries", deliveries.partials, deliveries.merge, deliveries.merge_rows, is_shared=True),
    SilverTable("tasks", tasks.partials, tasks.merge, tasks.merge_rows),
    SilverTable("minutes", minutes.partials, minutes.merge, minutes.merge_rows),
    SilverTable("names", names.partials, names.merge, names.merge_rows),
)

GOLD: Final = (
    GoldTable("lifecycle", lifecycle.build),
    GoldTable("tasks", gold_tasks.build),
    GoldTable("latency", latency.build),
    GoldTable("task_findings", gold_tasks.task_findings),
    GoldTable("throughput", throughput.build),
    GoldTable("activity", activity.build),
    GoldTable("rates", rates.build),
    GoldTable("delivery_minutes", delivery_minutes.build),
    GoldTable("open_deliveries", open_deliveries.build),
    GoldTable("delivery_findings", delivery_findings.build),
    GoldTable("routing_misses", reviews.routing_misses),
    GoldTable("names", names_table.build),
)

FLEET: Final = (
    FleetTable("ack_lag", cursors.ACK_LAG, cursors.ack_lag),
    FleetTable("watermarks", cursors.WATERMARKS, cursors.watermarks),
    FleetTable("backlog", backlog.BACKLOG, backlog.build),
    FleetTable("backlog_heads", backlog.HEADS, backlog.heads),
    FleetTable("slo", slo.SLO, slo.build),
    FleetTable("integrity", integrity.FINDINGS, integrity.integrity),
    FleetTable("observed", integrity.FINDINGS, integrity.observed),
    FleetTable("reviews", reviews.REVIEWS, reviews.build),
)
