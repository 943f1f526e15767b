"""How much a run has to do, told from file names and sizes alone: before Spark is there, and without what it needs."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Final

from agentpost.pipeline.files import Files
from agentpost.pipeline.warehouse import Warehouse

__all__ = ["SMALL_EVENTS", "is_brief"]

SMALL_EVENTS: Final = 300_000
# What a sealed event takes in its segment, about.
_EVENT_BYTES: Final = 200


def is_brief(lake: Files, warehouse: Warehouse, *, full: bool) -> bool:
    """Whether there is so little to take in that a session for it should not be made for speed."""
    version = None if full else warehouse.current()
    known: set[object] = set()
    if version is not None and version.tables.get("segments"):
        known.update(warehouse.read(version, "segments", columns=["path"])["path"].to_pylist())
    waiting = sum(item.size for item in lake.listing("outbox") if item.name not in known)
    return waiting < SMALL_EVENTS * _EVENT_BYTES
