"""`activity`: in which hours every node wrote something, and when it last did: what `integrity` has to know of it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.gold.inputs import GoldInputs

__all__ = ["build"]


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each hour and node."""
    return inputs.silver["minutes"].groupBy("hour", "node").agg(sf.max("last_us").alias("last_us"))
