"""The columns of `task_findings`, and so those of `tasks` that the tables of the fleet look at."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agentpost.pipeline.params import Params

__all__ = ["TASKS", "is_late"]

TASKS: Final = pa.schema(
    [
        ("corr_id", pa.string()),
        ("capability_id", pa.string()),
        ("delegation_skill_version", pa.string()),
        ("failure_class", pa.string()),
        ("outcome", pa.string()),
        ("eta_us", pa.int64()),
        ("ended_us", pa.int64()),
        ("create_place", pa.int64()),
        ("failed_place", pa.int64()),
        ("created_by_hash", pa.int64()),
        ("failed_by_hash", pa.int64()),
    ]
)


def is_late(params: Params) -> pc.Expression:
    """What `gold.tasks.is_late` says, for pyarrow: it ended, or is still open, after its ETA and the grace (TASK-8)."""
    due = pc.field("eta_us") + pc.scalar(params.eta_grace_us)
    ended = pc.field("ended_us")
    return (ended > due) | (ended.is_null() & (pc.scalar(params.now_us) > due))
