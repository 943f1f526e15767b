"""Yjs updates as data: reads the structs of an update (format v1), and encodes the one kind of write the room knows.

Knows nothing of records, rights or pycrdt. It is the strict gate in front of the CRDT library: whatever is not a plain
value under a key of a root map does not pass, so nested types, texts, arrays and subdocuments are never even built.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "EMPTY_UPDATE",
    "Write",
    "ItemId",
    "Item",
    "Span",
    "Deletion",
    "Reader",
    "Update",
    "encode_write",
    "encode_writes",
    "read_update",
    "var_uint",
]

EMPTY_UPDATE: Final = b"\x00\x00"
_LARGEST: Final = 2**53 - 1
_INT_31: Final = 2**31
_MAX_DEPTH: Final = 6

_GC, _DELETED, _ANY, _SKIP = 0, 1, 8, 10
_HAS_ORIGIN, _HAS_RIGHT_ORIGIN, _HAS_KEY, _KIND = 0x80, 0x40, 0x20, 0x1F

_GONE_AFTER: Final = frozenset({_HAS_ORIGIN | _DELETED, _HAS_ORIGIN | _HAS_KEY | _DELETED})

# What a struct of another kind would be, for the reason of a refusal.
_FOREIGN: Final = {
    2: "old JSON",
    3: "binary",
    4: "text",
    5: "an embed",
    6: "a format",
    7: "a nested type",
    9: "a subdoc",
}


class ItemId(NamedTuple):
    """Who wrote a struct, and the place of it in what that client wrote."""

    client: int
    clock: int


class Item(NamedTuple):
    """A struct of an update: a value under a key, or the place of one that is gone (`value` is None)."""

    id: ItemId
    length: int
    origin: ItemId | None
    root: str | None
    key: str | None
    value: Any


class Span(NamedTuple):
    """What an update holds of one client: all of its clocks from `start` up to `end`."""

    client: int
    start: int
    end: int


class Deletion(NamedTuple):
    client: int
    clock: int
    length: int


class Update(NamedTuple):
    """An update, read. What is gone leaves only its place in a span.

    `builds_on` has the last clock of each client that has to be there before this can be merged.
    """

    spans: list[Span]
    writes: list[Item]
    builds_on: dict[int, int]
    roots: set[str]
    deletions: list[Deletion]


class Reader:
    """Reads lib0's primitives. Every read checks the end, so bytes from anywhere raise nothing but a refusal."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._end = len(data)

    @property
    def rest(self) -> int:
        return self._end - self.at

    def byte(self) -> int:
        at = self.at
        if at >= self._end:
            raise _ends_early()
        self.at = at + 1
        return self._data[at]

    def gone(self, client: bytes, most: int) -> tuple[int, int, int]:
        """Read a run of at most so many gone values, each of which took the place of one by this client.

        Gives how many there were, the clocks that they took, and the last clock that they build on. Nearly all of an
        old room is such runs; so this is one loop, and reads short numbers by itself.
        """
        data, at, end, width = self._data, self.at, self._end, len(client) + 1
        count = clocks = 0
        last = -1
        while count < most and at < end and data[at] in _GONE_AFTER and data.startswith(client, at + 1):
            numbers = data[at + width : at + width + 8]
            value = shift = place = 0
            origin = -1
            for byte in numbers:
                place += 1
                value |= (byte & 127) << shift
                if byte >= 128:
                    shift += 7
                elif origin < 0:
                    origin, value, shift = value, 0, 0
                else:
                    break
            else:
                break
            count += 1
            clocks += _positive(value)
            last = max(last, origin)
            at += width + place
        self.at = at
        return count, clocks, last

    def uint(self) -> int:
        data, at, end = self._data, self.at, self._end
        value = shift = 0
        while at < end:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value > _LARGEST:
                    break
                self.at = at
                return value
            shift += 7
            if shift > 56:
                break
        raise _ends_early() if at >= end else _malformed("a number is too large")

    def signed(self) -> int:
        byte = self.byte()
        negative, value, shift = bool(byte & 0x40), byte & 0x3F, 6
        while byte & 0x80:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if value > _LARGEST or shift > 62:
                raise _malformed("a number is too large")
        return -value if negative else value

    def take(self, count: int) -> bytes:
        start = self.at
        if count > self._end - start:
            raise _ends_early()
        self.at = start + count
        return self._data[start : self.at]

    def sized(self) -> bytes:
        return self.take(self.uint())

    def text(self) -> str:
        try:
            return self.take(self.uint()).decode()
        except UnicodeDecodeError:
            raise _malformed("a text is not UTF-8") from None

    def any(self, depth: int = 0) -> Any:
        """A value of lib0's `any`: what JSON can say. Numbers stay as they are encoded."""
        tag = self.byte()
        match tag:
            case 119:
                return self.text()
            case 125:
                return self.signed()
            case 124:
                return struct.unpack(">f", self.take(4))[0]
            case 123:
                return struct.unpack(">d", self.take(8))[0]
            case 122:
                return int.from_bytes(self.take(8), "big", signed=True)
            case 121:
                return False
            case 120:
                return True
            case 126 | 127:
                return None
            case 117 | 118 if depth < _MAX_DEPTH:
                count = _fitting(self.uint(), self)
                if tag == 117:
                    return [self.any(depth + 1) for _ in range(count)]
                return {self.text(): self.any(depth + 1) for _ in range(count)}
            case 117 | 118:
                raise _malformed("a value is nested too deep")
            case 116:
                raise _denied("a value is binary; the room has plain records only")
            case _:
                raise _malformed("a value is of a type that Yjs does not have")


