"""What is new in the lake: manifests are checked by Spark's workers, the ledger decides what is read of them.

Nothing of an outbox is copied. The ledger is the table `segments`: every manifest that was looked at, with the ranges of
seqs that are read from its file.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from agentpost.pipeline.checking import Checked, Claim
from agentpost.pipeline.files import Files, Listed
from agentpost.pipeline.ledger import SEGMENTS, Planned, Rank, Segment, Status, plan
from agentpost.pipeline.ranges import Range

__all__ = ["CHANGE_LOGS", "NODE_KEYS", "Intake", "Ledger", "take_in"]

_text: Final = pa.string()
CHANGE_LOGS: Final = pa.schema([("name", _text), ("size", pa.int64()), ("stamp", pa.int64()), ("problem", _text)])
# Every key that a node was ever known by: a node that joined anew has another one since.
NODE_KEYS: Final = pa.schema([("node", _text), ("key", _text)])


class Ledger(Protocol):
    """What the intake needs of the tables, as they are before the batch, and of Spark."""

    lake: Files

    def read(
        self, table: str, schema: pa.Schema, *, columns: list[str] | None = None, where: ds.Expression | None = None
    ) -> pa.Table: ...

    def check(self, claims: Sequence[Claim], keys: Mapping[str, Sequence[str]]) -> list[Checked]: ...

    def read_logs(self, logs: Sequence[Listed]) -> pa.Table:
        """Take in change logs. Gives the facts about nodes in them, and their problems."""
        ...


class Intake(Struct, frozen=True, kw_only=True):
    """What a batch adds to the ledger and to the tables beside it."""

    planned: Planned
    names: frozenset[str]
    change_logs: pa.Table
    node_keys: pa.Table
    looked_at: int
    set_aside: int
    retried: int

    @property
    def events(self) -> int:
        return sum(each.events for each in self.planned.fresh)

    @property
    def newest_us(self) -> int:
        return max((each.newest_us for each in self.planned.rows if each.slices), default=0)


def take_in(ledger: Ledger, manifests: Sequence[str] | None, *, since_us: int | None, now_us: int) -> Intake:
    """Check what is new, and what could not be read before; decide what is read of it."""
    change_logs, new_keys = _take_logs(ledger)
    keys = _keys(ledger, new_keys)
    claims = _claims(ledger, manifests, new_keys)
    checked = ledger.check(claims, keys)
    if since_us is not None:
        checked = [each for each in checked if each.segment.sealed_at_us >= since_us]
    planned = _planned(ledger, [each.segment for each in checked], now_us)
    return Intake(
        planned=planned,
        names=frozenset(name for each in checked for name in each.names),
        change_logs=change_logs,
        node_keys=pa.Table.from_pylist(
            [{"node": node, "key": key} for node, found in sorted(new_keys.items()) for key in sorted(found)], NODE_KEYS
        ),
        looked_at=len(checked),
        set_aside=sum(each.segment.status is Status.SET_ASIDE for each in checked),
        retried=sum(each.status is Status.RETRY for each in planned.rows),
    )


def _claims(ledger: Ledger, manifests: Sequence[str] | None, new_keys: Mapping[str, set[str]]) -> list[Claim]:
    """Manifests that are new or were written anew, and segments to look at again."""
    listed = _listed(ledger.lake, manifests)
    columns = ["manifest", "manifest_size", "manifest_stamp", "status", "rank", "sealed_by", "since_us"]
    named = None if manifests is None else ds.field("manifest").isin(_texts(manifests))
    again = ds.field("status") == str(Status.RETRY)
    if new_keys:
        # Now that its key is known, a signature tells something.
        again = again | ((ds.field("rank") == Rank.UNSIGNED) & ds.field("sealed_by").isin(_texts(new_keys)))
    where = None if named is None else named | again
    known = {
        row["manifest"]: row for row in ledger.read("segments", SEGMENTS, columns=columns, where=where).to_pylist()
    }
    claims: dict[str, Claim] = {}
    for name, row in known.items():
        unsigned = row["rank"] == Rank.UNSIGNED and row["sealed_by"] in new_keys
        if row["status"] == Status.RETRY or (unsigned and row["status"] != Status.SET_ASIDE):
            claims[name] = Claim(
                name=name, size=row["manifest_size"], stamp=row["manifest_stamp"], since_us=row["since_us"]
            )
    for item in listed:
        row = known.get(item.name)
        if row is None or (row["manifest_size"], row["manifest_stamp"]) != (item.size, item.stamp):
            claims[item.name] = Claim(name=item.name, size=item.size, stamp=item.stamp)
    return list(claims.values())


def _listed(lake: Files, manifests: Sequence[str] | None) -> list[Listed]:
    if manifests is None:
        # What is being written has a name that begins with a dot.
        return [item for item in lake.listing("manifests") if "/." not in item.name]
    return [item for name in manifests if (item := lake.stat(name)) is not None]


def _take_logs(ledger: Ledger) -> tuple[pa.Table, dict[str, set[str]]]:
    known = ledger.read("change_logs", CHANGE_LOGS, columns=["name", "size", "stamp"]).to_pylist()
    seen = {(row["name"], row["size"], row["stamp"]) for row in known}
    logs = sorted(item for item in ledger.lake.listing("facts") if item.name.endswith(".parquet") and item not in seen)
    if not logs:
        return CHANGE_LOGS.empty_table(), {}
    told = ledger.read_logs(logs).to_pylist()
    problems = {row["log"]: row["problem"] for row in told if row["problem"] is not None}
    rows = [{**item._asdict(), "problem": problems.get(item.name)} for item in logs]
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for row in told:
        if row["problem"] is None and (key := _json_field(row["value"] or "", "signingPublic")):
            keys[row["key"]].add(key)
    old = ledger.read("node_keys", NODE_KEYS).to_pylist()
    for row in old:
        keys[row["node"]].discard(row["key"])
    return pa.Table.from_pylist(rows, CHANGE_LOGS), {node: found for node, found in keys.items() if found}


def _keys(ledger: Ledger, new: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in ledger.read("node_keys", NODE_KEYS).to_pylist():
        found[row["node"]].add(row["key"])
    for node, keys in new.items():
        found[node] |= keys
    return {node: tuple(sorted(keys)) for node, keys in found.items()}


def _planned(ledger: Ledger, checked: Sequence[Segment], now_us: int) -> Planned:
    """Decide, with segments left for later whose files cannot be compared now."""
    known = _known(ledger, checked)
    chains = _Chains(ledger.lake)
    while True:
        done = plan(checked, known, chains.first_difference)
        if not chains.unreadable:
            return done
        doubtful, chains.unreadable = chains.unreadable, set()
        checked = [_left(each, now_us) if each.path in doubtful else each for each in checked]
        there = {each.manifest for each in checked}
        checked += [_left(each, now_us) for each in known if each.path in doubtful and each.manifest not in there]


def _left(segment: Segment, now_us: int) -> Segment:
    since_us = now_us if segment.since_us is None else segment.since_us
    return replace(segment, status=Status.RETRY, reason="the file cannot be read again", since_us=since_us)


def _known(ledger: Ledger, checked: Sequence[Segment]) -> list[Segment]:
    """The rows of the ledger with the names of checked segments, and those that share seqs with one in question."""
    if not checked:
        return []
    nodes = sorted({each.node for each in checked})
    names = [each.manifest for each in checked]
    spans: dict[str, Range] = {}
    for each in checked:
        first, last = spans.get(each.node, each.seqs)
        spans[each.node] = min(first, each.first_seq), max(last, each.last_seq)
    brief = ledger.read(
        "segments",
        SEGMENTS,
        columns=["node", "first_seq", "last_seq", "manifest"],
        where=ds.field("node").isin(_texts(nodes)) | ds.field("manifest").isin(_texts(names)),
    ).to_pylist()
    wanted = set(names) & {row["manifest"] for row in brief}
    while True:
        more = [
            row
            for row in brief
            if row["manifest"] not in wanted and _meets((row["first_seq"], row["last_seq"]), spans.get(row["node"]))
        ]
        if not more:
            break
        for row in more:
            wanted.add(row["manifest"])
            first, last = spans[row["node"]]
            spans[row["node"]] = min(first, row["first_seq"]), max(last, row["last_seq"])
    if not wanted:
        return []
    rows = ledger.read("segments", SEGMENTS, where=ds.field("manifest").isin(_texts(wanted)))
    return [Segment.of(row) for row in rows.to_pylist()]


def _meets(seqs: Range, span: Range | None) -> bool:
    return span is not None and seqs[0] <= span[1] and span[0] <= seqs[1]


class _Chains:
    """Compares what two segments have under the same seqs."""

    def __init__(self, lake: Files) -> None:
        self._lake = lake
        self.unreadable: set[str] = set()

    def first_difference(self, one: Segment, other: Segment, seqs: Range) -> int | None:
        chains = [self._read(each.path, seqs) for each in (one, other)]
        if any(each is None for each in chains):
            return None
        mine, theirs = cast("list[dict[int, bytes]]", chains)
        return next((seq for seq in range(seqs[0], seqs[1] + 1) if mine.get(seq) != theirs.get(seq)), None)

    def _read(self, path: str, seqs: Range) -> dict[int, bytes] | None:
        between = (pc.field("seq") >= pc.scalar(seqs[0])) & (pc.field("seq") <= pc.scalar(seqs[1]))
        try:
            table = pq.read_table(
                self._lake.at(path),
                filesystem=self._lake.system,
                partitioning=None,
                columns=["seq", "chain"],
                filters=between,
            )
        except (pa.ArrowException, OSError):
            self.unreadable.add(path)
            return None
        columns = (table["seq"].to_pylist(), table["chain"].to_pylist())
        return dict(zip(*cast("tuple[list[int], list[bytes]]", columns), strict=True))


def _texts(values: Iterable[str]) -> pa.Array:
    return pa.array(sorted(values), pa.string())


def _json_field(text: str, name: str) -> str | None:
    try:
        value: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    found: Any = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None
