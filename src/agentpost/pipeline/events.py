"""Single events of the lake, read with pyarrow alone: by where they stand, or by what they say.

Bronze is the table `segments` of a version: which files are read, and which seqs of each. Nothing else counts.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.dataset as ds

from agentpost.lake.schema import SEGMENT
from agentpost.pipeline.files import Files
from agentpost.pipeline.ledger import SEGMENTS
from agentpost.pipeline.warehouse import Snapshot, Warehouse

__all__ = ["COLUMNS", "Bronze", "Place"]

COLUMNS: Final = tuple(name for name in SEGMENT.names if name not in ("body", "chain"))
Row = dict[str, Any]


class Place(NamedTuple):
    """Where an event stands."""

    node: str
    epoch: str
    seq: int


class Bronze:
    """The events that a version counts."""

    def __init__(self, lake: Files, warehouse: Warehouse, version: Snapshot) -> None:
        self._lake = lake
        segments = warehouse.read(version, "segments", SEGMENTS).to_pylist()
        self._segments = [row for row in segments if row["slice_first"]]

    def at(self, places: Iterable[Place]) -> dict[Place, Row]:
        """The events at these places; what is not there is left out."""
        wanted: dict[tuple[str, str], set[int]] = defaultdict(set)
        for place in places:
            wanted[place.node, place.epoch].add(place.seq)
        found: dict[Place, Row] = {}
        for segment in self._segments:
            seqs = [
                seq for seq in wanted.get(_outbox(segment), ()) if segment["first_seq"] <= seq <= segment["last_seq"]
            ]
            if seqs:
                for row in self._read(segment, ds.field("seq").isin(sorted(seqs))):
                    found[Place(row["node"], row["epoch"], row["seq"])] = row
        return found

    def where(self, condition: ds.Expression, *, since_us: int = 0) -> list[Row]:
        """The events that fulfil a condition. Segments whose newest event is older than `since_us` are not opened."""
        return [
            row
            for segment in self._segments
            if segment["newest_us"] >= since_us
            for row in self._read(segment, condition)
        ]

    def _read(self, segment: Row, condition: ds.Expression) -> list[Row]:
        node, epoch = _outbox(segment)
        files = ds.dataset(
            self._lake.at(segment["path"]), format="parquet", filesystem=self._lake.system, schema=_SCHEMA
        )
        table = files.to_table(columns=list(COLUMNS), filter=condition & _slices(segment))
        return [{**row, "node": node, "epoch": epoch} for row in table.to_pylist()]


_SCHEMA: Final = pa.schema([field for field in SEGMENT if field.name in COLUMNS])


def _outbox(segment: Row) -> tuple[str, str]:
    return segment["node"], segment["epoch"]


def _slices(segment: Row) -> ds.Expression:
    """That an event stands where it is read from this segment, not from another."""
    firsts, lasts = cast("Sequence[int]", segment["slice_first"]), cast("Sequence[int]", segment["slice_last"])
    seq = ds.field("seq")
    inside = [(seq >= first) & (seq <= last) for first, last in zip(firsts, lasts, strict=True)]
    whole = inside[0]
    for each in inside[1:]:
        whole = whole | each
    return whole
