"""One sealed segment, looked at from all sides before anything of it is believed (OBS-5).

Plain Python and pyarrow: this runs in the workers of Spark as well as on the driver. A segment that cannot be read, or
is not what its manifest says, is left out as a whole; single events are left out where only they are wrong. Whatever is
left out or doubtful is reported with its reason, and nothing here raises for what it finds in a file.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from agentpost.auth.signing import signed_by
from agentpost.lake.columns import segment_batch
from agentpost.lake.manifest import MANIFEST_PURPOSE, SegmentManifest, manifest_path, segment_path, signed_bytes
from agentpost.lake.schema import SEGMENT
from agentpost.pipeline.files import Files
from agentpost.pipeline.ledger import Rank, Segment, Status
from agentpost.protocol.payloads import Kind

__all__ = ["Checked", "Claim", "check_manifest"]

Longs = npt.NDArray[np.int64]
Finding = dict[str, Any]

_DAY_US: Final = 86_400_000_000
_YEAR_US: Final = 365 * _DAY_US
_HOUR_US: Final = 3_600_000_000
# What an event may weigh. A larger payload travels by reference; something this large is a mistake or an attack.
_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
# So many findings of one rule in one segment say enough; the last one says how many more there are.
_MOST_FINDINGS: Final = 1000
_CHECKED: Final = ["seq", "kind", "source_node", "created_us", "event_hour"]
# Bodies are most of a segment. They are gone through a few at a time, and what was read is not kept.
_LINKED: Final = ["chain", "body"]
# What a finding says besides: read for those segments only in which there is something to find.
_TOLD: Final = ["event_id", "corr_id", "created_us"]
_CHAIN_BYTES: Final = 32
# The short names that tables show, and the hours that events are filed under.
_NAMES: Final = ("source_agent", "requester_agent", "capability_id", "skill_version", "task_type", "failure_class")
_HOURS: Final = ("event_hour", "ref_hour", "task_hour")
_COLUMNS: Final = frozenset(SEGMENT.names) - {"seq", "chain", "body"}
# Of a segment that its owner sealed, so many rows are derived anew from their bodies.
_SAMPLE_ROWS: Final = 64
_DERIVED_AT_ONCE: Final = 5000
# So many bodies at a time: what a core keeps close.
_HASHED_AT_ONCE: Final = 2000
_KINDS: Final = pa.array([str(kind) for kind in Kind])


class Claim(Struct, frozen=True, kw_only=True):
    """A manifest as it was listed. `since_us`: since when its segment could not be read."""

    name: str
    size: int
    stamp: int
    since_us: int | None = None


class Checked(NamedTuple):
    """A row of the ledger without the seqs that are read, and the short names in the events."""

    segment: Segment
    names: frozenset[str]


class _Unusable(Exception):  # noqa: N818 - the answer of a check, not a fault of the program
    """Nothing of the segment is ever read."""


class _Unreachable(Exception):  # noqa: N818 - the same
    """The segment cannot be read now; it may be the store, or the network."""


_manifests: Final = msgspec.json.Decoder(SegmentManifest)


def check_manifest(lake: Files, claim: Claim, keys: Mapping[str, Sequence[str]], *, now_us: int) -> Checked:
    """Read a manifest and its segment; check file, schema, order, hash chain, signature, times, and columns."""
    blank = _blank(claim)
    try:
        manifest = _manifest(lake, claim)
        blank = _head(claim, manifest)
        return _checked(lake, claim, manifest, keys)
    except _Unreachable as problem:
        since_us = now_us if claim.since_us is None else claim.since_us
        return Checked(replace(blank, status=Status.RETRY, reason=str(problem), since_us=since_us), frozenset())
    except _Unusable as problem:
        bad = _finding("bad_segment", blank.first_seq, at_us=blank.sealed_at_us, text=str(problem))
        return Checked(replace(blank, status=Status.SET_ASIDE, reason=str(problem), findings=(bad,)), frozenset())


def _checked(lake: Files, claim: Claim, manifest: SegmentManifest, keys: Mapping[str, Sequence[str]]) -> Checked:
    file, table = _read(lake, claim, manifest)
    head = _head(claim, manifest)
    broken_at, lengths = _follow_chain(manifest, file)
    if broken_at is not None:
        text = "the hash chain does not fit the event"
        broken = _finding("chain_break", manifest.first_seq + broken_at, at_us=manifest.sealed_at_us, text=text)
        reason = f"chain_break: {text} at seq {broken['seq']}"
        return Checked(replace(head, status=Status.SET_ASIDE, reason=reason, findings=(broken,)), frozenset())
    _compare_columns(manifest, file)
    rank, signature = _signature(manifest, keys.get(manifest.sealed_by, ()))
    findings = [] if signature is None else [_at_first(manifest, "bad_signature", signature)]
    left_out: set[int] = set()
    rows = _Rows(manifest, file)
    for rule, places, text in _bad_rows(manifest, table, lengths):
        findings += _limited(rows, rule, places, text)
        left_out.update(manifest.first_seq + int(place) for place in places)
    if (wrong_clock := _sealer_clock(manifest, table)) is not None:
        findings.append(_at_first(manifest, "sealer_clock", wrong_clock))
    hours, names = _spoken_of(manifest, file)
    segment = replace(
        head,
        rank=rank,
        findings=tuple(findings),
        left_out=tuple(sorted(left_out)),
        newest_us=_newest_us(table, left_out, manifest.first_seq),
        hours=hours,
    )
    return Checked(segment, names)


def _manifest(lake: Files, claim: Claim) -> SegmentManifest:
    try:
        content = lake.read(claim.name)
    except OSError as problem:
        raise _Unreachable(f"the manifest cannot be read: {_first_line(problem)}") from None
    try:
        return _manifests.decode(content or b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _Unusable(f"the manifest cannot be read: {problem}") from None


def _blank(claim: Claim) -> Segment:
    """What the name of a manifest tells, if that is all there is."""
    parts = dict(part.split("=", 1) for part in claim.name.split("/") if "=" in part)
    stem = claim.name.rsplit("/", 1)[-1].removesuffix(".json")
    first = int(stem) if stem.isdigit() and len(stem) <= 19 and int(stem) < 2**63 else 0
    return Segment(
        node=unquote(parts.get("node", "")),
        epoch=unquote(parts.get("epoch", "")),
        first_seq=first,
        last_seq=first - 1,
        sealed_at_us=claim.stamp // 1000,
        manifest=claim.name,
        manifest_size=claim.size,
        manifest_stamp=claim.stamp,
    )


def _head(claim: Claim, manifest: SegmentManifest) -> Segment:
    return Segment(
        node=manifest.node_id,
        epoch=manifest.epoch,
        first_seq=manifest.first_seq,
        last_seq=manifest.last_seq,
        sealed_at_us=manifest.sealed_at_us,
        sealed_by=manifest.sealed_by,
        start_chain=manifest.start_chain,
        end_chain=manifest.end_chain,
        path=manifest.path,
        sha256=manifest.sha256,
        manifest=claim.name,
        manifest_size=claim.size,
        manifest_stamp=claim.stamp,
    )


def _spoken_of(manifest: SegmentManifest, file: pq.ParquetFile) -> tuple[tuple[int, ...], frozenset[str]]:
    """The hours that the events speak of, and the short names in them: so that no job has to ask."""
    there = set(file.schema_arrow.names)
    table = file.read(columns=[name for name in (*_NAMES, *_HOURS, "to_nodes", "created_us") if name in there])
    made = pc.divide(table["created_us"], pa.scalar(_HOUR_US, pa.int64()))
    hours: set[int] = set()
    for column in (*(table[name] for name in _HOURS if name in there), made):
        hours.update(hour for hour in pc.unique(column).to_pylist() if hour is not None)
    names = {manifest.node_id}
    for column in (*(table[name] for name in _NAMES if name in there), pc.list_flatten(table["to_nodes"])):
        names.update(name for name in pc.unique(column).to_pylist() if name)
    return tuple(sorted(hours)), frozenset(names)


def _compare_columns(manifest: SegmentManifest, file: pq.ParquetFile) -> None:
    """The columns repeat what the bodies say. Of an outbox that its owner sealed a sample is derived anew, else all."""
    is_owner = manifest.sealed_by == manifest.node_id
    groups = list(range(file.num_row_groups))
    # Which rows are looked at follows from the file as a whole: who seals it cannot choose them.
    chosen = [int(manifest.sha256[:8], 16) % len(groups)] if is_owner else groups
    compared = [name for name in file.schema_arrow.names if name in _COLUMNS]
    for batch in file.iter_batches(_SAMPLE_ROWS if is_owner else _DERIVED_AT_ONCE, chosen, use_threads=False):
        derived = segment_batch(
            batch["seq"].to_pylist(), batch["chain"].to_pylist(), batch["body"].to_pylist(), node_id=manifest.node_id
        )
        for name in compared:
            if not batch[name].cast(SEGMENT.field(name).type).equals(derived[name]):
                raise _Unusable(f"column {name} does not say what the events say")
        if is_owner:
            return


def _read(lake: Files, claim: Claim, manifest: SegmentManifest) -> tuple[pq.ParquetFile, pa.Table]:
    """A file that is what the manifest says, and the columns of it that are checked."""
    if claim.name != manifest_path(manifest.node_id, manifest.epoch, manifest.first_seq):
        raise _Unusable("the manifest speaks of another outbox or seq than its name")
    home = segment_path(manifest.node_id, manifest.epoch, 1, 1).rpartition("/")[0] + "/"
    if not manifest.path.startswith(home) or "/" in manifest.path[len(home) :]:
        raise _Unusable("the manifest names a file outside of its outbox")
    if manifest.last_seq < manifest.first_seq:
        raise _Unusable("the manifest ends before it begins")
    content = _content(lake, manifest)
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        _check_schema(file.schema_arrow)
        count = manifest.last_seq - manifest.first_seq + 1
        if file.metadata.num_rows != count:
            raise _Unusable(f"{file.metadata.num_rows} events where the manifest says {count}")
        optional = [f.name for f in SEGMENT if not f.nullable and file.schema_arrow.field(f.name).nullable]
        # The workers share the cores already.
        table = file.read(columns=list(dict.fromkeys([*_CHECKED, *optional])), use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise _unreadable(problem) from None
    for name in optional:
        if table[name].null_count:
            raise _Unusable(f"{name} is missing in {table[name].null_count} events")
    seqs = _longs(table["seq"])
    wrong = np.flatnonzero(seqs != np.arange(manifest.first_seq, manifest.last_seq + 1))
    if len(wrong):
        raise _Unusable(f"seq {seqs[wrong[0]]} stands where {manifest.first_seq + wrong[0]} should")
    return file, table


def _content(lake: Files, manifest: SegmentManifest) -> pa.Buffer:
    try:
        with lake.system.open_input_file(lake.at(manifest.path)) as file:
            content = file.read_buffer()
    except FileNotFoundError:
        # The segment is written before its manifest: it was lost, or the store does not show it yet.
        raise _Unreachable("the file is missing") from None
    except OSError as problem:
        raise _Unreachable(f"the file cannot be read: {_first_line(problem)}") from None
    if content.size != manifest.size_bytes:
        raise _Unusable(f"the file has {content.size} bytes where the manifest says {manifest.size_bytes}")
    if sha256(content).hexdigest() != manifest.sha256:
        raise _Unusable("the file is not the one that the manifest was written for (sha256)")
    return content


def _check_schema(found: pa.Schema) -> None:
    """Columns that are there have their types; those that no event can be without are there.

    A segment of before a column was added lacks it, and is read with null; more columns are a newer writer's.
    """
    for field in SEGMENT:
        place = found.get_field_index(field.name)
        if place < 0:
            if field.nullable:
                continue
            raise _Unusable(f"no column {field.name}: not a segment")
        kind: Any = found.field(place).type
        same = kind.value_type == pa.string() if pa.types.is_list(kind) else kind == field.type
        if not same or pa.types.is_list(kind) != pa.types.is_list(field.type):
            raise _Unusable(f"column {field.name} has the type {kind}, not {field.type}")


def _signature(manifest: SegmentManifest, keys: Sequence[str]) -> tuple[int, str | None]:
    """How far the segment is believed, and what is wrong with its signature. Without any key nothing can be wrong."""
    if not keys:
        return Rank.UNSIGNED, None
    _, _, message = signed_bytes(manifest).partition(b"\n")
    if any(signed_by(key, MANIFEST_PURPOSE, message, manifest.signature) for key in keys):
        return (Rank.OWNER if manifest.sealed_by == manifest.node_id else Rank.MIRROR), None
    return Rank.UNSIGNED, f"the signature is not by {manifest.sealed_by}"


def _follow_chain(manifest: SegmentManifest, file: pq.ParquetFile) -> tuple[int | None, Longs]:
    """Where the first event stands whose chain does not follow from the one before and its body; and all lengths."""
    before = bytes.fromhex(manifest.start_chain)
    broken_at: int | None = None
    at = 0
    lengths: list[Longs] = []
    for batch in _linked_batches(file):
        stored, ends, content = _linked(batch)
        lengths.append(np.diff(ends))
        if broken_at is None:
            found = _chained(before, ends.tolist(), content)
            if b"".join(found) != stored:
                broken_at = at + _first_other(found, stored)
            before = found[-1]
        at += len(batch)
    if broken_at is None and before.hex() != manifest.end_chain:
        broken_at = at - 1
    return broken_at, np.concatenate(lengths)


def _linked_batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(_HASHED_AT_ONCE, columns=_LINKED, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise _unreadable(problem) from None


def _chained(before: bytes, ends: list[int], content: memoryview) -> list[bytes]:
    """The chains that these bodies should have."""
    empty = sha256()
    found: list[bytes] = []
    for start, end in pairwise(ends):
        # A copy of one that is there takes less than a new one.
        link = empty.copy()
        link.update(before)
        link.update(content[start:end])
        before = link.digest()
        found.append(before)
    return found


def _linked(batch: pa.RecordBatch) -> tuple[bytes, Longs, memoryview]:
    """The chains in one piece of memory, and where in another one each body begins and ends.

    An object for every value would take as long as the hash.
    """
    chains, bodies = batch["chain"], batch["body"].cast(pa.large_binary())
    ends: Longs = np.frombuffer(_bytes(bodies.buffers()[1]), np.int64)[bodies.offset :][: len(bodies) + 1]
    first, last = (_CHAIN_BYTES * place for place in (chains.offset, chains.offset + len(chains)))
    return _bytes(chains.buffers()[1])[first:last].tobytes(), ends, _bytes(bodies.buffers()[2])


def _bytes(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer).cast("B")


def _first_other(found: list[bytes], stored: bytes) -> int:
    return next(n for n, each in enumerate(found) if each != stored[_CHAIN_BYTES * n :][:_CHAIN_BYTES])


def _bad_rows(manifest: SegmentManifest, table: pa.Table, lengths: Longs) -> Iterator[tuple[str, Longs, str]]:
    """Rule, places and reason of the events that are left out."""
    foreign = pc.not_equal(table["source_node"], pa.scalar(manifest.node_id))
    yield "foreign_source", _places(foreign), f"not an event of {manifest.node_id}"
    created, hour = _longs(table["created_us"]), _longs(table["event_hour"]) * _HOUR_US
    apart = (hour > 0) & (np.abs(created - hour) >= _YEAR_US)
    is_strange = _is_late(manifest, table) & ~_is_as_its_id(table)
    yield "clock_off", np.flatnonzero(is_strange | apart), "createdAt is far from when the event was made"
    unknown = pc.invert(pc.is_in(table["kind"], value_set=_KINDS))
    yield "bad_event", _places(unknown), "a kind that nobody knows"
    yield "bad_event", np.flatnonzero(lengths > _MAX_BODY_BYTES), f"larger than {_MAX_BODY_BYTES} bytes"


def _is_late(manifest: SegmentManifest, table: pa.Table) -> npt.NDArray[np.bool_]:
    return _longs(table["created_us"]) > manifest.sealed_at_us + _DAY_US


def _is_as_its_id(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether an event was created when its id was made: by a clock that agrees with itself."""
    hour = _longs(table["event_hour"]) * _HOUR_US
    return (hour > 0) & (np.abs(_longs(table["created_us"]) - hour) < _DAY_US)


