"""What is new in the lake, which part of it is used, what is wrong with it: bronze as a checked list (OBS-4, OBS-5).

Bronze is no copy. It is the `segments` table: every segment that was looked at, with the ranges of seqs that are read
from it. Each seq of an outbox is read from one segment only, whoever exported it, and however often.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.schema import FACTS
from agentpost.pipeline.checking import Claim, Finding, Verdict
from agentpost.pipeline.files import Files, Listed
from agentpost.pipeline.ranges import Range, ranges_of, subtract
from agentpost.pipeline.sequence import JOINT, Segment, forks, sequence_findings
from agentpost.protocol.errors import Code, Refusal

__all__ = ["CHANGE_LOGS", "FINDINGS", "QUARANTINE", "SEGMENTS", "Intake", "Known", "NewInput", "discover", "take_in"]

_text: Final = pa.string()
_longs: Final = pa.list_(pa.field("element", pa.int64(), nullable=False))


def _schema(required: Sequence[tuple[str, pa.DataType]], optional: Sequence[str] = ()) -> pa.Schema:
    fields = [pa.field(name, kind, nullable=False) for name, kind in required]
    return pa.schema([*fields, *(pa.field(name, _text) for name in optional)])


SEGMENTS: Final = _schema(
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
        # The ranges that are read; none if the segment is quarantined, or if others cover it.
        ("slice_first", _longs),
        ("slice_last", _longs),
        ("newest_us", pa.int64()),  # when the newest event of it was made
    ],
    ["reason"],  # why it is quarantined
)
FINDINGS: Final = _schema(
    [("rule", _text), ("node", _text), ("epoch", _text), ("seq", pa.int64()), ("at_us", pa.int64()), ("text", _text)],
    ["event_id", "agent_id", "corr_id"],
)
QUARANTINE: Final = _schema(
    [
        ("path", _text),
        ("node", _text),
        ("epoch", _text),
        ("first_seq", pa.int64()),
        ("last_seq", pa.int64()),
        ("reason", _text),
    ]
)
CHANGE_LOGS: Final = _schema([("name", _text), ("size", pa.int64()), ("stamp", pa.int64())])

_manifests = msgspec.json.Decoder(SegmentManifest)
_FROM_THE_SEQUENCE: Final = frozenset({"gap", "bad_segment"})

Check = Callable[[Sequence[Claim]], Iterable[Verdict]]


class Known(Struct, frozen=True, kw_only=True):
    """What earlier runs took in, as their tables say it."""

    segments: pa.Table = SEGMENTS.empty_table()
    findings: pa.Table = FINDINGS.empty_table()
    quarantine: pa.Table = QUARANTINE.empty_table()
    facts: pa.Table = FACTS.empty_table()
    change_logs: pa.Table = CHANGE_LOGS.empty_table()


class NewInput(Struct, frozen=True, kw_only=True):
    """What the lake has and earlier runs did not see. `unread` are manifests that cannot be read, with the reason."""

    manifests: tuple[tuple[Listed, SegmentManifest], ...]
    unread: tuple[tuple[Listed, str], ...]
    change_logs: tuple[Listed, ...]

    def __bool__(self) -> bool:
        return bool(self.manifests or self.unread or self.change_logs)


class Intake(Struct, frozen=True, kw_only=True):
    """What a run adds: new rows of its tables, but all of the findings, since new segments close some."""

    segments: pa.Table
    findings: pa.Table
    quarantine: pa.Table
    facts: pa.Table
    change_logs: pa.Table
    events: int
    newest_us: int


def discover(lake: Files, known: Known, *, since_us: int | None = None) -> NewInput:
    """List the lake, and read the manifests that are new or changed."""
    if not lake.exists("manifests"):
        raise Refusal(
            Code.NOT_FOUND,
            f"there is no lake at {lake.where}",
            hint="Gateways write one with `agentpost lake export`; `agentpost simulate fleet` makes one to try.",
        )
    names, sizes, stamps = (known.segments[c].to_pylist() for c in ("manifest", "manifest_size", "manifest_stamp"))
    seen = set(zip(names, sizes, stamps, strict=True))
    # What is being written has a name that begins with a dot.
    fresh = [item for item in lake.listing("manifests") if item not in seen and "/." not in item.name]
    manifests: list[tuple[Listed, SegmentManifest]] = []
    unread: list[tuple[Listed, str]] = []
    with ThreadPoolExecutor(16) as pool:
        for item, content in zip(fresh, pool.map(lake.read, [item.name for item in fresh]), strict=True):
            try:
                manifest = _manifests.decode(content or b"")
            except (msgspec.DecodeError, UnicodeDecodeError) as problem:
                unread.append((item, f"the manifest cannot be read: {problem}"))
            else:
                manifests.append((item, manifest))
    if since_us is not None:
        manifests = [each for each in manifests if each[1].sealed_at_us >= since_us]
    read = set(zip(*(known.change_logs[c].to_pylist() for c in ("name", "size", "stamp")), strict=True))
    logs = [item for item in lake.listing("facts") if item.name.endswith(".parquet") and item not in read]
    # In the order of sealing, whatever the listing says: which of two segments comes first is not left to chance.
    ordered = sorted(manifests, key=lambda each: (each[1].sealed_at_us, each[0].name))
    return NewInput(manifests=tuple(ordered), unread=tuple(sorted(unread)), change_logs=tuple(sorted(logs)))


def take_in(lake: Files, known: Known, new: NewInput, *, check: Check) -> Intake:
    """Check what is new, and decide what is read of it."""
    facts, quarantine = _read_facts(lake, new.change_logs)
    keys = _keys_of(known.facts, facts)
    outboxes: defaultdict[tuple[str, str], list[Segment]] = defaultdict(list)
    for row in known.segments.to_pylist():
        outboxes[row["node"], row["epoch"]].append(Segment.of(row))
    checked = {_content_of(one) for segments in outboxes.values() for one in segments if one.reason is None}
    claims = [
        Claim(name=item.name, manifest=manifest, keys=keys.get(manifest.sealed_by, ()))
        for item, manifest in new.manifests
    ]
    # A manifest that was only written again says what was checked before.
    verdicts = {each.name: each for each in check([one for one in claims if _content_of_claim(one) not in checked])}
    findings = [one for one in _findings_of(known.findings) if not _is_of_the_sequence(one)]
    added = [_unread_segment(item, reason) for item, reason in new.unread]
    for one in added:
        outboxes[one.node, one.epoch].append(one)
    ends = {outbox: max(one.last_seq for one in segments) for outbox, segments in outboxes.items()}
    for item, manifest in new.manifests:
        verdict = verdicts.get(item.name) or Verdict(name=item.name)
        outbox = manifest.node_id, manifest.epoch
        # Nearly always a segment begins where all others ended, and there are none to compare it with.
        is_next = manifest.first_seq > ends.get(outbox, 0)
        others = [] if is_next else [one for one in outboxes[outbox] if one.touches(manifest)]
        segment = _segment(item, manifest, verdict, others)
        if verdict.reason is None:
            findings += forks(lake, segment, others)
            findings += verdict.findings
        outboxes[outbox].append(segment)
        ends[outbox] = max(ends.get(outbox, 0), manifest.last_seq)
        added.append(segment)
        quarantine += _left_out(segment, verdict)
    quarantine += [_quarantined(one.manifest, one, one.reason or "") for one in added[: len(new.unread)]]
    findings += sequence_findings(outboxes)
    return Intake(
        segments=pa.Table.from_pylist([one.row() for one in added], SEGMENTS),
        findings=_findings_table(findings),
        quarantine=pa.Table.from_pylist(quarantine, QUARANTINE),
        facts=facts,
        change_logs=pa.Table.from_pylist([item._asdict() for item in new.change_logs], CHANGE_LOGS),
        events=sum(last - first + 1 for one in added for first, last in one.slices),
        newest_us=max((one.newest_us for one in added), default=0),
    )


def _segment(item: Listed, manifest: SegmentManifest, verdict: Verdict, others: Sequence[Segment]) -> Segment:
    slices: tuple[Range, ...] = ()
    if verdict.reason is None:
        taken = [each for one in others for each in one.slices]
        excluded = ranges_of(seq for seq, _ in verdict.excluded)
        slices = subtract((manifest.first_seq, manifest.last_seq), [*taken, *excluded])
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
        manifest=item.name,
        manifest_size=item.size,
        manifest_stamp=item.stamp,
        slices=slices,
        newest_us=verdict.newest_us,
        reason=verdict.reason,
    )


def _content_of(segment: Segment) -> tuple[object, ...]:
    names = ("manifest", "path", "sha256", "first_seq", "last_seq", "start_chain", "end_chain", "sealed_by")
    return tuple(getattr(segment, name) for name in names)


def _content_of_claim(claim: Claim) -> tuple[object, ...]:
    names = ("path", "sha256", "first_seq", "last_seq", "start_chain", "end_chain", "sealed_by")
    return claim.name, *(getattr(claim.manifest, name) for name in names)


def _unread_segment(item: Listed, reason: str) -> Segment:
    """What the name of a manifest tells, if that is all there is."""
    parts = dict(part.split("=", 1) for part in item.name.split("/") if "=" in part)
    stem = item.name.rsplit("/", 1)[-1].removesuffix(".json")
    first = int(stem) if stem.isdigit() and len(stem) < 20 else 0
    return Segment(
        node=unquote(parts.get("node", "")),
        epoch=unquote(parts.get("epoch", "")),
        first_seq=first,
        last_seq=first - 1,
        sealed_at_us=item.stamp // 1000,
        sealed_by="",
        start_chain="",
        end_chain="",
        path="",
        sha256="",
        manifest=item.name,
        manifest_size=item.size,
        manifest_stamp=item.stamp,
        slices=(),
        newest_us=0,
        reason=reason,
    )


def _left_out(segment: Segment, verdict: Verdict) -> list[dict[str, Any]]:
    if verdict.reason is not None:
        return [_quarantined(segment.path, segment, verdict.reason)]
    return [
        _quarantined(segment.path, segment, reason) | {"first_seq": seq, "last_seq": seq}
        for seq, reason in verdict.excluded
    ]


def _quarantined(path: str, segment: Segment, reason: str) -> dict[str, Any]:
    names = ("node", "epoch", "first_seq", "last_seq")
    return {"path": path, "reason": reason, **{name: getattr(segment, name) for name in names}}


def _read_facts(lake: Files, logs: Sequence[Listed]) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The rows of these change logs, and those that cannot be read."""
    parts = [FACTS.empty_table()]
    bad: list[dict[str, Any]] = []
    for item in logs:
        try:
            table = pq.read_table(lake.at(item.name), filesystem=lake.system, partitioning=None)
            parts.append(table.select(FACTS.names).cast(FACTS))
        except (pa.ArrowException, OSError, KeyError, ValueError) as problem:
            reason = f"the change log cannot be read: {(str(problem).splitlines() or [''])[0][:200]}"
            nowhere = {"node": "", "epoch": "", "first_seq": 0, "last_seq": 0}
            bad.append({"path": item.name, "reason": reason, **nowhere})
    return pa.concat_tables(parts), bad


