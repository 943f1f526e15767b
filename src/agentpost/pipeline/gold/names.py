"""What the hashes in silver stand for: names of nodes, agents and capabilities, and the outboxes that places are in."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import name_hash, outbox_code, outbox_of_place, seq_of_place

__all__ = ["all_names", "located", "outboxes", "with_names"]


def all_names(names: DataFrame, segments: DataFrame, facts: DataFrame) -> DataFrame:
    """Every name there is: `name_hash`, `name`. `names` is the silver or the gold table of that name."""
    told = facts.where(sf.col("topic").isin("node", "agent", "capability")).select(sf.col("key").alias("name"))
    wrote = segments.select(sf.col("node").alias("name"))
    hashed = told.unionByName(wrote).select(name_hash(sf.col("name")).alias("name_hash"), "name")
    return hashed.unionByName(names.select("name_hash", "name")).distinct()


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


def located(rows: DataFrame, segments: DataFrame) -> DataFrame:
    """`rows` with `node`, `epoch` and `seq` for `by`, the hash of a node, and `place`.

    A row whose place is in no outbox of that node goes: it was a guess, and a wrong one.
    """
    is_there = (sf.col("by") == sf.col("node_hash")) & (outbox_of_place(sf.col("place")) == sf.col("outbox_code"))
    found = rows.join(sf.broadcast(outboxes(segments)), is_there, how="inner")
    return found.withColumn("seq", seq_of_place(sf.col("place"))).drop("by", "place", "node_hash", "outbox_code")


def with_names(rows: DataFrame, names: DataFrame, **columns: str) -> DataFrame:
    """`rows` with names for hashes: `source="source_node"` puts the name of `source` into `source_node` in its place.

    A name that nobody ever told keeps its number, in hex, so that two of them stay two.
    """
    # The same lookup for all of them: Spark sends it out once.
    lookup = sf.broadcast(names.select(sf.col("name_hash").alias("_hash"), sf.col("name").alias("_name")))
    for hashed, named in columns.items():
        joined = rows.join(lookup, sf.col(hashed) == sf.col("_hash"), how="left")
        name = sf.coalesce(sf.col("_name"), sf.concat(sf.lit("#"), sf.lower(sf.hex(hashed))))
        rows = joined.select(*[name.alias(named) if each == hashed else sf.col(each) for each in rows.columns])
    return rows
