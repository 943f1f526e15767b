"""The frames of a link: everything that is said comes back as it was, and everything else is refused."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpost.delivery.frames import (
    MAX_FRAME_BYTES,
    Chunk,
    Credit,
    Events,
    Frame,
    GetChunk,
    Hello,
    Ping,
    Pong,
    Refused,
    Subscribe,
    Unsubscribe,
    decode_frame,
    encode_frame,
)
from agentpost.delivery.heads import sign_head, verify_head
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import OutboxHead, StreamMark
from agentpost.testing import an_identity

_FRAMES: list[Frame] = [
    Hello(node="node-a", epoch="epoch_1", version="1.0"),
    Subscribe(source="node-a", after_seq=0, after_chain=bytes(32)),
    Subscribe(source="node-a", epoch="epoch_1", after_seq=7, after_chain=bytes(32), whole=True, skip=True),
    Unsubscribe(source="node-a", whole=True),
    Events(
        source="node-a",
        epoch="epoch_1",
        after_seq=0,
        through_seq=2,
        head=b"head",
        signature=bytes(64),
        events=[b"\x80", b"\x81"],
    ),
    Credit(source="node-a", through_seq=2, bytes=1024),
    Ping(),
    Pong(),
    GetChunk(sha256="a" * 64, part=3),
    Chunk(sha256="a" * 64, part=3),
    Chunk(sha256="a" * 64, part=3, size_bytes=5, chunk_bytes=5, data=b"bytes"),
    Refused(code="conflict", message="no", source="node-a"),
]


@pytest.mark.parametrize("frame", _FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_comes_back_as_it_was(frame: Frame) -> None:
    """Encoding and decoding is the identity."""
    assert decode_frame(encode_frame(frame)) == frame


def test_events_travel_as_the_bytes_that_they_are() -> None:
    """Nothing is encoded twice: the frame contains the event as it stands in the outbox."""
    events = [b"one event", b"another"]
    frame = encode_frame(
        Events(source="a", epoch="e", after_seq=0, through_seq=2, head=b"", signature=bytes(64), events=events)
    )
    assert all(event in frame for event in events)


def test_a_field_of_a_later_version_is_passed_over() -> None:
    """A newer gateway may say more; an older one hears what it knows."""
    raw = msgspec.msgpack.encode({"frame": "ping", "mood": "good"})
    assert decode_frame(raw) == Ping()


@given(st.binary(max_size=200))
def test_whatever_bytes_come_they_are_a_frame_or_a_refusal(raw: bytes) -> None:
    """No bytes of a peer make anything but a frame or a refusal."""
    with contextlib.suppress(Refusal):
        decode_frame(raw)


@pytest.mark.parametrize(
    "fields",
    [
        {"frame": "subscribe", "source": "", "afterSeq": 0, "afterChain": bytes(32)},
        {"frame": "subscribe", "source": "a", "afterSeq": -1, "afterChain": bytes(32)},
        {"frame": "subscribe", "source": "a", "afterSeq": 0, "afterChain": bytes(31)},
        {"frame": "get_chunk", "sha256": "../../etc/passwd", "part": 0},
        {"frame": "credit", "source": "a", "throughSeq": 2**63, "bytes": 0},
        {"frame": "refused", "code": "x", "message": "y" * 513},
        {"frame": "gossip"},
        [1, 2, 3],
    ],
)
def test_values_beyond_their_limits_are_refused(fields: object) -> None:
    """Lengths, ranges and forms are checked while a frame is read."""
    with pytest.raises(Refusal) as refused:
        decode_frame(msgspec.msgpack.encode(fields))
    assert refused.value.code is Code.MALFORMED


def test_a_frame_has_a_largest_size() -> None:
    """What is larger is refused before it is looked at."""
    with pytest.raises(Refusal) as refused:
        decode_frame(bytes(MAX_FRAME_BYTES + 1))
    assert refused.value.code is Code.TOO_LARGE


@pytest.mark.req("PIPE-9")
def test_a_head_is_believed_only_with_its_owners_signature() -> None:
    """Another key, another head, or the same bytes signed for another purpose do not pass."""
    owner, other = an_identity("node-a").signing, an_identity("node-b").signing
    key = owner.public_key().public_bytes_raw()
    mark = StreamMark(seq=1, chain=bytes(32))
    head = OutboxHead(node_id="node-a", epoch="e", seq=2, chain=bytes(32), streams={"node-b": mark})
    raw, signature = sign_head(head, owner)
    assert verify_head(raw, signature, key) == head
    longer, _ = sign_head(OutboxHead(node_id="node-a", epoch="e", seq=3, chain=bytes(32), streams={}), owner)
    for bad_raw, bad_signature in ((raw, other.sign(raw)), (raw, owner.sign(raw)), (longer, signature)):
        with pytest.raises(Refusal) as refused:
            verify_head(bad_raw, bad_signature, key)
        assert refused.value.code is Code.NODE_PROOF_INVALID
