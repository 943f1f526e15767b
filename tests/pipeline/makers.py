"""Who makes the tables of a test, which has few rows: the driver as usual, or those who would make them of many."""

from contextlib import ExitStack
from unittest.mock import patch

from agentpost.pipeline import hour_workers, hours

__all__ = ["MAKERS", "made_by"]

MAKERS = ("driver", "workers", "spark")


def made_by(maker: str, *, few_events: int = 0) -> ExitStack:
    """A context in which this one makes silver and gold: `workers` are those of Spark, `spark` is its own engine.

    Of fewer than `few_events` the driver makes silver all the same.
    """
    chosen = ExitStack()
    if maker != "driver":
        for limit, value in {"SMALL_EVENTS": 0, "FEW_EVENTS": few_events, "FEW_ROWS": 0}.items():
            chosen.enter_context(patch.object(hours, limit, value))
    if maker == "workers":
        chosen.enter_context(patch.object(hour_workers, "ROWS_A_SHARE", 100))
    if maker == "spark":
        chosen.enter_context(patch.object(hour_workers, "MOST_ROWS", -1))
    return chosen
