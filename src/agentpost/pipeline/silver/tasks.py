"""One row for each task: when it was created, accepted and ended, what was promised, and how it is going.

Names are hashes; `silver.names` has what they stand for. Of several ETAs the latest date counts as the promise.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import name_hash, place_of
from agentpost.pipeline.silver import merging
from agentpost.protocol.payloads import Kind

__all__ = ["COLUMNS", "merge", "merge_rows", "partials"]

COLUMNS: Final[merging.Columns] = {
    "created_us": ("min", "bigint"),
    "create_place": ("min", "bigint"),
    "created_by": ("max", "bigint"),  # hash of the node
    "capability": ("max", "bigint"),
    "skill_version": ("max", "bigint"),
    "task_type": ("max", "bigint"),
    "requester": ("max", "bigint"),
    "deadline_us": ("max", "bigint"),
    "accepted_us": ("min", "bigint"),
    "assignee": ("max", "bigint"),
    "first_eta_us": ("min", "bigint"),
    "eta_us": ("max", "bigint"),
    "updates": ("sum", "bigint"),
    "progress": ("max", "int"),
    "completed_us": ("min", "bigint"),
    "canceled_us": ("min", "bigint"),
    "failed_us": ("min", "bigint"),
    "failed_place": ("min", "bigint"),
    "failed_by": ("max", "bigint"),  # hash of the node
    "failure_class": ("max", "bigint"),
}
# A task keeps its conversation, so the corr id costs nothing as a part of the key.
_KEY: Final = ("hour", "task_id", "corr_id")


def partials(bronze: DataFrame) -> DataFrame:
    """What these events say of tasks."""
    kind = sf.col("kind")
    place = place_of(sf.col("node"), sf.col("epoch"), sf.col("seq"))

    def of(wanted: Kind, value: Column) -> Column:
        return sf.when(kind == str(wanted), value)

    def named(wanted: Kind, column: str) -> Column:
        return of(wanted, name_hash(sf.col(column)))

    ended = sf.coalesce("ended_us", "created_us")
    rows = merging.rows_of(
        bronze.where(sf.col("task_id").isNotNull()).withColumn("hour", sf.col("task_hour")),
        _KEY,
        COLUMNS,
        created_us=of(Kind.TASK_CREATE, sf.col("created_us")),
        create_place=of(Kind.TASK_CREATE, place),
        created_by=named(Kind.TASK_CREATE, "node"),
        capability=named(Kind.TASK_CREATE, "capability_id"),
        skill_version=named(Kind.TASK_CREATE, "skill_version"),
        task_type=named(Kind.TASK_CREATE, "task_type"),
        requester=named(Kind.TASK_CREATE, "requester_agent"),
        deadline_us=of(Kind.TASK_CREATE, sf.col("deadline_us")),
        accepted_us=of(Kind.TASK_ACCEPT, sf.col("created_us")),
        assignee=named(Kind.TASK_ACCEPT, "source_agent"),
        first_eta_us=of(Kind.TASK_ACCEPT, sf.col("eta_us")),
        eta_us=sf.col("eta_us"),
        # A resend of an update is no other update.
        updates=of(Kind.TASK_UPDATE, sf.when(sf.col("attempt") == 1, sf.lit(1))),
        progress=sf.col("progress"),
        completed_us=of(Kind.TASK_COMPLETE, ended),
        canceled_us=of(Kind.SIGNAL, sf.col("created_us")),
        failed_us=of(Kind.TASK_FAILED, ended),
        failed_place=of(Kind.TASK_FAILED, place),
        failed_by=named(Kind.TASK_FAILED, "node"),
        failure_class=named(Kind.TASK_FAILED, "failure_class"),
    )
    return merge(rows)


def merge(rows: DataFrame) -> DataFrame:
    """One row for each task out of any number of rows for it."""
    return merging.merge(rows, _KEY, COLUMNS)


def merge_rows(rows: pa.Table) -> pa.Table:
    """The same for what the driver has."""
    return merging.merge_rows(rows, _KEY, COLUMNS)
