"""Every table there is, as values: what a batch has to compute, in which order and from what.

Knows neither files nor versions: a table is a function of DataFrames.
"""

import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from agentpost.pipeline import codes
from agentpost.pipeline.gold import (
    backlog,
    completeness,
    cursors,
    deliveries,
    delivery_findings,
    delivery_minutes,
    integrity,
    latency,
    lifecycle,
    lifecycle_sql,
    names,
    open_deliveries,
    rates,
    reviews,
    slo,
)
from agentpost.pipeline.gold import tasks as gold_tasks
from agentpost.pipeline.gold.inputs import FleetInputs, HourInputs
from agentpost.pipeline.params import Params
from agentpost.pipeline.silver import legs, merging, throughput
from agentpost.pipeline.silver import tasks as silver_tasks

__all__ = ["FLEET", "GOLD", "SILVER", "FleetTable", "GoldTable", "SilverTable", "formulas"]


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
    """One table with an int column `hour`; only touched hours are computed."""

    name: str
    build: Callable[[HourInputs], DataFrame]


class FleetTable(NamedTuple):
    """One table about the whole fleet, computed by each batch; with `is_by_hour` from the first touched hour on."""

    name: str
    build: Callable[[FleetInputs], DataFrame]
    is_by_hour: bool = False


LEGS: Final = "legs"
# Besides `legs`, which the batch distributes by itself.
SILVER: Final = (
    SilverTable("silver_tasks", silver_tasks.partials, silver_tasks.merge),
    SilverTable("throughput", throughput.partials, throughput.merge),
)
GOLD: Final = (
    GoldTable("lifecycle", lifecycle.build),
    GoldTable("tasks", gold_tasks.build),
    GoldTable("latency", latency.build),
    GoldTable("rates", rates.build),
    GoldTable("delivery_minutes", delivery_minutes.build),
    GoldTable("open_deliveries", open_deliveries.build),
    GoldTable("delivery_findings", delivery_findings.build),
    GoldTable("task_findings", gold_tasks.task_findings),
)
# In this order: those after `completeness` and `backlog` are computed from them too.
FLEET: Final = (
    FleetTable("completeness", completeness.build),
    FleetTable("backlog", backlog.build, is_by_hour=True),
    FleetTable("ack_lag", cursors.ack_lag),
    FleetTable("watermarks", cursors.watermarks),
    FleetTable("slo", slo.build),
    FleetTable("integrity", integrity.integrity),
    FleetTable("observed", integrity.observed),
    FleetTable("reviews", reviews.build),
)

_SHARED: Final = (codes, merging, deliveries, lifecycle_sql, names, legs)


def formulas(params: Params) -> dict[str, str]:
    """What each table of the hours is computed with, as a fingerprint: when it changes, its hours are computed anew."""
    settings = repr(Params.__struct_fields__) + repr(params)

    def fingerprint(*modules: Any) -> str:
        said = "".join(inspect.getsource(module) for module in (*_SHARED, *modules))
        return sha256((said + settings).encode()).hexdigest()[:16]

    silver = {table.name: fingerprint(inspect.getmodule(table.partials)) for table in SILVER}
    gold = {table.name: fingerprint(inspect.getmodule(table.build)) for table in GOLD}
    return {LEGS: fingerprint(), **silver, **gold}
