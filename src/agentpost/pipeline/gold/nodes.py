"""`nodes` and `outboxes`: what the hashes in silver stand for."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from agentpost.pipeline.codes import name_hash, outbox_code

__all__ = ["node_names", "outboxes", "with_names"]


def node_names(segments: DataFrame, facts: DataFrame) -> DataFrame:
    """Every node that wrote an outbox or that somebody told of: `node_hash`, `node`."""
    told = facts.where(F.col("topic") == "node").select(F.col("key").alias("node"))
    names = segments.select("node").unionByName(told).distinct()
    return names.select(name_hash(F.col("node")).alias("node_hash"), "node")


def outboxes(segments: DataFrame) -> DataFrame:
    """Every outbox: `node_hash`, `outbox_code`, `node`, `epoch`."""
    return (
        segments.select("node", "epoch")
        .distinct()
        .select(
            name_hash(F.col("node")).alias("node_hash"),
            outbox_code(F.col("node"), F.col("epoch")).alias("outbox_code"),
            "node",
            "epoch",
        )
    )


def with_names(rows: DataFrame, names: DataFrame, **columns: str) -> DataFrame:
    """`rows` with names for hashes: `source="source_node"` puts the name of `source` into `source_node` in its place.

    A node that nobody ever told of keeps its number, in hex, so that two of them stay two.
    """
    for hashed, named in columns.items():
        lookup = F.broadcast(names.select(F.col("node_hash").alias(f"_{hashed}"), F.col("node").alias(f"_{named}")))
        joined = rows.join(lookup, F.col(hashed) == F.col(f"_{hashed}"), how="left")
        name = F.coalesce(F.col(f"_{named}"), F.concat(F.lit("#"), F.lower(F.hex(hashed))))
        rows = joined.select(*[name.alias(named) if each == hashed else F.col(each) for each in rows.columns])
    return rows
