"""What the hashes of the other silver tables stand for: every short name that tasks use, and the nodes mail goes to.

All rows stand in hour 0: there are few names, and all hours use the same.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import name_hash
from agentpost.pipeline.silver import merging

__all__ = ["merge", "merge_rows", "partials"]

_KEY: Final = ("hour", "name_hash", "name")
_OF_TASKS: Final = ("source_agent", "requester_agent", "capability_id", "skill_version", "task_type", "failure_class")


def partials(bronze: DataFrame) -> DataFrame:
    """The names in these events."""
    of_tasks = bronze.where(sf.col("task_id").isNotNull()).select(*_OF_TASKS).distinct()
    said = of_tasks.select(sf.explode(sf.array(*_OF_TASKS)).alias("name"))
    # Mail to many is rare, and who gets it gets other mail too; the distinct lists are few.
    asked = bronze.where(sf.size("to_nodes") > 0).select("to_nodes").distinct()
    # Whoever wrote the events is among them, so that any batch touches this table and gold gets all of it.
    wrote = bronze.select(sf.col("node").alias("name")).distinct()
    rows = said.unionByName(asked.select(sf.explode("to_nodes").alias("name"))).unionByName(wrote)
    return merge(
        rows.where(sf.length("name") > 0).select(
            sf.lit(0).cast("int").alias("hour"), name_hash(sf.col("name")).alias("name_hash"), "name"
        )
    )


def merge(rows: DataFrame) -> DataFrame:
    return rows.select(*_KEY).distinct()


def merge_rows(rows: pa.Table) -> pa.Table:
    """The same for what the driver has."""
    return merging.merge_rows(rows, _KEY, {})
