"""What is said of a sealed segment: which part of which outbox it is, the chain around it, and who vouches for it.

Pure. A segment counts as sealed once its manifest is there. Manifests are named by their first seq, and a segment
begins where the one before ended, so there are never two for a range.
"""

from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

__all__ = [
    "MANIFEST_PURPOSE",
    "SegmentManifest",
    "facts_path",
    "manifest_directory",
    "manifest_path",
    "segment_path",
    "signed_bytes",
]

# The first line of what is signed, so that no signature made for something else passes for this one.
MANIFEST_PURPOSE: Final = "agentpost segment 1"

Hex32 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Seq = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class SegmentManifest(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One segment: events `first_seq` to `last_seq` of an outbox, none left out.

    `start_chain` is the chain before the first event, `end_chain` the one after the last. `sealed_by` is the gateway
    that wrote the segment, the owner of the outbox or a mirror of it; `signature` is by its key over `signed_bytes`.
    """

    node_id: str
    epoch: str
    first_seq: Seq
    last_seq: Seq
    start_chain: Hex32
    end_chain: Hex32
    path: str  # of the Parquet file, from the root of the lake
    size_bytes: int
    sha256: Hex32  # of the Parquet file
    sealed_at_us: int
    sealed_by: str
    signature: str = ""  # base64url without padding, as all signatures here


_encoder = msgspec.json.Encoder(order="deterministic")


def signed_bytes(manifest: SegmentManifest) -> bytes:
    """What the signature is over: the purpose, and everything but the signature."""
    return MANIFEST_PURPOSE.encode() + b"\n" + _encoder.encode(msgspec.structs.replace(manifest, signature=""))


def segment_path(node_id: str, epoch: str, first_seq: int, last_seq: int) -> str:
    return f"outbox/{_outbox(node_id, epoch)}/seq={first_seq:019d}-{last_seq:019d}.parquet"


def manifest_directory(node_id: str, epoch: str) -> str:
    return f"manifests/{_outbox(node_id, epoch)}"


def manifest_path(node_id: str, epoch: str, first_seq: int) -> str:
    return f"{manifest_directory(node_id, epoch)}/{first_seq:019d}.json"


def facts_path(observer: str, number: int) -> str:
    """The `number`th change log that a gateway wrote; numbers have no holes."""
    return f"facts/node={_quoted(observer)}/{number:012d}.parquet"


def _outbox(node_id: str, epoch: str) -> str:
    return f"node={_quoted(node_id)}/epoch={_quoted(epoch)}"


def _quoted(name: str) -> str:
    # A node id is data, never a path: "." alone would be one even when quoted.
    return quote(name, safe="").replace(".", "%2E")
