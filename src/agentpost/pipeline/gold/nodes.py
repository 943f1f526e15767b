"""`nodes` and `outboxes`: what the hashes in silver stand for."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import name_hash, outbox_code

__all__ = ["node_names", "outboxes", "with_names"]


def node_names(segments: DataFrame, facts: DataFrame) -> DataFrame:
    """Every node that wrote an outbox or that somebody told of: `node_hash`, `node`."""
    told = facts.where(sf.col("topic") == "node").select(sf.col("key").alias("node"))
    names = segments.select("node").unionByName(told).distinct()
    return names.select(name_hash(sf.col("node")).alias("node_hash"), "node")


def outboxes(segments: DataFrame) -> DataFrame:
    """Every outbox: `node_hash`, `outbox_code`, `node`, `epoch`."""
    return (
        segments.select("node", "epoch")
        .distinct()
        .select(
            name_hash(sf.col("node")).alias("node_hash"),
            outbox_code(sf.col("node"), sf.col("epoch")).alias("outbox_code"),
            "node",
            "epoch",
        )
    )


def with_names(rows: DataFrame, names: DataFrame, **columns: str) -> DataFrame:
    """`rows` with names for hashes: `source="source_node"` puts the name of `source` into `source_node` in its place.

    A node that nobody ever told of keeps its number, in hex, so that two of them stay two.
    """
    for hashed, named in columns.items():
        lookup = sf.broadcast(names.select(sf.col("node_hash").alias(f"_{hashed}"), sf.col("node").alias(f"_{named}")))
        joined = rows.join(lookup, sf.col(hashed) == sf.col(f"_{hashed}"), how="left")
        name = sf.coalesce(sf.col(f"_{named}"), sf.concat(sf.lit("#"), sf.lower(sf.hex(hashed))))
        rows = joined.select(*[name.alias(named) if each == hashed else sf.col(each) for each in rows.columns])
    return rows