def _keys_of(*facts: pa.Table) -> dict[str, tuple[str, ...]]:
    """All keys that each node was ever known by: a node that joined anew has another one since."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for table in facts:
        told = table.filter(pc.equal(table["topic"], pa.scalar("node")))
        for row in told.to_pylist():
            key = _json_field(row["value"] or "", "signingPublic")
            if key:
                found[row["key"]].add(key)
    return {node: tuple(sorted(keys)) for node, keys in found.items()}


def _json_field(text: str, name: str) -> str | None:
    try:
        value: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    found: Any = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def _is_of_the_sequence(finding: Finding) -> bool:
    """Those are found anew each time, over all segments."""
    return finding.rule in _FROM_THE_SEQUENCE or finding.text == JOINT


def _findings_of(table: pa.Table) -> list[Finding]:
    return [Finding(**row) for row in table.to_pylist()]


def _findings_table(findings: Iterable[Finding]) -> pa.Table:
    """Each once: a segment that was exported twice tells of the same fault twice."""
    unique = {(one.rule, one.node, one.epoch, one.seq, one.event_id): one for one in reversed(list(findings))}
    rows = [{name: getattr(one, name) for name in FINDINGS.names} for _, one in sorted(unique.items(), key=_sort_key)]
    return pa.Table.from_pylist(rows, FINDINGS)


def _sort_key(entry: tuple[tuple[str, str, str, int, str | None], Finding]) -> tuple[str, str, str, int, str]:
    rule, node, epoch, seq, event_id = entry[0]
    return rule, node, epoch, seq, event_id or ""
