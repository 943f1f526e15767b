"""Lakes for tests: real events in real segments, sealed by real keys, and all the ways to damage them."""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentpost.lake.columns import segment_batch
from agentpost.lake.manifest import SegmentManifest, facts_path, manifest_path
from agentpost.lake.place import open_lake
from agentpost.lake.schema import FACTS, SEGMENT
from agentpost.lake.segments import seal
from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import Event
from agentpost.testing import START_MS, a_message, an_identity

START_US = START_MS * 1000
NOW_US = START_US + 30 * 86_400_000_000
HOUR_MS = 3_600_000


class Outbox:
    """The outbox of a node, sealed into a lake piece by piece."""

    def __init__(self, lake: Path, node: str = "node-a", epoch: str = "first") -> None:
        self.lake = lake
        self.node = node
        self.epoch = epoch
        self.identity = an_identity(node)
        self.seq = 0
        self.chain = bytes(32)

    def messages(self, count: int, *, at_ms: int | None = None, body: str = "hello") -> list[Event]:
        """Messages with the next seqs, a second apart."""
        start = START_MS if at_ms is None else at_ms
        return [
            a_message(
                self.seq + number,
                source_node_id=self.node,
                body=body,
                seq=self.seq + number,
                at_ms=start + 1000 * number,
            )
            for number in range(1, count + 1)
        ]

    def seal(self, events: Sequence[Event], *, sealed_by: str | None = None) -> SegmentManifest:
        """Append the events and seal them as one segment."""
        manifest = self.seal_from(events, first_seq=self.seq + 1, chain=self.chain, sealed_by=sealed_by)
        self.seq, self.chain = manifest.last_seq, bytes.fromhex(manifest.end_chain)
        return manifest

    def seal_from(
        self, events: Sequence[Event], *, first_seq: int, chain: bytes, sealed_by: str | None = None
    ) -> SegmentManifest:
        """Seal events at a place of the outbox, without appending them."""
        bodies = [encode_event(msgspec.structs.replace(event, seq=first_seq + at)) for at, event in enumerate(events)]
        return self.seal_bodies(bodies, first_seq=first_seq, chain=chain, sealed_by=sealed_by)

    def seal_bodies(
        self, bodies: Sequence[bytes], *, first_seq: int, chain: bytes, sealed_by: str | None = None
    ) -> SegmentManifest:
        chains: list[bytes] = []
        for body in bodies:
            chains.append(sha256((chains[-1] if chains else chain) + body).digest())
        seqs = list(range(first_seq, first_seq + len(bodies)))
        batch = segment_batch(seqs, chains, bodies, node_id=self.node)
        sealer = an_identity(sealed_by) if sealed_by else self.identity
        manifest = SegmentManifest(
            node_id=self.node,
            epoch=self.epoch,
            first_seq=seqs[0],
            last_seq=seqs[-1],
            start_chain=chain.hex(),
            end_chain=chains[-1].hex(),
            path="",
            size_bytes=0,
            sha256="0" * 64,
            sealed_at_us=max(batch["created_us"].to_pylist()) + 5_000_000,
            sealed_by=sealed_by or self.node,
        )
        return seal(open_lake(str(self.lake)), manifest, [batch], signing=sealer.signing)


def write_keys(lake: Path, *nodes: str) -> None:
    """A change log that tells the keys of these nodes."""
    rows = [
        {
            "at_us": START_US,
            "observer": nodes[0],
            "topic": "node",
            "key": node,
            "value": json.dumps({"tier": "edge", "signingPublic": an_identity(node).signing_public}),
        }
        for node in nodes
    ]
    path = lake / facts_path(nodes[0], 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, FACTS), path)


def rewrite(lake: Path, manifest: SegmentManifest, table: pa.Table) -> SegmentManifest:
    """Put another table under a manifest that vouches for it, unsigned."""
    path = lake / manifest.path
    pq.write_table(table, path)
    content = path.read_bytes()
    changed = msgspec.structs.replace(
        manifest, size_bytes=len(content), sha256=sha256(content).hexdigest(), signature=""
    )
    write_manifest(lake, changed)
    return changed


def write_manifest(lake: Path, manifest: SegmentManifest) -> None:
    name = manifest_path(manifest.node_id, manifest.epoch, manifest.first_seq)
    (lake / name).write_bytes(msgspec.json.encode(manifest))


def read_segment(lake: Path, manifest: SegmentManifest) -> pa.Table:
    return pq.read_table(lake / manifest.path, partitioning=None).cast(SEGMENT)
