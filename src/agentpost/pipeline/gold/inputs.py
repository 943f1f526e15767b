"""What a gold table may be computed from."""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from agentpost.pipeline.params import Params

__all__ = ["GoldInputs"]


class GoldInputs(NamedTuple):
    """For scope "hour", `silver` holds the merged rows of the touched hours, and `hour_gold` nothing. For scope
    "fleet", `hour_gold` holds the hour tables of all hours, and `silver` nothing.

    `facts` has the columns of a change log. `segments` is one row for each segment that is read: node, epoch,
    first_seq, last_seq, sealed_at_us, sealed_by, start_chain, end_chain, path, newest_us. `findings` is what the intake
    found wrong: rule, node, epoch, seq, event_id, agent_id, corr_id, at_us, text. All three are of the whole lake.
    `names` has every name there is, by its hash: name_hash, name.
    """

    spark: SparkSession
    silver: Mapping[str, DataFrame]
    hour_gold: Mapping[str, DataFrame]
    facts: DataFrame
    segments: DataFrame
    findings: DataFrame
    names: DataFrame
    params: Params
