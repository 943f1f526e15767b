"""The end of an outbox as its owner signs it: what a reader, or a mirror, holds against what it was handed (PIPE-9).

Pure. An outbox has one hash chain over all of it, and one more for each gateway that reads it: the stream of the events
whose `toNodes` name that gateway. A reader gets only its stream, and can still tell an event that was altered, put in
another order or left out: the chain of what it got does not end where the owner says it does.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Contract, Count, Name

__all__ = ["HEAD_PURPOSE", "OutboxHead", "StreamMark", "chain_over", "decode_head", "encode_head", "next_chain"]

# The first line of what is signed, so that no signature made for something else passes for this one.
HEAD_PURPOSE: Final = "agentpost outbox head 1"

Chain = Annotated[bytes, Meta(min_length=32, max_length=32)]


class StreamMark(Contract, frozen=True, kw_only=True):
    """Where one reader's stream ends: the seq of its last event, and its chain up to that."""

    seq: Count
    chain: Chain


class OutboxHead(Contract, frozen=True, kw_only=True):
    """The outbox of `node_id` through `seq`. `streams` has the readers that this head is shown to."""

    node_id: Name
    epoch: Name
    seq: Count
    chain: Chain
    streams: dict[str, StreamMark]


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(OutboxHead)


def next_chain(chain: bytes, body: bytes) -> bytes:
    """The hash that covers `body` and, through `chain`, everything before it."""
    return sha256(chain + body).digest()


def chain_over(chain: bytes, bodies: Iterable[bytes]) -> bytes:
    """The chain after all of `bodies`, one after the other."""
    for body in bodies:
        chain = next_chain(chain, body)
    return chain


def encode_head(head: OutboxHead) -> bytes:
    """The bytes that are signed and carried."""
    return _encoder.encode(head)


def decode_head(raw: bytes) -> OutboxHead:
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, ValueError) as error:
        raise Refusal(Code.MALFORMED, f"the head of the outbox cannot be read: {error}", field="head") from None
