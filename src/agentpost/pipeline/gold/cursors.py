"""`ack_lag` and `watermarks`: how far every gateway has read every outbox, and what may be pruned (OBS-1, PIPE-7)."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.gold.facts import newest
from agentpost.pipeline.gold.inputs import GoldInputs

__all__ = ["ack_lag", "watermarks"]

_CURSOR: Final = "consumer string, source string, epoch string, lastSeq bigint, leaseExpiresUs bigint, status string"


def ack_lag(inputs: GoldInputs) -> DataFrame:
    """One row for each consumer and source: what of its present outbox it has not read."""
    heads = _heads(inputs.segments).withColumnRenamed("epoch", "latest_epoch")
    cursors = newest(inputs.facts, "cursor", _CURSOR)
    is_present = sf.col("epoch") == sf.col("latest_epoch")
    is_active = (sf.col("status") == "active") & (
        sf.coalesce("leaseExpiresUs", sf.lit(0)) > sf.lit(inputs.params.now_us)
    )
    # A cursor in an earlier epoch has read nothing of the present one.
    read = sf.when(is_present, sf.col("lastSeq")).otherwise(sf.lit(0))
    return cursors.join(sf.broadcast(heads), cursors["source"] == heads["node"], how="inner").select(
        "consumer",
        "source",
        sf.col("latest_epoch").alias("epoch"),
        read.alias("last_seq"),
        "latest_seq",
        sf.greatest(sf.col("latest_seq") - read, sf.lit(0)).alias("lag"),
        is_active.alias("is_active"),
        "at_us",
    )


def watermarks(inputs: GoldInputs) -> DataFrame:
    """One row for each node: up to which seq its outbox may be pruned.

    That is below the smallest cursor of the active subscribers, less the retention window, and never beyond what the
    lake holds. Without an active subscriber nothing may be pruned: nobody has said that they read it.
    """
    lag = ack_lag(inputs).where("is_active and consumer <> source")
    smallest = lag.groupBy("source", sf.col("epoch").alias("_epoch")).agg(
        sf.min("last_seq").alias("smallest_cursor"), sf.count("*").alias("subscribers")
    )
    heads = _heads(inputs.segments)
    safe = sf.least("smallest_cursor", "latest_seq") - sf.lit(inputs.params.retention_events)
    return heads.join(smallest, heads["node"] == smallest["source"], how="left").select(
        "node",
        "epoch",
        sf.col("latest_seq").alias("sealed_seq"),
        "smallest_cursor",
        sf.coalesce("subscribers", sf.lit(0)).alias("subscribers"),
        sf.coalesce(sf.greatest(safe, sf.lit(0)), sf.lit(0)).alias("prune_through_seq"),
    )


def _heads(segments: DataFrame) -> DataFrame:
    """The present epoch of every node, and the last seq that the lake has of it. Epochs sort by time."""
    ends = segments.groupBy("node", "epoch").agg(sf.max("last_seq").alias("latest_seq"))
    return ends.groupBy("node").agg(
        sf.max("epoch").alias("epoch"), sf.max_by("latest_seq", "epoch").alias("latest_seq")
    )
