"""One sealed segment, looked at from all sides before anything of it is believed (OBS-5).

Plain Python and pyarrow: this runs in the workers of Spark as well as on the driver. A segment that cannot be read, or
is not what its manifest says, is left out as a whole; single events are left out where only they are wrong. Whatever is
left out or doubtful is reported with its reason, and nothing here raises for what it finds in a file.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from agentpost.auth.signing import signed_by
from agentpost.lake.manifest import MANIFEST_PURPOSE, SegmentManifest, manifest_path, segment_path, signed_bytes
from agentpost.lake.schema import SEGMENT
from agentpost.pipeline.files import Files
from agentpost.protocol.payloads import Kind

__all__ = ["Claim", "Finding", "Verdict", "check_segment"]

Longs = npt.NDArray[np.int64]

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
# So many bodies at a time: what a core keeps close.
_HASHED_AT_ONCE: Final = 2000
_KINDS: Final = pa.array([str(kind) for kind in Kind])


class Finding(Struct, frozen=True, kw_only=True):
    """Something wrong, and where: an event of an outbox, or the first one of a segment."""

    rule: str
    node: str
    epoch: str
    seq: int
    event_id: str | None = None
    agent_id: str | None = None
    corr_id: str | None = None
    at_us: int = 0
    text: str = ""


class Claim(Struct, frozen=True, kw_only=True):
    """A manifest, where it was found, and the keys that its sealer is known by."""

    name: str
    manifest: SegmentManifest
    keys: tuple[str, ...]


class Verdict(Struct, frozen=True, kw_only=True):
    """What to make of a segment. `reason`: why none of it is used; `excluded`: the seqs that are left out."""

    name: str
    reason: str | None = None
    findings: tuple[Finding, ...] = ()
    excluded: tuple[tuple[int, str], ...] = ()
    newest_us: int = 0


class _Unusable(Exception):  # noqa: N818 - the answer of a check, not a fault of the program
    pass


def check_segment(lake: Files, claim: Claim) -> Verdict:
    """Check the file, the schema, the order, the hash chain, the signature and the times."""
    manifest = claim.manifest
    try:
        file, table = _read(lake, claim)
        broken_at, lengths = _follow_chain(manifest, file)
    except _Unusable as problem:
        bad = _finding(manifest, "bad_segment", manifest.first_seq, text=str(problem))
        return Verdict(name=claim.name, reason=str(problem), findings=(bad,))
    signature = _signature_problem(claim)
    findings = [] if signature is None else [_finding(manifest, "bad_signature", manifest.first_seq, text=signature)]
    excluded: dict[int, str] = {}
    rows = _Rows(manifest, file)
    if broken_at is not None:
        text = "the hash chain does not fit the event"
        findings.append(_finding(manifest, "chain_break", manifest.first_seq + broken_at, text=text))
    for rule, places, text in _bad_rows(manifest, table, lengths):
        findings += _limited(rows, rule, places, text)
        excluded.update((manifest.first_seq + int(place), f"{rule}: {text}") for place in places)
    return Verdict(
        name=claim.name,
        findings=tuple(findings),
        excluded=tuple(sorted(excluded.items())),
        newest_us=_newest_us(table, excluded, manifest.first_seq),
    )


def _read(lake: Files, claim: Claim) -> tuple[pq.ParquetFile, pa.Table]:
    """A file that is what the manifest says, and the columns of it that are checked."""
    manifest = claim.manifest
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
        raise _Unusable("the file is missing") from None
    except OSError as problem:
        raise _Unusable(f"the file cannot be read: {_first_line(problem)}") from None
    if content.size != manifest.size_bytes:
        raise _Unusable(f"the file has {content.size} bytes where the manifest says {manifest.size_bytes}")
    if sha256(content).hexdigest() != manifest.sha256:
        raise _Unusable("the file is not the one that the manifest was written for (sha256)")
    return content


def _check_schema(found: pa.Schema) -> None:
    """Every column of a segment is there, with its type. More columns are a newer writer's, and no harm."""
    for field in SEGMENT:
        place = found.get_field_index(field.name)
        if place < 0:
            raise _Unusable(f"no column {field.name}: not a segment")
        kind: Any = found.field(place).type
        same = kind.value_type == pa.string() if pa.types.is_list(kind) else kind == field.type
        if not same or pa.types.is_list(kind) != pa.types.is_list(field.type):
            raise _Unusable(f"column {field.name} has the type {kind}, not {field.type}")


def _signature_problem(claim: Claim) -> str | None:
    """None if the sealer signed the manifest, or if nobody ever told its key."""
    if not claim.keys:
        return None
    _, _, message = signed_bytes(claim.manifest).partition(b"\n")
    if any(signed_by(key, MANIFEST_PURPOSE, message, claim.manifest.signature) for key in claim.keys):
        return None
    return f"the signature is not by {claim.manifest.sealed_by}"


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
    late = created > manifest.sealed_at_us + _DAY_US
    apart = (hour > 0) & (np.abs(created - hour) >= _YEAR_US)
    yield "clock_off", np.flatnonzero(late | apart), "createdAt is far from when the event was made"
    unknown = pc.invert(pc.is_in(table["kind"], value_set=_KINDS))
    yield "bad_event", _places(unknown), "a kind that nobody knows"
    yield "bad_event", np.flatnonzero(lengths > _MAX_BODY_BYTES), f"larger than {_MAX_BODY_BYTES} bytes"


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
            self._manifest,
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


def _finding(manifest: SegmentManifest, rule: str, seq: int, **more: Any) -> Finding:
    more.setdefault("at_us", manifest.sealed_at_us)
    return Finding(rule=rule, node=manifest.node_id, epoch=manifest.epoch, seq=seq, **more)


def _newest_us(table: pa.Table, excluded: Mapping[int, str], first_seq: int) -> int:
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
