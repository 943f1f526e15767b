"""Whatever arrives instead of an event: a refusal with a code that names the field, and never anything else."""

import json
from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from agentpost.protocol.codec import (
    MAX_EVENT_BYTES,
    decode_event,
    decode_json_event,
    encode_event,
    encode_json_event,
    frame_of,
    read_frame,
)
from agentpost.protocol.envelope import Event, MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Kind
from tests.protocol.samples import clear_wire, full_wire
from tests.protocol.strategies import CLASSES, events, plain_values

pytestmark = pytest.mark.req("ENV-6")

Decode = Callable[[bytes], Event]
FORMATS: list[tuple[Decode, Callable[[Any], bytes]]] = [
    (decode_event, msgspec.msgpack.encode),
    (decode_json_event, msgspec.json.encode),
]
both_formats = pytest.mark.parametrize(("decode", "encode"), FORMATS, ids=["msgpack", "json"])
modest = settings(max_examples=60, deadline=None)


def refusal(decode: Decode, raw: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        decode(raw)
    return caught.value


def read_or_refused(decode: Decode, raw: bytes) -> bool:
    """Whether `raw` was read; if so it can be written in both formats, if not the refusal can be shown."""
    try:
        event = decode(raw)
    except Refusal as error:
        refused = error
    else:
        assert decode_event(encode_event(event)) == event
        assert decode_json_event(encode_json_event(event)) == event
        return True
    assert refused.code in {
        Code.MALFORMED,
        Code.INVALID_FIELD,
        Code.UNKNOWN_KIND,
        Code.TOO_DEEP,
        Code.TOO_LARGE,
    }
    assert msgspec.json.encode(refused.to_wire())
    return False


@both_formats
def test_an_event_may_be_a_mebibyte_and_no_more(decode: Decode, encode: Callable[[Any], bytes]):
    """An event of exactly one MiB is read, one byte more is refused as too large."""

    def sized(extra: int) -> bytes:
        wire = clear_wire(Kind.MESSAGE)
        wire["payload"]["body"] = "x" * 100_000
        room_left = MAX_EVENT_BYTES - len(encode(wire)) + extra
        wire["payload"]["body"] += "x" * room_left
        return encode(wire)

    assert len(sized(0)) == MAX_EVENT_BYTES
    assert decode(sized(0)).kind is Kind.MESSAGE
    refused = refusal(decode, sized(1))
    assert (refused.code, refused.status, refused.field) == (Code.TOO_LARGE, 413, "event")


@both_formats
@pytest.mark.parametrize("path", ["context", "later"])
@pytest.mark.parametrize("levels", [33, 500, 100_000])
def test_deep_nesting_is_refused(decode: Decode, encode: Callable[[Any], bytes], path: str, levels: int):
    """An event that is nested too deeply is refused as such, in a field we know and in one we do not."""
    wire = clear_wire(Kind.MESSAGE)
    wire["payload"][path] = 4242
    if decode is decode_event:
        raw = encode(wire).replace(encode(4242), b"\x91" * levels + b"\x01")
    else:
        raw = encode(wire).replace(b"4242", b"[" * levels + b"]" * levels)
    refused = refusal(decode, raw)
    assert (refused.code, refused.status) == (Code.TOO_DEEP, 400)
    if levels < 500:
        assert refused.field is not None
        assert refused.field.startswith("payload")


@both_formats
@pytest.mark.parametrize("place", ["known text", "known name", "unknown text", "unknown name", "context", "kind"])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"], ids=bytes.hex)
def test_text_that_is_not_utf_8_is_refused(decode: Decode, encode: Callable[[Any], bytes], place: str, bad: bytes):
    """Bytes that are not UTF-8 are refused wherever they stand."""
    mark = "M" * len(bad)
    wire = clear_wire(Kind.MESSAGE)
    match place:
        case "known text":
            wire["payload"]["body"] = mark
        case "known name":
            wire["sourceNodeId"] = mark
        case "unknown text":
            wire["later"] = mark
        case "unknown name":
            wire[mark] = 1
        case "context":
            wire["payload"]["context"] = {"a": [mark]}
        case _:
            wire["kind"] = mark
    refused = refusal(decode, encode(wire).replace(mark.encode(), bad))
    assert (refused.code, refused.status) == (Code.MALFORMED, 400)


HALVES = [
    "\\ud800",
    "\\udbff",
    "\\udc00",
    "\\udfff",
    "\\ud800x",
    "\\ud800\\n",
    "\\ud800\\u0041",
    "\\ud800\\ud800",
    "\\udc00\\ud800",
    "\\ud800\\\\udc00",
]


def text_places(wire: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a wire object has text: every string value, and every key."""
    if isinstance(wire, str):
        yield path
    elif isinstance(wire, dict):
        for key, value in wire.items():
            yield (*path, key, "key")
            yield from text_places(value, (*path, key))
    elif isinstance(wire, list):
        for at, value in enumerate(wire):
            yield from text_places(value, (*path, at))


@pytest.mark.parametrize("kind", Kind)
def test_half_a_surrogate_pair_is_refused_in_every_text(kind: Kind):
    """JSON can write half of a character; in whatever text or name it stands, it is refused or harmless."""
    wire = msgspec.json.decode(msgspec.json.encode(full_wire(kind) | {"later": {"a": ["b"]}}))
    for *way, last in list(text_places(wire)):
        for half in HALVES:
            changed = msgspec.json.decode(msgspec.json.encode(wire))
            inner = changed
            for step in way[:-1]:
                inner = inner[step]
            if last == "key":
                inner["M4RK"] = inner.pop(way[-1])
            elif way:
                inner[way[-1]][last] = "M4RK"
            else:
                inner[last] = "M4RK"
            raw = json.dumps(changed).replace("M4RK", half).encode()
            assert not read_or_refused(decode_json_event, raw)


@pytest.mark.parametrize("encode_in", [encode_event, encode_json_event])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sourceAgentId", "\udcff"),
        ("payload.body", "caf\udce9"),
        ("payload.toAgents", "\ud800"),
        ("payload.context", "\ud800"),
        ("later", "\ud800"),
        ("\\ud800", "\ud800"),
    ],
)
def test_an_event_that_was_made_here_is_not_written_with_half_a_character(
    encode_in: Callable[[Event], bytes], path: str, value: str
):
    """A program or a terminal can hand over text that is not Unicode; writing it is refused by its field."""
    event = decode_event(msgspec.msgpack.encode(clear_wire(Kind.MESSAGE)))
    assert isinstance(event, MessageEvent)
    match path:
        case "sourceAgentId":
            event = structs.replace(event, source_agent_id=value)
        case "payload.body":
            event = structs.replace(event, payload=structs.replace(event.payload, body=value))
        case "payload.toAgents":
            event = structs.replace(event, payload=structs.replace(event.payload, to_agents=("ann", value)))
        case "payload.context":
            event = structs.replace(event, payload=structs.replace(event.payload, context={"a": value}))
        case "later":
            event = structs.replace(event, unknown={"later": {"x": value}})
        case _:
            event = structs.replace(event, unknown={value: 1})
    with pytest.raises(Refusal) as caught:
        encode_in(event)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, path)
    assert msgspec.json.encode(caught.value.to_wire())


@both_formats
@pytest.mark.parametrize("value", [None, True, 1, 1.5, "text", [], [1], [{}]], ids=repr)
def test_what_is_not_an_object_is_refused(decode: Decode, encode: Callable[[Any], bytes], value: Any):
    """A value that is no object at all is refused as malformed."""
    assert refusal(decode, encode(value)).code is Code.MALFORMED


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"{}{}", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"nul", b"{'a': 1}", b"[" * 100_000, b"\x00"],
)
def test_what_is_not_json_is_refused(raw: bytes):
    """Text that is not one JSON value in UTF-8 is refused."""
    assert refusal(decode_json_event, raw).code in {Code.MALFORMED, Code.TOO_DEEP}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x80\x80",
        b"\x81\x80\x01",
        b"\x81\x91\x01\x01",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\xd7\xff" + b"\xff" * 8,
        b"\x91" * 100_000,
    ],
    ids=lambda raw: raw[:8].hex(),
)
def test_what_is_not_msgpack_is_refused(raw: bytes):
    """Bytes that are cut off, not msgpack, or promise more than they hold are refused."""
    assert refusal(decode_event, raw).code in {Code.MALFORMED, Code.UNKNOWN_KIND, Code.TOO_DEEP}


WRONG: list[Any] = [None, True, 7, -7, 1.5, "text", "", [], [7], {}, b"bytes"]


def struct_paths(cls: type[Struct], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a Struct and of the Structs inside it, with its type."""
    for info in structs.fields(cls):
        if info.name == "unknown":
            continue
        place = f"{path}.{info.encode_name}".removeprefix(".")
        yield place, info.type
        for each in (info.type, *get_args(info.type)):
            if isinstance(each, type) and issubclass(each, Struct):
                yield from struct_paths(each, place)


def fits(value: Any, declared: Any, *, as_json: bool) -> bool:
    try:
        msgspec.convert(value, declared, builtin_types=None if as_json else (bytes,))
    except msgspec.ValidationError:
        return False
    return True


@both_formats
@pytest.mark.parametrize("kind", Kind)
def test_a_value_of_a_wrong_type_is_named(kind: Kind, decode: Decode, encode: Callable[[Any], bytes]):
    """Whichever field of whichever event has a value of a wrong type, the refusal names that field."""
    as_json = decode is decode_json_event
    tried = 0
    for path, declared in struct_paths(CLASSES[kind]):
        for value in WRONG:
            if (as_json and isinstance(value, bytes)) or fits(value, declared, as_json=as_json):
                continue
            wire = full_wire(kind)
            *way, last = path.split(".")
            inner = wire
            for name in way:
                inner = inner[name]
            inner[last] = value
            refused = refusal(decode, encode(wire))
            named = refused.field or ""
            assert refused.code is Code.INVALID_FIELD
            assert named == path or named.startswith((path + ".", path + "[")), (path, value, named)
            assert path in refused.message
            tried += 1
    assert tried > 100


@pytest.mark.parametrize("path", ["payload.sealed.keys", "payloadRef.keys"])
def test_a_key_of_a_wrong_type_is_named(path: str):
    """A map whose key is a number is refused by the name of the map."""
    wire = full_wire(Kind.MESSAGE)
    inner = wire["payload"]["sealed"] if path.startswith("payload.") else wire["payloadRef"]
    inner["keys"] = {1: b"key"}
    refused = refusal(decode_event, msgspec.msgpack.encode(wire))
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, path)


@both_formats
def test_a_refusal_does_not_repeat_a_long_value(decode: Decode, encode: Callable[[Any], bytes]):
    """However long a wrong value is, the refusal stays short."""
    wire = clear_wire(Kind.MESSAGE)
    wire["payload"]["priority"] = "urgent" * 10_000
    refused = refusal(decode, encode(wire))
    assert refused.field == "payload.priority"
    assert len(refused.message) < 400


@both_formats
@pytest.mark.parametrize("kind", Kind)
def test_every_flipped_bit_is_read_or_refused(kind: Kind, decode: Decode, encode: Callable[[Any], bytes]):
    """An event with any one bit flipped is read, and then whole, or refused."""
    # What all kinds share is flipped in one of them; bits of sealed content would only be more of the same.
    wire = full_wire(kind) if kind is Kind.MESSAGE else clear_wire(kind)
    raw = encode(wire | {"later": {"a": [1]}})
    for at in range(len(raw)):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[at] ^= 1 << bit
            read_or_refused(decode, bytes(flipped))


@both_formats
@pytest.mark.parametrize("kind", Kind)
def test_every_truncation_is_refused(kind: Kind, decode: Decode, encode: Callable[[Any], bytes]):
    """An event that is cut off anywhere, or followed by something, is refused."""
    raw = encode(full_wire(kind))
    for end in range(len(raw)):
        assert refusal(decode, raw[:end]).code is Code.MALFORMED
    assert refusal(decode, raw + raw).code is Code.MALFORMED


@both_formats
@modest
@given(raw=st.binary(max_size=200))
@example(b"\x81\xc1")
def test_arbitrary_bytes_are_refused(decode: Decode, encode: Callable[[Any], bytes], raw: bytes):
    """Bytes that nobody made as an event are refused, in either format."""
    assert not read_or_refused(decode, raw)


edits = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 3), st.binary(max_size=3)), max_size=4)


