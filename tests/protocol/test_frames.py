"""Frames: many events in one call, and one bad event that does not spoil its neighbours."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentpost.protocol.codec import (
    MAX_EVENT_BYTES,
    Unreadable,
    decode_event,
    encode_event,
    frame_of,
    read_frame,
)
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Kind
from agentpost.protocol.skim import array_items, map_items
from tests.protocol.samples import ASKED_EVENT_ID, clear_wire, full_wire
from tests.protocol.strategies import events, plain_values

pack = msgspec.msgpack.encode

GOOD = [pack(full_wire(kind) | {"seq": at}) for at, kind in enumerate(Kind, start=1)]


def bad_wire(**changes: Any) -> dict[str, Any]:
    """An event that stands at seq 77 and goes wrong in one place."""
    return clear_wire(Kind.MESSAGE) | {"seq": 77, "eventId": ASKED_EVENT_ID} | changes


def deep(levels: int) -> bytes:
    return pack(bad_wire(later=4242)).replace(pack(4242), b"\x91" * levels + b"\x01")


# name → (bytes, code, field)
BAD: dict[str, tuple[bytes, Code, str | None]] = {
    "unknown kind": (pack(bad_wire(kind="task_claim")), Code.UNKNOWN_KIND, "kind"),
    "wrong type": (pack(bad_wire(sourceNodeId=7)), Code.INVALID_FIELD, "sourceNodeId"),
    "no payload": (pack(bad_wire(payload=None)), Code.INVALID_FIELD, "payload"),
    "not a day": (pack(bad_wire(createdAt="2026-02-30T09:00:00.000Z")), Code.INVALID_FIELD, "createdAt"),
    "number as key": (pack(bad_wire() | {5: 6}), Code.INVALID_FIELD, None),
    "an extension": (pack(bad_wire(later=msgspec.msgpack.Ext(5, b"x"))), Code.INVALID_FIELD, "later"),
    "no such time": (pack(bad_wire(later=4242)).replace(pack(4242), b"\xd7\xff" + b"\xff" * 8), Code.MALFORMED, None),
    "not UTF-8": (pack(bad_wire(later="M4RK")).replace(b"M4RK", b"\xff\xff\xff\xff"), Code.MALFORMED, None),
    "deep": (deep(100), Code.TOO_DEEP, "later"),
    "bottomless": (deep(50_000), Code.TOO_DEEP, None),
    "too large": (pack(bad_wire(payload={"body": "x" * MAX_EVENT_BYTES})), Code.TOO_LARGE, "event"),
}


@pytest.mark.req("ENV-6")
def test_a_frame_is_its_events_one_by_one():
    """A frame of 256 events of all kinds, read in one call, gives what reading one by one gives."""
    raws = [pack(full_wire(kind) | {"seq": at}) for at, kind in enumerate((list(Kind) * 26)[:256], start=1)]
    events_read = read_frame(frame_of(raws))
    assert len(events_read) == 256
    assert events_read == [decode_event(raw) for raw in raws]
    assert [encode_event(each) for each in events_read if not isinstance(each, Unreadable)] == [
        encode_event(decode_event(raw)) for raw in raws
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(events(with_unknown=True), max_size=20))
def test_any_frame_is_its_events(made: list[Event]):
    """Any events, with fields of a later protocol or without, come out of a frame as they went in, in order."""
    assert read_frame(frame_of([encode_event(event) for event in made])) == made


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_a_frame_can_have_any_length(count: int):
    """A frame is an array of as many events as were put in."""
    assert msgspec.msgpack.decode(frame_of([b"\x07"] * count)) == [7] * count


@pytest.mark.req("ENV-6")
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("at", [0, 5, 10])
def test_a_bad_event_is_set_aside_in_its_place(name: str, at: int):
    """One event that cannot be read is kept with its bytes, its reason and its place; its neighbours are read."""
    raw, code, field = BAD[name]
    read = read_frame(frame_of([*GOOD[:at], raw, *GOOD[at:]]))
    bad = read.pop(at)
    assert read == [decode_event(good) for good in GOOD]
    assert isinstance(bad, Unreadable)
    assert (bad.raw, bad.refusal.code, bad.refusal.field) == (raw, code, field)
    assert (bad.seq, bad.event_id) == (77, ASKED_EVENT_ID)


@pytest.mark.req("ENV-6")
def test_all_bad_events_are_set_aside():
    """A frame in which nothing can be read is still read to its end."""
    read = read_frame(frame_of([raw for raw, _, _ in BAD.values()]))
    assert [each.refusal.code for each in read if isinstance(each, Unreadable)] == [code for _, code, _ in BAD.values()]


@pytest.mark.req("ENV-3")
def test_a_message_without_a_corr_id_gets_one_in_a_frame_too():
    """In a frame as alone, a message without a corrId is given the same one."""
    wire = full_wire(Kind.MESSAGE)
    del wire["corrId"]
    raw = pack(wire)
    assert read_frame(frame_of([GOOD[0], raw])) == [decode_event(GOOD[0]), decode_event(raw)]


def test_an_event_of_a_mebibyte_fits_a_frame():
    """An event at the limit is read from a frame that is longer than the limit."""
    wire = clear_wire(Kind.MESSAGE)
    wire["payload"]["body"] = "x" * 900_000
    assert read_frame(frame_of([pack(wire), *GOOD, pack(wire)])) == [
        decode_event(raw) for raw in (pack(wire), *GOOD, pack(wire))
    ]


@pytest.mark.parametrize(
    ("changes", "seq", "event_id"),
    [
        ({"seq": 2**63}, None, ASKED_EVENT_ID),
        ({"seq": -1}, None, ASKED_EVENT_ID),
        ({"seq": "7"}, None, ASKED_EVENT_ID),
        ({"seq": True}, None, ASKED_EVENT_ID),
        ({"eventId": 7}, 77, None),
        ({"eventId": "e" * 1000}, 77, None),
        ({"eventId": "evt_short"}, 77, "evt_short"),
    ],
    ids=repr,
)
def test_a_place_that_makes_no_sense_is_not_reported(changes: dict[str, Any], seq: int | None, event_id: str | None):
    """Where a bad event's own seq or id is no seq or no id, none is reported."""
    [bad] = read_frame(frame_of([pack(bad_wire(kind="task_claim", **changes))]))
    assert isinstance(bad, Unreadable)
    assert (bad.seq, bad.event_id) == (seq, event_id)


