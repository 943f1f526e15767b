"""Outboxes as their segments tell them: what is missing, broken, or there twice with a difference (OBS-7)."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from agentpost.lake.manifest import SegmentManifest
from agentpost.pipeline.checking import Finding
from agentpost.pipeline.files import Files
from agentpost.pipeline.ranges import Range, Ranges, subtract

__all__ = ["JOINT", "Outboxes", "Segment", "forks", "sequence_findings"]

# What is said of a segment that does not fit the one before: found anew each time, since one in between may come late.
JOINT: Final = "does not follow from the segment before"


class Segment(Struct, frozen=True, kw_only=True):
    """A segment that was looked at. `slices` is what is read of it; `reason` why nothing is."""

    node: str
    epoch: str
    first_seq: int
    last_seq: int
    sealed_at_us: int
    sealed_by: str
    start_chain: str
    end_chain: str
    path: str
    sha256: str
    manifest: str
    manifest_size: int
    manifest_stamp: int
    slices: Ranges
    newest_us: int
    reason: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Segment":
        slices = tuple(zip(row["slice_first"], row["slice_last"], strict=True))
        return cls(slices=slices, **{name: row[name] for name in cls.__struct_fields__ if name != "slices"})

    def row(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "slices"}
        first, last = [one for one, _ in self.slices], [other for _, other in self.slices]
        return {**values, "slice_first": first, "slice_last": last}

    def touches(self, other: SegmentManifest) -> bool:
        """Whether they have a seq in common."""
        return self.first_seq <= other.last_seq and other.first_seq <= self.last_seq

    @property
    def seqs(self) -> Range:
        return self.first_seq, self.last_seq


Outboxes = Mapping[tuple[str, str], list[Segment]]


def sequence_findings(outboxes: Outboxes) -> list[Finding]:
    """What is open now, over all that is known: what a later segment fills or heals is not found any more."""
    found: list[Finding] = []
    for segments in outboxes.values():
        good = [one for one in segments if one.reason is None]
        bad = _open_bad(segments, good)
        found += [_finding(one, "bad_segment", one.first_seq, one.reason or "") for one in bad]
        found += _gaps(good, bad)
        found += _broken_joints(good)
    return found


def _open_bad(segments: Sequence[Segment], good: Sequence[Segment]) -> list[Segment]:
    """Bad segments that no other segment stands in for: each manifest as it was last seen, each once."""
    latest = {one.manifest: one for one in segments}
    return [
        one
        for one in latest.values()
        if one.reason is not None and (one.last_seq < one.first_seq or subtract(one.seqs, [g.seqs for g in good]))
    ]


def _gaps(good: Sequence[Segment], bad: Sequence[Segment]) -> list[Finding]:
    """Seqs that nobody exported, between the first and the last one that somebody did."""
    known = [*good, *(one for one in bad if one.last_seq >= one.first_seq)]
    if not known:
        return []
    last = max(known, key=lambda one: one.last_seq)
    first_seq = min(one.first_seq for one in known)
    missing = subtract((first_seq, last.last_seq), [one.seqs for one in known])
    return [_finding(last, "gap", first, f"seq {first} to {end} are in no segment") for first, end in missing]


def _broken_joints(good: Sequence[Segment]) -> list[Finding]:
    """Where a segment does not begin with the chain that any segment before it ended with."""
    ends: dict[int, set[str]] = {}
    for one in good:
        ends.setdefault(one.last_seq, set()).add(one.end_chain)
    return [
        _finding(one, "chain_break", one.first_seq, JOINT)
        for one in good
        if one.first_seq - 1 in ends and one.start_chain not in ends[one.first_seq - 1]
    ]


def forks(lake: Files, new: Segment, known: Iterable[Segment]) -> list[Finding]:
    """Where two segments have other events under the same seqs: the first seq that differs."""
    found: list[Finding] = []
    for other in known:
        first, last = max(new.first_seq, other.first_seq), min(new.last_seq, other.last_seq)
        if first > last or other.reason is not None or other.sha256 == new.sha256:
            continue
        one, two = _chains(lake, new.path, (first, last)), _chains(lake, other.path, (first, last))
        for seq in range(first, last + 1):
            if one.get(seq) != two.get(seq):
                text = f"other events in {new.path} than in {other.path}"
                found.append(_finding(new, "fork", seq, text))
                break
    return found


def _chains(lake: Files, path: str, seqs: Range) -> dict[int, bytes]:
    between = (pc.field("seq") >= pc.scalar(seqs[0])) & (pc.field("seq") <= pc.scalar(seqs[1]))
    try:
        table = pq.read_table(
            lake.at(path), filesystem=lake.system, partitioning=None, columns=["seq", "chain"], filters=between
        )
    except (pa.ArrowException, OSError):
        return {}
    columns = (table["seq"].to_pylist(), table["chain"].to_pylist())
    return dict(zip(*cast("tuple[list[int], list[bytes]]", columns), strict=True))


def _finding(segment: Segment, rule: str, seq: int, text: str) -> Finding:
    return Finding(rule=rule, node=segment.node, epoch=segment.epoch, seq=seq, at_us=segment.sealed_at_us, text=text)
