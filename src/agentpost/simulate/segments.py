"""One outbox on its way into the lake: seqs, the hash chain, segments and their signed manifests."""

from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from agentpost.auth.signing import to_text
from agentpost.lake.manifest import SegmentManifest, manifest_path, segment_path, signed_bytes
from agentpost.simulate.arrow import pa, pq
from agentpost.simulate.columns import segment_columns
from agentpost.simulate.plan import World
from agentpost.simulate.rows import Rows

__all__ = ["FIRST_CHAIN", "Outbox", "parquet_bytes", "write_manifest"]

FIRST_CHAIN: Final = bytes(32)
_SEALED_AFTER_US: Final = 5_000_000
# Ids, chains and bodies are all different: a dictionary of them would be thrown away.
_ALL_DIFFERENT: Final = (
    "seq",
    "event_id",
    "corr_id",
    "created_us",
    "ref_event_id",
    "acked_us",
    "task_id",
    "chain",
    "body",
)
_manifests = msgspec.json.Encoder()


class Outbox:
    """The outbox of one node in one epoch, as far as it was written."""

    def __init__(
        self, world: World, node: int, epoch_number: int = 1, *, seq: int = 0, chain: bytes = FIRST_CHAIN
    ) -> None:
        self._world = world
        self.node = node
        self.epoch = world.epoch(node, epoch_number)
        self.seq = seq
        self.chain = chain
        self._key = world.signing_key(node)

    def skip(self, rng: np.random.Generator, rows: Rows) -> None:
        """Append `rows` without a segment: they were never exported."""
        done = segment_columns(self._world, rng, rows, self.seq + 1, self.chain)
        self.seq, self.chain = self.seq + len(rows), done.end_chain

    def seal(
        self, rng: np.random.Generator, rows: Rows, root: Path, *, broken_at: int | None = None
    ) -> SegmentManifest:
        """Append `rows` as one segment under `root`."""
        first, before = self.seq + 1, self.chain
        done = segment_columns(self._world, rng, rows, first, before, broken_at=broken_at)
        self.seq, self.chain = self.seq + len(rows), done.end_chain
        return self.write(done.table, root, first, before, done.end_chain, int(rows["t_us"][-1]))

    def write(
        self,
        table: Any,
        root: Path,
        first_seq: int,
        before: bytes,
        after: bytes,
        last_us: int,
        sealed_by: int | None = None,
    ) -> SegmentManifest:
        last_seq = first_seq + len(table) - 1
        raw = parquet_bytes(table)
        path = segment_path(self._world.node_names[self.node], self.epoch, first_seq, last_seq)
        manifest = SegmentManifest(
            node_id=self._world.node_names[self.node],
            epoch=self.epoch,
            first_seq=first_seq,
            last_seq=last_seq,
            start_chain=before.hex(),
            end_chain=after.hex(),
            path=path,
            size_bytes=len(raw),
            sha256=sha256(raw).hexdigest(),
            sealed_at_us=last_us + _SEALED_AFTER_US,
            sealed_by=self._world.node_names[self.node if sealed_by is None else sealed_by],
        )
        _put(root / path, raw)
        return write_manifest(
            root, manifest, signing=self._key if sealed_by is None else self._world.signing_key(sealed_by)
        )

    def replace_content(self, root: Path, manifest: SegmentManifest, raw: bytes) -> None:
        """Another file, and a manifest that vouches for it."""
        _put(root / manifest.path, raw)
        changed = replace(manifest, size_bytes=len(raw), sha256=sha256(raw).hexdigest(), signature="")
        write_manifest(root, changed, signing=self._key)


def write_manifest(root: Path, manifest: SegmentManifest, signing: Ed25519PrivateKey | None = None) -> SegmentManifest:
    """Put the manifest into its place, signed if a key is given and as it is if not."""
    if signing is not None:
        manifest = replace(manifest, signature=to_text(signing.sign(signed_bytes(manifest))))
    _put(root / manifest_path(manifest.node_id, manifest.epoch, manifest.first_seq), _manifests.encode(manifest))
    return manifest


def parquet_bytes(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="snappy",
        use_dictionary=[name for name in table.column_names if name not in _ALL_DIFFERENT],
        write_statistics=["seq", "created_us", "event_hour", "ref_hour", "task_hour"],
        store_schema=False,
    )
    return sink.getvalue()  # a buffer is as good as bytes here, and is not copied


def _put(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
