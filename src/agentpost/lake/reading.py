"""Reading a lake back: segments that are what their manifests say, row by row, and the facts as they are now."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.place import Lake
from agentpost.lake.segments import manifests, outboxes
from agentpost.protocol.errors import Code, Refusal

__all__ = ["contiguous", "epochs_of", "facts_now", "read_facts", "read_segment", "rows"]


def epochs_of(lake: Lake, node_id: str) -> list[str]:
    """The epochs of a node's outbox, the present one last: epochs are made so that they sort by time."""
    return sorted(epoch for each, epoch in outboxes(lake) if each == node_id)


def contiguous(lake: Lake, node_id: str, epoch: str) -> list[SegmentManifest]:
    """The segments of an outbox after its last hole, in order; where two overlap, the one that reaches further."""
    found: list[SegmentManifest] = []
    for manifest in manifests(lake, node_id, epoch):
        if found and manifest.last_seq <= found[-1].last_seq:
            continue
        if found and manifest.first_seq > found[-1].last_seq + 1:
            found = []
        found.append(manifest)
    return found


def read_segment(lake: Lake, manifest: SegmentManifest, columns: Sequence[str]) -> pa.Table:
    """These columns of a segment, once its file is what the manifest says."""
    content = lake.read(manifest.path)
    if content is None or sha256(content).hexdigest() != manifest.sha256:
        problem = "is missing" if content is None else "is not the file that was sealed"
        raise Refusal(Code.STORAGE_CORRUPT, f"{manifest.path} {problem}", hint="Bring it back from a copy of the lake.")
    return pq.read_table(pa.BufferReader(content), columns=list(columns))


def rows(lake: Lake, segments: Sequence[SegmentManifest], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """These columns of all events, in order, each event once."""
    through_seq = 0
    for manifest in segments:
        for batch in read_segment(lake, manifest, ["seq", *columns]).to_batches(max_chunksize=10_000):
            values = batch.to_pydict()
            for seq, *row in zip(values["seq"], *(values[name] for name in columns), strict=True):
                if seq > through_seq:
                    through_seq = seq
                    yield seq, *row


def read_facts(lake: Lake, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of one change log; none if there is no such log."""
    content = lake.read(name)
    if content is None:
        return []
    try:
        return pq.read_table(pa.BufferReader(content), columns=list(columns)).to_pylist()
    except (pa.ArrowException, OSError):
        raise Refusal(
            Code.STORAGE_CORRUPT,
            f"{name} is no change log any more",
            hint="Take it out of the lake, or bring it back from a copy.",
        ) from None


def facts_now(lake: Lake) -> dict[tuple[str, str], dict[str, Any]]:
    """What is true now by (topic, key), as whoever saw it last wrote it down."""
    newest: dict[tuple[str, str], tuple[int, str | None]] = {}
    for observer in lake.directories("facts"):
        for name in lake.names(f"facts/{observer}"):
            for row in read_facts(lake, f"facts/{observer}/{name}", ("at_us", "topic", "key", "value")):
                place = (row["topic"], row["key"])
                if place not in newest or row["at_us"] >= newest[place][0]:
                    newest[place] = (row["at_us"], row["value"])
    return {place: msgspec.json.decode(value) for place, (_, value) in newest.items() if value is not None}
