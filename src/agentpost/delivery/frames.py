"""What two gateways say to each other over a link, as msgpack. Knows the shapes and their limits, not what follows.

A frame that is not one of these, or is larger than it may be, is a refusal, and ends the session that brought it.
Events travel as the bytes that stand in the outbox of their source; nothing is encoded twice.

    Hello        who speaks, which life of its outbox, which version
    Subscribe    "send me the outbox of `source` from here on": my stream of it, or the whole, for a mirror
    Unsubscribe  "no more of that": another link has it now
    Events       a batch, with the head that its source signed
    Credit       "I have it on my disk through here; so many bytes may be under way beyond that"
    Ping, Pong   "are you there?"
    GetChunk, Chunk   a piece of a payload that was too large for its event
    Refused      why something ends: one subscription (`source`), or all of it
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Count, Name

__all__ = [
    "LINK_VERSION",
    "MAX_FRAME_BYTES",
    "Chunk",
    "Credit",
    "Events",
    "Frame",
    "GetChunk",
    "Hello",
    "Ping",
    "Pong",
    "Refused",
    "Subscribe",
    "Unsubscribe",
    "decode_frame",
    "encode_frame",
]

LINK_VERSION: Final = "1.0"
# A batch has a mebibyte of events, or one event that is as large; a head may name every reader of the mesh.
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024

_Chain = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Text = Annotated[str, Meta(max_length=512)]
_MAX_EVENTS: Final = 4096


class _Frame(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="frame", gc=False):
    """The base of all frames. A field that this version does not know is passed over."""


class Hello(_Frame, frozen=True, kw_only=True, tag="hello"):
    node: Name
    epoch: Name
    version: Name


class Subscribe(_Frame, frozen=True, kw_only=True, tag="subscribe"):
    """`epoch` is None for a source that was never read. `after_chain` is what the reader has: who serves it can tell
    at once whether the two still agree."""

    source: Name
    epoch: Name | None = None
    after_seq: Count
    after_chain: _Chain
    whole: bool = False
    # The reader has decided to go on without what is gone (CUR-4).
    skip: bool = False
    # For the source itself: where it ended when it was last read, as it signed that. It can see that it lost something.
    head: bytes | None = None
    signature: _Signature | None = None


class Unsubscribe(_Frame, frozen=True, kw_only=True, tag="unsubscribe"):
    source: Name
    whole: bool = False


class Events(_Frame, frozen=True, kw_only=True, tag="events"):
    """Everything of the subscription after `after_seq` through `through_seq`.

    One without events whose two ends are the same says where the outbox ends: further back than the reader thinks.
    Where the reader cannot know the chain that they build on, because what was before is gone: `first_chain` is that
    after the first event of a stream, `before_chain` that before the first event of a whole outbox.
    """

    source: Name
    epoch: Name
    after_seq: Count
    through_seq: Count
    head: bytes
    signature: _Signature
    events: Annotated[list[bytes], Meta(max_length=_MAX_EVENTS)]
    whole: bool = False
    first_chain: _Chain | None = None
    before_chain: _Chain | None = None


class Credit(_Frame, frozen=True, kw_only=True, tag="credit"):
    source: Name
    through_seq: Count
    bytes: Count
    whole: bool = False


class Ping(_Frame, frozen=True, kw_only=True, tag="ping"):
    """`read_seq`: how far the peer's outbox was read here, None if it was not. `said_seq`: the last event that stands
    in the own outbox for the peer, looked up after that: whoever has it has every answer to what was read."""

    read_seq: Count | None = None
    said_seq: Count = 0


class Pong(_Frame, frozen=True, kw_only=True, tag="pong"):
    pass


class GetChunk(_Frame, frozen=True, kw_only=True, tag="get_chunk"):
    sha256: _Sha256
    part: Count


class Chunk(_Frame, frozen=True, kw_only=True, tag="chunk"):
    """A piece of a blob, with the measures of the whole. `data` is None where the piece is not there, or where it is
    not given to this peer: `code` says so then."""

    sha256: _Sha256
    part: Count
    size_bytes: Count = 0
    chunk_bytes: Count = 0
    data: bytes | None = None
    code: Name | None = None


class Refused(_Frame, frozen=True, kw_only=True, tag="refused"):
    code: Name
    message: _Text
    source: Name | None = None
    whole: bool = False


Frame = Hello | Subscribe | Unsubscribe | Events | Credit | Ping | Pong | GetChunk | Chunk | Refused

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    return _encoder.encode(frame)


def decode_frame(raw: bytes) -> Frame:
    """The frame that these bytes say, or a refusal."""
    if len(raw) > MAX_FRAME_BYTES:
        raise Refusal(
            Code.TOO_LARGE, f"a frame of {len(raw)} bytes; {MAX_FRAME_BYTES} is the most", hint="Send less at once."
        )
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Refusal(Code.MALFORMED, f"the frame cannot be read: {error!s:.200}", field="frame") from None
