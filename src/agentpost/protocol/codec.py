"""Events to bytes and back: msgpack on links and disks, JSON for people and HTTP.

Pure. Never raises anything but `Refusal`, whatever the bytes are.
"""

from collections.abc import Sequence
from typing import Any, Final, cast, get_args

import msgspec
from msgspec import UNSET, Struct, structs

from agentpost.protocol.envelope import Event, check
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import corr_id_of
from agentpost.protocol.payloads import Kind
from agentpost.protocol.skim import array_items, map_items

__all__ = [
    "MAX_EVENT_BYTES",
    "Unreadable",
    "decode_event",
    "decode_frame",
    "decode_json_event",
    "encode_event",
    "encode_json_event",
    "frame_of",
    "read_events",
    "read_frame",
]

MAX_EVENT_BYTES: Final = 1_048_576

# Kinds of older documents: read as what they are called now, never written.
_READ_AS: Final[dict[object, str]] = {"task": Kind.TASK_CREATE.value, "task_result": Kind.TASK_COMPLETE.value}
_CLASSES: Final = {cls.kind.value: cls for cls in cast(tuple[type[Event], ...], get_args(Event))}
_STARTS_A_CONVERSATION: Final = frozenset({Kind.MESSAGE, Kind.SIGNAL, Kind.DEAD_LETTER})

_SEQ_KEY: Final = msgspec.msgpack.encode("seq")
_EVENT_ID_KEY: Final = msgspec.msgpack.encode("eventId")
_LONGEST_ID: Final = 128  # the quarantine shows an id to a person; what is longer is none

# A refusal quotes what it refuses, not all of it.
_PROBLEM_LENGTH: Final = 200

_encoder = msgspec.msgpack.Encoder()
_encode = _encoder.encode
_json_encoder = msgspec.json.Encoder()
_decoder: Any = msgspec.msgpack.Decoder(Event)
_frame_decoder: Any = msgspec.msgpack.Decoder(list[Event])
_json_decoder: Any = msgspec.json.Decoder(Event)
_raw_list_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Unreadable(Struct, frozen=True, kw_only=True):
    """An event that could not be read (ENV-6): kept with its bytes and the reason, for the quarantine."""

    raw: bytes
    refusal: Refusal
    seq: int | None
    event_id: str | None


def encode_event(event: Event) -> bytes:
    """The msgpack bytes of an event, unknown fields included."""
    try:
        return _encode(event if event.unknown is UNSET else _with_unknown(event, bytes_as_text=False))
    except UnicodeEncodeError:
        raise _not_unicode(event) from None


def encode_json_event(event: Event) -> bytes:
    """The JSON bytes of an event, unknown fields included."""
    try:
        if event.unknown is UNSET:
            return _json_encoder.encode(event)
        return _json_encoder.encode(_with_unknown(event, bytes_as_text=True))
    except UnicodeEncodeError:
        raise _not_unicode(event) from None


def decode_event(raw: bytes) -> Event:
    """The event that these msgpack bytes say, checked."""
    # Runs once for every event that is read: the usual way has no calls that it can do without.
    if len(raw) > MAX_EVENT_BYTES:
        raise _too_large(raw)
    try:
        event: Event = _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _finish(_decode_carefully(raw, as_json=False))
    if event.unknown is not UNSET:
        event = _decode_carefully(raw, as_json=False)
    if not event.corr_id:
        return _finish(event)
    check(event)
    return event


def decode_json_event(raw: bytes) -> Event:
    """The event that this JSON says, checked."""
    if len(raw) > MAX_EVENT_BYTES:
        raise _too_large(raw)
    try:
        event: Event | None = _json_decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        event = None
    if event is None or event.unknown is not UNSET:
        event = _decode_carefully(raw, as_json=True)
    return _finish(event)


def frame_of(events: list[bytes]) -> bytes:
    """One msgpack array of events that are encoded already; nothing is encoded twice."""
    count = len(events)
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 65_536:
        head = b"\xdc" + count.to_bytes(2, "big")
    else:
        head = b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(events)


def decode_frame(frame: bytes) -> list[Event]:
    """All events of a frame as their types have them, the forms of ids and times not checked: for whoever does that.

    Raises ValueError for a frame that holds anything else, be it an event with unknown fields.
    """
    try:
        return cast(list[Event], _frame_decoder.decode(frame))
    except RecursionError:
        raise ValueError("an event of the frame is nested too deeply") from None