def read_update(data: bytes) -> Update:
    """The structs and deletions of an update; a refusal for anything that the room's maps cannot hold."""
    reader = Reader(data)
    update = Update([], [], {}, set(), [])
    seen: set[int] = set()
    for _ in range(_fitting(reader.uint(), reader)):
        count, client, clock = reader.uint(), reader.uint(), reader.uint()
        if client in seen:
            raise _malformed("an update names a client twice")
        seen.add(client)
        end = _read_span(reader, update, client, clock, _fitting(count, reader))
        update.spans.append(Span(client, clock, end))
    for _ in range(_fitting(reader.uint(), reader)):
        client = reader.uint()
        update.deletions.extend(
            Deletion(client, reader.uint(), _positive(reader.uint())) for _ in range(_fitting(reader.uint(), reader))
        )
    if reader.rest:
        raise _malformed("there are bytes after the end of the update")
    return update


def _read_span(reader: Reader, update: Update, client: int, clock: int, count: int) -> int:
    """Read the structs of one client; gives the clock after the last."""
    builds_on = update.builds_on
    own = var_uint(client)
    while count > 0:
        gone, clocks, last = reader.gone(own, count)
        if gone:
            count, clock = count - gone, clock + clocks
            builds_on[client] = max(builds_on.get(client, -1), last)
            continue
        item = _read_item(reader, client, clock)
        count, clock = count - 1, clock + item.length
        if item.origin is not None:
            builds_on[item.origin.client] = max(builds_on.get(item.origin.client, -1), item.origin.clock)
        if item.root is not None:
            update.roots.add(item.root)
        if item.value is not None:
            update.writes.append(item)
    return clock


def _read_item(reader: Reader, client: int, clock: int) -> Item:
    info = reader.byte()
    kind = info & _KIND
    if kind == _GC:
        return Item(ItemId(client, clock), _positive(reader.uint()), None, None, None, None)
    if kind == _SKIP:
        raise Refusal(Code.SEQUENCE_GAP, "the update has a hole in it", hint=_SEND_ALL)
    if info & _HAS_RIGHT_ORIGIN:
        raise _denied("a write between other values is no write of a map")
    origin = root = key = None
    if info & _HAS_ORIGIN:
        origin = ItemId(reader.uint(), reader.uint())
    else:
        if reader.uint() != 1:
            raise _denied("a write inside a nested type; the room has plain records only")
        root = reader.text()
        if not info & _HAS_KEY:
            raise _denied("a write without a key; the room has maps only")
        key = reader.text()
    if kind == _DELETED:
        return Item(ItemId(client, clock), _positive(reader.uint()), origin, root, key, None)
    if kind != _ANY:
        raise _denied(f"a value is {_FOREIGN.get(kind, 'of an unknown type')}; the room has plain records only")
    if reader.uint() != 1:
        raise _denied("a write of several values at once is no write of a map")
    value = reader.any()
    if not isinstance(value, dict):
        raise _denied("a value is not an object; the room has plain records only")
    return Item(ItemId(client, clock), 1, origin, root, key, value)


