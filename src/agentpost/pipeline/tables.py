"""Every table there is, as values: what a runner has to compute, in which order and from what.

Knows neither files nor versions: a table is a function of DataFrames.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from agentpost.pipeline.gold import lifecycle
from agentpost.pipeline.params import Params
from agentpost.pipeline.silver import deliveries

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


class GoldInputs(NamedTuple):
    """What a gold table may be computed from.

    For scope "hour", `silver` holds the merged rows of the touched hours. For scope "fleet", `hour_gold` holds the hour
    tables of all hours. `facts` has the columns of a change log; `segments` is one row for each segment that is read:
    node, epoch, first_seq, last_seq, sealed_at_us, sealed_by, start_chain, end_chain, path; `findings` is what the
    intake found wrong: rule, node, epoch, seq, event_id, agent_id, corr_id, at_us, text. All of the whole lake.
    """

    spark: SparkSession
    silver: Mapping[str, DataFrame]
    hour_gold: Mapping[str, DataFrame]
    facts: DataFrame
    segments: DataFrame
    findings: DataFrame
    params: Params


class GoldTable(NamedTuple):
    """One table for readers. A table of scope "hour" has an int column `hour` and is computed for touched hours only."""

    name: str
    scope: Literal["hour", "fleet"]
    build: Callable[[GoldInputs], DataFrame]


def _lifecycle(inputs: GoldInputs) -> DataFrame:
    return lifecycle.build(
        inputs.silver["deliveries"], segments=inputs.segments, facts=inputs.facts, params=inputs.params
    )


SILVER: Final[tuple[SilverTable, ...]] = (SilverTable("deliveries", deliveries.partials, deliveries.merge),)

GOLD: Final[tuple[GoldTable, ...]] = (GoldTable("lifecycle", "hour", _lifecycle),)