def _sealer_clock(manifest: SegmentManifest, table: pa.Table) -> str | None:
    """Events that agree with their own ids and are sealed before they were made: the sealer's clock is wrong."""
    late = np.count_nonzero(_is_late(manifest, table) & _is_as_its_id(table))
    return f"{manifest.sealed_by} sealed {late} events a day or more before they were made" if late else None


class _Rows:
    """Turns places into findings."""

    def __init__(self, manifest: SegmentManifest, file: pq.ParquetFile) -> None:
        self._manifest = manifest
        self._file = file

    @cached_property
    def _table(self) -> pa.Table:
        return self._file.read(columns=_TOLD, use_threads=False)

    def finding(self, rule: str, place: int, text: str) -> Finding:
        row: Mapping[str, Any] = self._table.slice(place, 1).to_pylist()[0]
        return _finding(
            rule,
            self._manifest.first_seq + place,
            event_id=row["event_id"],
            corr_id=row["corr_id"],
            at_us=row["created_us"],
            text=text,
        )


def _limited(rows: _Rows, rule: str, places: Longs, text: str) -> list[Finding]:
    shown = [int(place) for place in places[:_MOST_FINDINGS]]
    more = len(places) - len(shown)
    found = [rows.finding(rule, place, text) for place in shown]
    if more:
        found.append(rows.finding(rule, int(places[_MOST_FINDINGS]), f"{text}; and {more - 1} more in this segment"))
    return found


def _at_first(manifest: SegmentManifest, rule: str, text: str) -> Finding:
    return _finding(rule, manifest.first_seq, at_us=manifest.sealed_at_us, text=text)


def _finding(rule: str, seq: int, **more: Any) -> Finding:
    return {"rule": rule, "seq": seq, "event_id": None, "corr_id": None, "at_us": 0, "text": "", **more}


def _newest_us(table: pa.Table, excluded: Collection[int], first_seq: int) -> int:
    created = _longs(table["created_us"])
    if excluded:
        created = np.delete(created, [seq - first_seq for seq in excluded])
    return int(created.max()) if len(created) else 0


def _places(mask: Any) -> Longs:
    return np.flatnonzero(np.asarray(mask)).astype(np.int64)


def _longs(column: pa.ChunkedArray) -> Longs:
    return np.asarray(column.combine_chunks()).astype(np.int64, copy=False)


def _unreadable(problem: BaseException) -> _Unusable:
    return _Unusable(f"not readable as Parquet: {_first_line(problem)}")


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
