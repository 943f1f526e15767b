"""Fields of a later protocol: ignored, and not lost on the way through."""

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from agentpost.protocol.codec import (
    decode_event,
    decode_json_event,
    encode_event,
    encode_json_event,
    frame_of,
    read_frame,
)
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Kind
from tests.protocol.samples import SEALED, full_wire
from tests.protocol.strategies import events, plain_values

pytestmark = pytest.mark.req("ENV-6")

# Names that could be mistaken for something of ours, each unknown in the place where it is put.
NAMES = ["zone", "~unknown", "unknown", "kind", "x.y", "", "日本", "payload", "event_id", "__class__"]
TOP_NAMES = [name for name in NAMES if name not in {"kind", "payload"}]


def places(wire: dict[str, Any]) -> list[dict[str, Any]]:
    """Every object of the protocol in an event: the event, and what is inside it at fixed names."""
    payload = wire["payload"]
    inner = [wire["trace"], wire["payloadRef"], payload, payload.get("sealed"), payload.get("delegationSkillRef")]
    return [each for each in inner if each is not None]


def as_json(wire: dict[str, Any]) -> Any:
    """How the same event looks in JSON, where bytes are base64 text."""
    return msgspec.json.decode(msgspec.json.encode(wire))


def through_every_way(wire: dict[str, Any]) -> None:
    """Read and write `wire` in both formats and across them; nothing may change."""
    packed = decode_event(msgspec.msgpack.encode(wire))
    written = decode_json_event(msgspec.json.encode(wire))
    assert packed == written
    assert msgspec.msgpack.decode(encode_event(packed)) == wire
    assert msgspec.msgpack.decode(encode_event(written)) == wire
    assert msgspec.json.decode(encode_json_event(packed)) == as_json(wire)
    assert msgspec.json.decode(encode_json_event(written)) == as_json(wire)
    assert decode_event(encode_event(packed)) == packed
    assert decode_json_event(encode_json_event(packed)) == packed
    assert read_frame(frame_of([encode_event(packed)] * 2)) == [packed, packed]


@pytest.mark.parametrize("kind", Kind)
def test_unknown_fields_are_kept_at_every_level(kind: Kind):
    """A field we do not know, on any level of any event, is still there after reading and writing."""
    wire = full_wire(kind)
    wire |= {name: {"later": [name, 1, None]} for name in TOP_NAMES}
    for place in places(wire):
        place |= {name: ["later", {"name": name}] for name in NAMES if name not in place}
    through_every_way(wire)


@pytest.mark.parametrize("kind", Kind)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_whatever_is_in_an_unknown_field_is_kept(kind: Kind, data: st.DataObject):
    """The content of unknown fields passes through unchanged, whatever it is and wherever it stands."""
    wire = full_wire(kind)
    wire |= data.draw(st.dictionaries(st.sampled_from(TOP_NAMES), plain_values, max_size=3))
    for place in places(wire):
        place |= {
            name: value
            for name, value in data.draw(st.dictionaries(st.sampled_from(NAMES), plain_values, max_size=2)).items()
            if name not in place
        }
    through_every_way(wire)


@pytest.mark.parametrize("kind", Kind)
def test_the_known_fields_are_read_as_if_alone(kind: Kind):
    """Unknown fields do not change what the known ones mean."""
    alone = decode_event(msgspec.msgpack.encode(full_wire(kind)))
    beside = decode_event(msgspec.msgpack.encode(full_wire(kind) | {"zone": "b"}))
    assert (beside.payload, beside.trace, beside.corr_id) == (alone.payload, alone.trace, alone.corr_id)
    assert (alone.unknown, beside.unknown) == (UNSET, {"zone": "b"})


@pytest.mark.parametrize("value", [{}, {"eventId": "x", "kind": "ack"}, {"~unknown": {}}, "text", 1, None, []])
def test_a_field_with_our_own_inner_name_is_harmless(value: Any):
    """A sender that uses the name we keep unknown fields under gets it back like any other field."""
    through_every_way(full_wire(Kind.MESSAGE) | {"~unknown": value})
    through_every_way(full_wire(Kind.MESSAGE) | {"~unknown": value, "zone": 1})


def test_an_unknown_field_cannot_replace_a_known_one():
    """Unknown fields never overwrite what the event says itself."""
    event = decode_event(msgspec.msgpack.encode(full_wire(Kind.MESSAGE)))
    forged = msgspec.structs.replace(event, unknown={"seq": 1, "trace": {"attempt": 99}, "payload": {"body": "no"}})
    assert msgspec.msgpack.decode(encode_event(forged)) == full_wire(Kind.MESSAGE)


def test_an_old_kind_keeps_its_unknown_fields():
    """An event of an older document is renamed and otherwise left whole."""
    wire = full_wire(Kind.TASK_CREATE) | {"kind": "task", "legacyId": 7}
    event = decode_event(msgspec.msgpack.encode(wire))
    assert msgspec.msgpack.decode(encode_event(event)) == wire | {"kind": "task_create"}


@settings(max_examples=100, deadline=None)
@given(events(with_unknown=True))
def test_events_with_unknown_fields_are_read_as_they_were_written(event: Event):
    """An event of any kind with fields of a later protocol is read back as the same event."""
    assert decode_event(encode_event(event)) == event
    assert decode_json_event(encode_json_event(event)) == event


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"bytes", Code.INVALID_FIELD),
        (float("nan"), Code.INVALID_FIELD),
        ({1: 2}, Code.INVALID_FIELD),
        (msgspec.msgpack.Ext(5, b"x"), Code.INVALID_FIELD),
        (msgspec.json.decode("[" * 40 + "]" * 40), Code.TOO_DEEP),
    ],
    ids=["bytes", "nan", "a key that is a number", "an extension", "deep"],
)
def test_an_unknown_field_that_cannot_be_kept_is_refused(value: Any, code: Code):
    """What one of the formats cannot carry on is refused by its place, not lost in silence."""
    top = full_wire(Kind.MESSAGE) | {"zone": value}
    inner = full_wire(Kind.MESSAGE)
    inner["payload"]["sealed"] = deepcopy(SEALED) | {"zone": value}
    for wire, place in ((top, "zone"), (inner, "payload")):
        with pytest.raises(Refusal) as caught:
            decode_event(msgspec.msgpack.encode(wire))
        assert caught.value.code is code
        assert caught.value.field is not None
        assert caught.value.field.startswith(place)