def edited(raw: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for where, cut, inserted in changes:
        at = int(where * len(raw))
        raw = raw[:at] + inserted + raw[at + cut :]
    return raw


@modest
@given(event=events(with_unknown=True), changes=edits)
def test_damaged_events_are_read_or_refused(event: Event, changes: list[tuple[float, int, bytes]]):
    """Events of every kind that were damaged in several places are read, and then whole, or refused."""
    read_or_refused(decode_event, edited(encode_event(event), changes))
    read_or_refused(decode_json_event, edited(encode_json_event(event), changes))


@both_formats
@pytest.mark.parametrize("kind", Kind)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(
    kind: Kind, decode: Decode, encode: Callable[[Any], bytes], data: st.DataObject
):
    """An event in which any fields have any other values is read, and then whole, or refused."""
    wire = full_wire(kind)
    paths = [path for path, _ in struct_paths(CLASSES[kind])]
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3)):
        *way, last = path.split(".")
        inner: Any = wire
        for name in way:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner[last] = data.draw(plain_values)
    read_or_refused(decode, encode(wire))


@modest
@given(kept=st.lists(events(with_unknown=True), max_size=3), changes=edits, raw=st.binary(max_size=60))
def test_damaged_frames_are_read_or_refused(kept: list[Event], changes: list[tuple[float, int, bytes]], raw: bytes):
    """A frame that was damaged anywhere is read, with what cannot be read set aside, or refused as a whole."""
    frame = frame_of([encode_event(event) for event in kept])
    for damaged in (edited(frame, changes), raw, b"\x92" + raw):
        try:
            read = read_frame(damaged)
        except Refusal as error:
            refused = error
        else:
            assert all(each is not None for each in read)
            continue
        assert refused.code is Code.MALFORMED
