"""Sealed segments: writing one so that it is there whole or not at all, and finding what is there.

The data comes first, the manifest last; a segment without a manifest does not count. Whoever creates the manifest of a
first seq has sealed that range: all others that tried get `NameTaken`, and take their data away again.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import re
import secrets
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from agentpost.auth.signing import signed_by, to_text
from agentpost.lake.manifest import (
    MANIFEST_PURPOSE,
    SegmentManifest,
    manifest_directory,
    manifest_path,
    segment_path,
    signed_bytes,
)
from agentpost.lake.place import Lake, NameTaken
from agentpost.lake.schema import SEGMENT
from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "decode_manifest",
    "is_vouched_for",
    "last_manifest",
    "manifest_at",
    "manifests",
    "outboxes",
    "parquet_bytes",
    "remove_orphans",
    "seal",
]

_DECODER: Final = msgspec.json.Decoder(SegmentManifest)
_SEGMENT_NAME: Final = re.compile(r"seq=(\d{19})-(\d{19})(\.[0-9a-f]+)?\.parquet")
_ROWS_A_GROUP: Final = 65_536
# Ids, chains and bodies are nearly all different: a dictionary of them would only be in the way.
_ALL_DIFFERENT: Final = frozenset({"seq", "event_id", "corr_id", "ref_event_id", "task_id", "chain", "body"})
_DICTIONARIES: Final[Any] = [  # the stubs know of all columns or none
    name for name in SEGMENT.names if name not in _ALL_DIFFERENT and not pa.types.is_list(SEGMENT.field(name).type)
]


def parquet_bytes(batches: Sequence[pa.RecordBatch]) -> bytes:
    """A Parquet file of these batches, in memory."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_batches(batches, SEGMENT),
        sink,
        row_group_size=_ROWS_A_GROUP,
        compression="zstd",
        compression_level=1,
        use_dictionary=_DICTIONARIES,
        write_page_index=True,
    )
    return sink.getvalue().to_pybytes()


def seal(
    lake: Lake, manifest: SegmentManifest, batches: Sequence[pa.RecordBatch], *, signing: Ed25519PrivateKey
) -> SegmentManifest:
    """Write a segment. `manifest` says all but what only the file tells. Raises `NameTaken` if its range is sealed."""
    content = parquet_bytes(batches)
    path = _write_data(lake, manifest, content)
    manifest = replace(manifest, path=path, size_bytes=len(content), sha256=sha256(content).hexdigest())
    manifest = replace(manifest, signature=to_text(signing.sign(signed_bytes(manifest))))
    name = manifest_path(manifest.node_id, manifest.epoch, manifest.first_seq)
    try:
        lake.create(name, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    except NameTaken:
        lake.remove(path)
        raise
    return manifest


def _write_data(lake: Lake, manifest: SegmentManifest, content: bytes) -> str:
    path = segment_path(manifest.node_id, manifest.epoch, manifest.first_seq, manifest.last_seq)
    if lake.is_exclusive:
        try:
            lake.create(path, content)
        except NameTaken:
            pass  # somebody else seals the same range right now, or began to and died
        else:
            return path
    path = path.removesuffix(".parquet") + f".{secrets.token_hex(8)}.parquet"
    lake.create(path, content)
    return path


def is_vouched_for(manifest: SegmentManifest, public_key: str) -> bool:
    """Whether the holder of this key signed the manifest."""
    _, _, message = signed_bytes(manifest).partition(b"\n")
    return signed_by(public_key, MANIFEST_PURPOSE, message, manifest.signature)


def decode_manifest(content: bytes, *, name: str) -> SegmentManifest:
    try:
        return _DECODER.decode(content)
    except msgspec.DecodeError as error:
        raise Refusal(
            Code.MALFORMED,
            f"the manifest {name} cannot be read: {error}",
            hint="Take it out of the lake, or bring it back from a copy.",
        ) from None


def manifest_at(lake: Lake, node_id: str, epoch: str, first_seq: int) -> SegmentManifest | None:
    """The manifest of the segment that begins there, if it is sealed."""
    name = manifest_path(node_id, epoch, first_seq)
    content = lake.read(name)
    return None if content is None else decode_manifest(content, name=name)


def last_manifest(lake: Lake, node_id: str, epoch: str) -> SegmentManifest | None:
    """The end of what is sealed of an outbox."""
    names = [name for name in lake.names(manifest_directory(node_id, epoch)) if name.endswith(".json")]
    return manifest_at(lake, node_id, epoch, int(names[-1].removesuffix(".json"))) if names else None


def manifests(lake: Lake, node_id: str, epoch: str) -> Iterator[SegmentManifest]:
    """The manifests of one outbox, in the order of its events."""
    directory = manifest_directory(node_id, epoch)
    for name in lake.names(directory):
        content = lake.read(f"{directory}/{name}") if name.endswith(".json") else None
        if content is not None:
            yield decode_manifest(content, name=f"{directory}/{name}")


def outboxes(lake: Lake) -> list[tuple[str, str]]:
    """The (node, epoch) pairs that have sealed segments."""
    return [
        (unquote(node.removeprefix("node=")), unquote(epoch.removeprefix("epoch=")))
        for node in lake.directories("manifests")
        for epoch in lake.directories(f"manifests/{node}")
    ]


def remove_orphans(lake: Lake, node_id: str, epoch: str) -> list[str]:
    """Take away data that no manifest speaks of and none ever will. Gives the names.

    That is certain for data that begins within what is sealed: its place is taken. What begins after it may be somebody
    else's segment, whose manifest comes in a moment.
    """
    last = last_manifest(lake, node_id, epoch)
    if last is None:
        return []
    directory = segment_path(node_id, epoch, 1, 1).rpartition("/")[0]
    candidates = [
        f"{directory}/{name}"
        for name in lake.names(directory)
        if (found := _SEGMENT_NAME.fullmatch(name)) is not None and int(found[1]) <= last.last_seq
    ]
    # One file for each manifest leaves none over; a long lake is not read through just to find that out.
    if len(candidates) == sum(name.endswith(".json") for name in lake.names(manifest_directory(node_id, epoch))):
        return []
    named = {manifest.path for manifest in manifests(lake, node_id, epoch)}
    orphans = [name for name in candidates if name not in named]
    for name in orphans:
        lake.remove(name)
    return orphans
