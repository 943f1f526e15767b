"""Every table there is, as values: what a runner has to compute, in which order and from what.

Knows neither files nor versions: a table is a function of DataFrames.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from pyspark.sql import DataFrame

from agentpost.pipeline.gold import (
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
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.params import Params
from agentpost.pipeline.silver import deliveries, minutes, names, tasks

__all__ = ["GOLD", "SILVER", "GoldInputs", "GoldTable", "Params", "SilverTable"]


class SilverTable(NamedTuple):
    """Mergeable partials of bronze.

    `partials`: bronze events (the columns of a segment but `body` and `chain`, and `node` and `epoch` of the outbox) to
    partial rows, with an int column `hour`. `merge`: any union of partial rows to one row for each key, same columns;
    associative and commutative. Every event has to come in once: bronze reads each seq once.
    """

    name: str
    partials: Callable[[DataFrame], DataFrame]
    merge: Callable[[DataFrame], DataFrame]


class GoldTable(NamedTuple):
    """One table for readers. A table of scope "hour" has an int column `hour`; only touched hours are computed."""

    name: str
    scope: Literal["hour", "fleet"]
    build: Callable[[GoldInputs], DataFrame]


SILVER: Final = (
    SilverTable("deliveries", deliveries.partials, deliveries.merge),
    SilverTable("tasks", tasks.partials, tasks.merge),
    SilverTable("minutes", minutes.partials, minutes.merge),
    SilverTable("names", names.partials, names.merge),
)

GOLD: Final = (
    GoldTable("lifecycle", "hour", lifecycle.build),
    GoldTable("tasks", "hour", gold_tasks.build),
    GoldTable("latency", "hour", latency.build),
    GoldTable("throughput", "hour", throughput.build),
    GoldTable("rates", "hour", rates.build),
    GoldTable("delivery_minutes", "hour", delivery_minutes.build),
    GoldTable("open_deliveries", "hour", open_deliveries.build),
    GoldTable("delivery_findings", "hour", delivery_findings.build),
    GoldTable("routing_misses", "hour", reviews.routing_misses),
    GoldTable("names", "hour", names_table.build),
    GoldTable("ack_lag", "fleet", cursors.ack_lag),
    GoldTable("watermarks", "fleet", cursors.watermarks),
    GoldTable("backlog", "fleet", backlog.build),
    GoldTable("slo", "fleet", slo.build),
    GoldTable("integrity", "fleet", integrity.integrity),
    GoldTable("observed", "fleet", integrity.observed),
    GoldTable("reviews", "fleet", reviews.build),
)
