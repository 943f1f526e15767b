"""The newest of what gateways told of a subject, as columns."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

__all__ = ["newest"]


def newest(facts: DataFrame, topic: str, schema: str) -> DataFrame:
    """One row for each key of the topic that is not gone: `key`, `at_us`, and the fields of its value."""
    said = (
        facts.where(sf.col("topic") == topic)
        .groupBy("key")
        .agg(sf.max("at_us").alias("at_us"), sf.max_by("value", "at_us").alias("value"))
    )
    values = said.where(sf.col("value").isNotNull()).withColumn("value", sf.from_json("value", schema))
    return values.select("key", "at_us", "value.*")
