"""The ledger: every segment that was looked at, what is read of it, and which hours it speaks of. Pure.

Each seq of an outbox is read from one segment, whoever exported it and in whatever order the copies arrive: signed by
the owner comes before signed by a mirror, which comes before unsigned; among equals the one that was sealed first. A
segment that is broken is never read. Of an event that stands in two epochs of a node, as after a restored disk, the
earlier epoch counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from agentpost.pipeline.ranges import Range, Ranges, ranges_of, subtract

__all__ = ["SEGMENTS", "Planned", "Rank", "Segment", "Status", "plan"]

_text: Final = pa.string()
_longs: Final = pa.list_(pa.field("element", pa.int64()))
_finding: Final = pa.struct(
    [
        ("rule", _text),
        ("seq", pa.int64()),
        ("event_id", _text),
        ("corr_id", _text),
        ("at_us", pa.int64()),
        ("text", _text),
    ]
)
SEGMENTS: Final = pa.schema(
    [
        ("node", _text),
        ("epoch", _text),
        ("first_seq", pa.int64()),
        ("last_seq", pa.int64()),
        ("sealed_at_us", pa.int64()),
        ("sealed_by", _text),
        ("start_chain", _text),
        ("end_chain", _text),
        ("path", _text),
        ("sha256", _text),
        # The manifest as it was listed: one that was written anew is looked at anew.
        ("manifest", _text),
        ("manifest_size", pa.int64()),
        ("manifest_stamp", pa.int64()),
        ("status", _text),
        ("rank", pa.int32()),
        ("reason", _text),  # why it is set aside, or is to be tried again
        ("since_us", pa.int64()),  # since when it is to be tried again
        ("slice_first", _longs),  # the ranges of seqs that are read
        ("slice_last", _longs),
        ("left_out", _longs),  # seqs of events that are wrong by themselves
        ("fork_seq", pa.int64()),  # the first seq at which a segment that is preferred has another event
        ("fork_path", _text),
        ("regressed_seq", pa.int64()),  # the first seq at which an earlier epoch has another event
        ("newest_us", pa.int64()),  # when the newest event of it was made
        ("hours", pa.list_(pa.field("element", pa.int32()))),
        ("findings", pa.list_(pa.field("element", _finding))),
    ]
)


class Status(StrEnum):
    TAKEN = "taken"  # some or all of it is read
    SUPERSEDED = "superseded"  # others cover all of it
    RETRY = "retry"  # it could not be read this time
    SET_ASIDE = "set_aside"  # nothing of it is ever read


class Rank:
    """Which of several copies is believed, best first."""

    OWNER: Final = 0
    MIRROR: Final = 1
    UNSIGNED: Final = 2


class Segment(Struct, frozen=True, kw_only=True):
    """A row of the ledger."""

    node: str
    epoch: str
    first_seq: int
    last_seq: int
    manifest: str
    manifest_size: int = 0
    manifest_stamp: int = 0
    sealed_at_us: int = 0
    sealed_by: str = ""
    start_chain: str = ""
    end_chain: str = ""
    path: str = ""
    sha256: str = ""
    status: Status = Status.TAKEN
    rank: int = Rank.UNSIGNED
    reason: str | None = None
    since_us: int | None = None
    slices: Ranges = ()
    left_out: tuple[int, ...] = ()
    fork_seq: int | None = None
    fork_path: str | None = None
    regressed_seq: int | None = None
    newest_us: int = 0
    hours: tuple[int, ...] = ()
    findings: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Segment":
        values = {name: row[name] for name in SEGMENTS.names if name not in ("slice_first", "slice_last")}
        values |= {name: tuple(row[name] or ()) for name in ("left_out", "hours", "findings")}
        slices = tuple(zip(row["slice_first"] or (), row["slice_last"] or (), strict=True))
        return cls(**{**values, "status": Status(row["status"]), "slices": slices})

    def row(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "slices"}
        first, last = [one for one, _ in self.slices], [other for _, other in self.slices]
        return {**values, "status": str(self.status), "slice_first": first, "slice_last": last}

    @property
    def seqs(self) -> Range:
        return self.first_seq, self.last_seq

    @property
    def is_usable(self) -> bool:
        return self.status in (Status.TAKEN, Status.SUPERSEDED)

    @property
    def events(self) -> int:
        return sum(last - first + 1 for first, last in self.slices)

    def touches(self, other: "Segment") -> bool:
        """Whether they have a seq in common."""
        return self.node == other.node and self.first_seq <= other.last_seq and other.first_seq <= self.last_seq

    @property
    def order(self) -> tuple[str, int, int, str, str]:
        """The order in which segments are preferred: it does not depend on when they came."""
        return self.epoch, self.rank, self.sealed_at_us, self.sha256, self.manifest


# The first seq within a range at which two segments have other events; None if all are the same.
FirstDifference = Callable[[Segment, Segment, Range], int | None]


class Planned(Struct, frozen=True, kw_only=True):
    """What a batch makes of the ledger: rows that are new or changed, the names of rows that they replace.

    `fresh` are segments whose events only come in addition. `hours` are to be computed anew from all segments that
    speak of them: some of what they were computed from does not count any more.
    """

    rows: tuple[Segment, ...]
    replaced: frozenset[str]
    fresh: tuple[Segment, ...]
    hours: frozenset[int]


def plan(checked: Iterable[Segment], known: Iterable[Segment], first_difference: FirstDifference) -> Planned:
    """Decide what is read of these segments and of the known ones that share seqs with them.

    `known` has at least every row with the name of a checked one, and every row that shares a seq with one that is in
    question.
    """
    before = {each.manifest: each for each in known}
    now = {**before, **{each.manifest: each for each in checked}}
    news = [each for each in now.values() if before.get(each.manifest) != each]
    in_question = _component(news + [before[each.manifest] for each in news if each.manifest in before], now.values())
    decided = {each.manifest: each for each in _decided(in_question, first_difference)}
    changed = [each for name, each in decided.items() if before.get(name) != each]
    fresh: list[Segment] = []
    hours: set[int] = set()
    for each in changed:
        old = before.get(each.manifest)
        if old is None or not old.slices:
            fresh.append(each)
        elif _content(old) != _content(each) or old.slices != each.slices:
            hours.update(old.hours, each.hours)
    return Planned(
        rows=tuple(changed),
        replaced=frozenset(each.manifest for each in changed if each.manifest in before),
        fresh=tuple(each for each in fresh if each.slices),
        hours=frozenset(hours),
    )


def _component(seeds: Sequence[Segment], others: Iterable[Segment]) -> list[Segment]:
    """The segments that share seqs with one of the seeds, or with one that does."""
    left = {each.manifest: each for each in others}
    found: dict[str, Segment] = {}
    queue = list(seeds)
    while queue:
        one = queue.pop()
        near = [each for each in left.values() if each.manifest == one.manifest or each.touches(one)]
        for each in near:
            del left[each.manifest]
            found[each.manifest] = each
        queue += [each for each in near if each is not one]
    return list(found.values())


def _decided(segments: Iterable[Segment], first_difference: FirstDifference) -> list[Segment]:
    """The segments with the seqs that are read of each."""
    ordered = sorted(segments, key=lambda each: each.order)
    done: list[Segment] = []
    for each in ordered:
        if not each.is_usable:
            done.append(replace(each, slices=(), fork_seq=None, fork_path=None, regressed_seq=None))
            continue
        better = [other for other in done if other.is_usable and other.touches(each)]
        done.append(_sliced(each, better, first_difference))
    return done


def _sliced(segment: Segment, better: Sequence[Segment], first_difference: FirstDifference) -> Segment:
    taken: list[Range] = []
    fork: tuple[int, str] | None = None
    regressed: int | None = None
    for other in better:
        common = max(segment.first_seq, other.first_seq), min(segment.last_seq, other.last_seq)
        differs_at = None if other.sha256 == segment.sha256 else first_difference(segment, other, common)
        if other.epoch == segment.epoch:
            taken.append(common)
            if differs_at is not None and (fork is None or differs_at < fork[0]):
                fork = differs_at, other.path
        else:
            # The same events once more, until the two lives of the node part.
            same_through = common[1] if differs_at is None else differs_at - 1
            if same_through >= common[0]:
                taken.append((common[0], same_through))
            if differs_at is not None:
                regressed = min(differs_at, regressed or differs_at)
    left = subtract(segment.seqs, [*taken, *ranges_of(segment.left_out)])
    return replace(
        segment,
        slices=left,
        status=Status.TAKEN if left or not taken else Status.SUPERSEDED,
        fork_seq=None if fork is None else fork[0],
        fork_path=None if fork is None else fork[1],
        regressed_seq=regressed,
    )


def _content(segment: Segment) -> tuple[object, ...]:
    return segment.path, segment.sha256, segment.first_seq, segment.last_seq, segment.left_out