def read_frame(frame: bytes) -> list[Event | Unreadable]:
    """All events of a frame, in order. One that cannot be read stands in its place as `Unreadable`.

    Only a frame that is not an array of events at all is refused as a whole.
    """
    # Only a long frame can hold an event above the limit.
    if len(frame) > MAX_EVENT_BYTES:
        return _read_frame_carefully(frame)
    try:
        events = cast(list[Event | Unreadable], _frame_decoder.decode(frame))
        for event in cast(list[Event], events):
            check(event)
            # Only a forged event brings the field that is ours alone.
            if event.unknown is not UNSET:
                return _read_frame_carefully(frame)
    except (msgspec.DecodeError, RecursionError, ValueError, Refusal):
        return _read_frame_carefully(frame)
    return events


def read_events(raws: Sequence[bytes]) -> list[Event | Unreadable]:
    """All events of a batch, in order. One that cannot be read stands in its place as `Unreadable` (ENV-6).

    Each is read by itself: half an event must not be made whole by its neighbour.
    """
    try:
        events = [cast(Event | Unreadable, _decoder.decode(raw)) for raw in raws]
        for raw, event in zip(raws, cast(list[Event], events), strict=True):
            check(event)
            if event.unknown is not UNSET or len(raw) > MAX_EVENT_BYTES:
                return [_read_one(raw) for raw in raws]
    except (msgspec.DecodeError, RecursionError, ValueError, Refusal):
        return [_read_one(raw) for raw in raws]
    return events


def _read_frame_carefully(frame: bytes) -> list[Event | Unreadable]:
    try:
        raws = _split_frame(frame)
    except (msgspec.DecodeError, ValueError) as error:
        raise Refusal(Code.MALFORMED, f"the frame is not an array of events: {error}") from None
    return [_read_one(bytes(raw)) for raw in raws]


def _split_frame(frame: bytes) -> list[msgspec.Raw] | list[bytes]:
    try:
        return _raw_list_decoder.decode(frame)
    except RecursionError:
        return array_items(frame)


def _read_one(raw: bytes) -> Event | Unreadable:
    try:
        return decode_event(raw)
    except Refusal as refusal:
        seq, event_id = _place_of(raw)
        return Unreadable(raw=raw, refusal=refusal, seq=seq, event_id=event_id)


def _place_of(raw: bytes) -> tuple[int | None, str | None]:
    """Where an unreadable event says it stands, as far as that can be made out."""
    found: dict[bytes, object] = {}
    try:
        for key, value in map_items(raw):
            if key in (_SEQ_KEY, _EVENT_ID_KEY):
                found[key] = msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass  # what was found before the damage still counts
    seq, event_id = found.get(_SEQ_KEY), found.get(_EVENT_ID_KEY)
    return (
        seq if type(seq) is int and 0 <= seq < 2**63 else None,
        event_id if type(event_id) is str and len(event_id) <= _LONGEST_ID else None,
    )


def _too_large(raw: bytes) -> Refusal:
    return Refusal(Code.TOO_LARGE, f"the event has {len(raw)} bytes; {MAX_EVENT_BYTES} is the most", field="event")


def _finish(event: Event) -> Event:
    if not event.corr_id and event.kind in _STARTS_A_CONVERSATION and len(event.event_id) == 30:
        event = structs.replace(event, corr_id=corr_id_of(event.event_id))
    check(event)
    return event


