"""`names`: the hashes of silver and what they stand for, for the tables of the fleet."""

from pyspark.sql import DataFrame

from agentpost.pipeline.gold.inputs import GoldInputs

__all__ = ["build"]


def build(inputs: GoldInputs) -> DataFrame:
    return inputs.silver["names"].select("hour", "name_hash", "name")
