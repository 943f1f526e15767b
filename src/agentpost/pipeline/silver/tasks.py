"""One row for each task: when it was created, accepted and ended, what was promised, and how it is going.

Names are hashes; the table `names` has what they stand for. Of several ETAs the one that was said last is the promise.
"""

from typing import Final

from pyspark.sql import DataFrame

from agentpost.pipeline.codes import name_hash, place_of
from agentpost.pipeline.silver import merging
from agentpost.pipeline.silver.merging import Column
from agentpost.protocol.payloads import Kind

__all__ = ["COLUMNS", "KEY", "merge", "partials"]

# A task keeps its conversation, so the corr id costs nothing as a part of the key.
KEY: Final = ("hour", "task_id", "corr_id")
_PLACE: Final = place_of("node", "epoch", "seq")
_ENDED: Final = "coalesce(ended_us, created_us)"


def _of(kind: Kind) -> str:
    return f"kind = '{kind}'"


_CREATE, _ACCEPT, _FAILED = _of(Kind.TASK_CREATE), _of(Kind.TASK_ACCEPT), _of(Kind.TASK_FAILED)
COLUMNS: Final[merging.Columns] = {
    "created_us": Column("min", "bigint", "created_us", _CREATE),
    "create_place": Column("min", "bigint", _PLACE, _CREATE),
    "created_by": Column("max", "bigint", name_hash("node"), _CREATE),
    "capability": Column("max", "bigint", name_hash("capability_id"), _CREATE),
    "skill_version": Column("max", "bigint", name_hash("skill_version"), _CREATE),
    "task_type": Column("max", "bigint", name_hash("task_type"), _CREATE),
    "requester": Column("max", "bigint", name_hash("requester_agent"), _CREATE),
    "deadline_us": Column("max", "bigint", "deadline_us", _CREATE),
    "accepted_us": Column("min", "bigint", "created_us", _ACCEPT),
    "assignee": Column("max", "bigint", name_hash("source_agent"), _ACCEPT),
    "accepted_by": Column("max", "bigint", name_hash("node"), _ACCEPT),  # hash of the gateway that works on it
    "first_eta_us": Column("min", "bigint", "eta_us", _ACCEPT),
    "eta_us": Column("latest", "bigint", "eta_us", by="eta_said_us"),
    "eta_said_us": Column("max", "bigint", "created_us", "eta_us is not null"),
    # A resend of an update is no other update.
    "updates": Column("sum", "bigint", "1", f"{_of(Kind.TASK_UPDATE)} and attempt = 1"),
    "progress": Column("max", "int", "progress"),
    "completed_us": Column("min", "bigint", _ENDED, _of(Kind.TASK_COMPLETE)),
    "canceled_us": Column("min", "bigint", "created_us", _of(Kind.SIGNAL)),
    "failed_us": Column("min", "bigint", _ENDED, _FAILED),
    "failed_place": Column("min", "bigint", _PLACE, _FAILED),
    "failed_by": Column("max", "bigint", name_hash("node"), _FAILED),
    "failure_class": Column("max", "bigint", name_hash("failure_class"), _FAILED),
}


def partials(bronze: DataFrame) -> DataFrame:
    """What these events say of tasks."""
    rows = bronze.where("task_id is not null").withColumnRenamed("task_hour", "hour")
    return merging.gather(rows, KEY, COLUMNS, at="created_us")


def merge(rows: DataFrame) -> DataFrame:
    """One row for each task out of any number of rows for it."""
    return merging.merge(rows, KEY, COLUMNS)