def _decode_carefully(raw: bytes, *, as_json: bool) -> Event:
    """Decode what the fast way refused: with unknown fields set aside, or with a refusal that says why."""
    try:
        found: object = msgspec.json.decode(raw) if as_json else msgspec.msgpack.decode(raw)
    except RecursionError:
        raise Refusal(Code.TOO_DEEP, "the event is nested too deeply to be read") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise Refusal(Code.MALFORMED, f"the event cannot be decoded: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(Code.MALFORMED, "an event must be an object")
    fields = cast(dict[str, Any], found)
    kind = fields.get("kind")
    kind = _READ_AS.get(kind, kind) if isinstance(kind, str) else kind
    cls = _CLASSES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        shown = f"kind {kind!r:.40}" if "kind" in fields else "an event without a kind"
        raise Refusal(Code.UNKNOWN_KIND, f"{shown} is not one that this protocol knows", field="kind")
    # The kind chose the class and is not one of its fields; further inside it is a name like any other.
    known, unknown = _split({name: value for name, value in fields.items() if name != "kind"}, cls)
    known["kind"] = kind
    try:
        # JSON carries bytes as base64 text; msgpack as bytes.
        event = msgspec.convert(known, cls, builtin_types=None if as_json else (bytes,))
    except (msgspec.ValidationError, RecursionError, ValueError) as error:
        raise _invalid(error) from None
    return structs.replace(event, unknown=unknown) if unknown else event


def _split(fields: dict[str, Any], cls: type[Struct]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`fields` in two: what `cls` knows, and the rest; the same for the Structs inside it."""
    known: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    inner = _STRUCT_FIELDS[cls]
    for name, value in fields.items():
        nested = inner.get(name)
        if name not in inner:
            unknown[name] = value
        elif nested is not None and isinstance(value, dict):
            known[name], rest = _split(cast(dict[str, Any], value), nested)
            if rest:
                unknown[name] = rest
        else:
            known[name] = value
    return known, unknown


def _struct_fields(cls: type[Struct], found: dict[type[Struct], dict[str, type[Struct] | None]]) -> None:
    if cls in found:
        return
    found[cls] = {}
    for info in structs.fields(cls):
        if info.name == "unknown":
            continue
        candidates = (info.type, *get_args(info.type))
        nested = next((t for t in candidates if isinstance(t, type) and issubclass(t, Struct)), None)
        found[cls][info.encode_name] = nested
        if nested is not None:
            _struct_fields(nested, found)


_STRUCT_FIELDS: Final[dict[type[Struct], dict[str, type[Struct] | None]]] = {}
for _cls in _CLASSES.values():
    _struct_fields(_cls, _STRUCT_FIELDS)


def _with_unknown(event: Event, *, bytes_as_text: bool) -> dict[str, Any]:
    bare = structs.replace(event, unknown=UNSET)
    known = cast(dict[str, Any], msgspec.to_builtins(bare, builtin_types=None if bytes_as_text else (bytes,)))
    if event.unknown is not UNSET:
        _merge(known, event.unknown)
    return known


def _merge(known: dict[str, Any], unknown: dict[str, Any]) -> None:
    for name, value in unknown.items():
        inside = known.get(name)
        if isinstance(inside, dict) and isinstance(value, dict):
            _merge(cast(dict[str, Any], inside), cast(dict[str, Any], value))
        else:
            known.setdefault(name, value)


def _not_unicode(event: Event) -> Refusal:
    """The refusal of an event, built in this process, with text that no UTF-8 can carry; it names the field."""
    fields = _with_unknown(event, bytes_as_text=True)
    payload: dict[str, Any] = fields.pop("payload")
    for name, value in [*fields.items(), *((f"payload.{name}", value) for name, value in payload.items())]:
        try:
            _json_encoder.encode({name: value})
        except UnicodeEncodeError:
            # The name itself may be what cannot be said.
            place = name.encode(errors="backslashreplace").decode()
            return Refusal(Code.INVALID_FIELD, f"{place} has text that is not Unicode", field=place)
    return Refusal(Code.INVALID_FIELD, "the event has text that is not Unicode", field="event")


def _invalid(error: Exception) -> Refusal:
    """msgspec's words as ours: `payload.toAgents[1]: Expected `str`, got `int``."""
    if isinstance(error, RecursionError):
        return Refusal(Code.TOO_DEEP, "the event is nested too deeply to be read")
    problem, _, place = str(error).partition(" - at `")
    # The key of a map is placed as "key` in `$.payload.details`".
    place = place.removeprefix("key` in `").rstrip("`").removeprefix("$").removeprefix(".")
    if problem.startswith("Object missing required field `"):
        missing = problem.split("`")[1]
        place = f"{place}.{missing}" if place else missing
        problem = "is required"
    return Refusal(Code.INVALID_FIELD, f"{place or 'event'}: {problem:.{_PROBLEM_LENGTH}}", field=place or "event")