def _fitting(count: int, reader: Reader) -> int:
    # Each of them takes a byte at least; a larger number is a lie that would only cost time.
    if count > reader.rest:
        raise _ends_early()
    return count


def _positive(length: int) -> int:
    if length == 0:
        raise _malformed("a length is zero")
    return length


_SEND_ALL: Final = "Sync again: send what the other side has not seen, in order."


def _malformed(what: str) -> Refusal:
    return Refusal(Code.MALFORMED, what, hint="Send an update of the Yjs format, version 1.")


def _ends_early() -> Refusal:
    return _malformed("the bytes end in the middle of something")


def _denied(what: str) -> Refusal:
    return Refusal(Code.WRITE_DENIED, what, hint="Set a plain object under a key of one of the room's maps.")


def var_uint(number: int) -> bytes:
    """A number in lib0's variable length."""
    out = bytearray()
    while number > 127:
        out.append(128 | (number & 127))
        number >>= 7
    out.append(number)
    return bytes(out)


class Write(NamedTuple):
    """A value for the `key` of the map `root`, where `after` is the one that stands there now."""

    root: str
    key: str
    after: ItemId | None
    value: Mapping[str, Any]


def encode_write(item_id: ItemId, *, root: str, key: str, after: ItemId | None, value: Mapping[str, Any]) -> bytes:
    """The update that sets one key."""
    return encode_writes(item_id, [Write(root, key, after, value)])


def encode_writes(first: ItemId, writes: Sequence[Write]) -> bytes:
    """One update that sets several keys, each once: whoever takes it takes all of it."""
    out = bytearray(b"\x01") + var_uint(len(writes))
    out += var_uint(first.client) + var_uint(first.clock)
    for write in writes:
        if write.after is None:
            out.append(_HAS_KEY | _ANY)
            out.append(1)
            _put_text(out, write.root)
            _put_text(out, write.key)
        else:
            out.append(_HAS_ORIGIN | _HAS_KEY | _ANY)
            out += var_uint(write.after.client) + var_uint(write.after.clock)
        out.append(1)
        _put_any(out, write.value)
    # No deletions: the value that stood there goes when this one is integrated, on every side.
    out.append(0)
    return bytes(out)


def _put_text(out: bytearray, text: str) -> None:
    raw = text.encode()
    out += var_uint(len(raw)) + raw


def _put_any(out: bytearray, value: Any) -> None:
    if isinstance(value, str):
        out.append(119)
        _put_text(out, value)
    elif value is None:
        out.append(126)
    elif isinstance(value, bool):
        out.append(120 if value else 121)
    elif isinstance(value, int) and -_INT_31 < value < _INT_31:
        out.append(125)
        _put_signed(out, value)
    elif isinstance(value, int | float):
        # As Yjs itself does: what does not fit into 32 bits travels as a double.
        out += b"\x7b" + struct.pack(">d", value)
    elif isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        out.append(118)
        out += var_uint(len(fields))
        for name, inner in fields.items():
            _put_text(out, name)
            _put_any(out, inner)
    else:
        out.append(117)
        out += var_uint(len(value))
        for inner in value:
            _put_any(out, inner)


def _put_signed(out: bytearray, value: int) -> None:
    sign, value = (0x40, -value) if value < 0 else (0, value)
    out.append((0x80 if value > 63 else 0) | sign | (value & 63))
    value >>= 6
    while value > 0:
        out.append((0x80 if value > 127 else 0) | (value & 127))
        value >>= 7