@pytest.mark.parametrize("raw", [pack(None), pack(7), pack("text"), pack([]), pack([77]), pack({})])
def test_what_is_no_event_at_all_is_set_aside_without_a_place(raw: bytes):
    """Something in a frame that is no event has no seq and no id, and its neighbours are read."""
    first, bad, last = read_frame(frame_of([GOOD[0], raw, GOOD[1]]))
    assert [first, last] == [decode_event(GOOD[0]), decode_event(GOOD[1])]
    assert isinstance(bad, Unreadable)
    assert (bad.raw, bad.seq, bad.event_id) == (raw, None, None)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        pack(None),
        pack("text"),
        pack({}),
        GOOD[0],
        frame_of(GOOD)[:-1],
        frame_of(GOOD) + b"\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" + GOOD[0],
        frame_of([*GOOD, deep(5000)])[:-1],
        frame_of([*GOOD, deep(5000)]) + b"\x00",
        frame_of([*GOOD, deep(5000), b"\xc1"]),
        frame_of([*GOOD, deep(5000)[:-1] + b"\xdf\xff\xff\xff\xff"]),
    ],
    ids=range(14),
)
def test_a_frame_that_is_no_array_of_events_is_refused(frame: bytes):
    """Bytes that cannot be taken apart into events are refused as a whole."""
    with pytest.raises(Refusal) as caught:
        read_frame(frame)
    assert caught.value.code is Code.MALFORMED


@given(st.lists(plain_values | st.binary(max_size=300) | st.floats() | st.text(min_size=30, max_size=300), max_size=20))
def test_an_array_is_taken_apart_without_decoding(values: list[Any]):
    """The items of an array, and the entries of a map, are found by their lengths alone."""
    packed = [pack(value) for value in values]
    assert array_items(pack(values)) == packed
    mapping = {str(at): value for at, value in enumerate(values)}
    assert list(map_items(pack(mapping))) == [(pack(key), pack(value)) for key, value in mapping.items()]


@pytest.mark.parametrize("size", [0, 1, 2, 4, 8, 16, 17, 255, 256, 70_000])
def test_every_form_of_a_value_is_stepped_over(size: int):
    """Texts, bytes, extensions, lists and maps of every size class have the length that they say."""
    values: list[Any] = ["x" * size, b"x" * size, msgspec.msgpack.Ext(5, b"x" * size), [None] * size]
    values += [dict.fromkeys(range(size)), size, -size, size << 8, -(size << 40), size / 3, True, False, None]
    assert array_items(pack(values)) == [pack(value) for value in values]


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_taken_apart_or_not(raw: bytes):
    """Stepping over arbitrary bytes ends, within them, or with an error that says so."""
    for take_apart in (array_items, lambda data: list(map_items(data))):
        try:
            take_apart(raw)
        except ValueError:
            continue
