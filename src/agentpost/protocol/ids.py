"""Ids: a prefix that says what it names, and a ULID that sorts by time (ENV-1).

Pure: the time and the chance of a new id are arguments. `UlidSource` only remembers the last one, so that ids made
within one millisecond, or while the clock steps back, still sort in the order they were made.

Half of the chance of an event's id is the mark of the node that made it: nobody else can speak under it first
(docs/decisions/0017).
"""

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final, NewType, TypeVar

from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "CorrId",
    "EventId",
    "FamilyId",
    "InviteId",
    "ReviewId",
    "SessionId",
    "TaskId",
    "UlidSource",
    "corr_id_of",
    "derived_event_id",
    "mark_in",
    "mark_of",
    "next_ulid",
    "parse_id",
    "ulid_time_ms",
]

EventId = NewType("EventId", str)
CorrId = NewType("CorrId", str)
TaskId = NewType("TaskId", str)
ReviewId = NewType("ReviewId", str)
InviteId = NewType("InviteId", str)
SessionId = NewType("SessionId", str)
FamilyId = NewType("FamilyId", str)

AnyId = TypeVar("AnyId", bound=str)

_PREFIX: Final[dict[object, str]] = {
    EventId: "evt_",
    CorrId: "corr_",
    TaskId: "tsk_",
    ReviewId: "rev_",
    InviteId: "inv_",
    SessionId: "ses_",
    FamilyId: "fam_",
}

ENTROPY_BYTES: Final = 10
MARK_BYTES: Final = 5
_ENTROPY_BITS: Final = 8 * ENTROPY_BYTES
_TIME_BITS: Final = 48
_LAST_ULID: Final = (1 << 128) - 1
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)
_VALUES: Final = {letter: value for value, letter in enumerate(_CROCKFORD)}

# Other implementations put letters into the 26 places that Crockford's alphabet leaves out; an id is opaque to its
# reader, so they are read. What is made here is always a true ULID.
ULID_PATTERN: Final = "[0-9A-Z]{26}"
_READABLE = re.compile(ULID_PATTERN)


def next_ulid(previous: int, *, now_ms: int, entropy: bytes) -> int:
    """The ULID after `previous` (0 for none): by the clock if it moved on, else the next number."""
    fresh = (now_ms << _ENTROPY_BITS) | int.from_bytes(entropy, "big")
    # A clock that stands still or steps back must not break the order.
    return _within_range(fresh if fresh >> _ENTROPY_BITS > previous >> _ENTROPY_BITS else previous + 1)


def _within_range(ulid: int) -> int:
    if ulid > _LAST_ULID:
        raise Refusal(Code.INTERNAL, "the clock is beyond the year 10889, which is as far as ULIDs go")
    return ulid


def _to_text(ulid: int) -> str:
    # Ten bits at a time: thirteen look-ups instead of twenty-six.
    return "".join([_PAIRS[(ulid >> shift) & 1023] for shift in range(120, -1, -10)])


def parse_id(kind: Callable[[str], AnyId], text: str, *, field: str) -> AnyId:
    """`text` as an id of `kind`, or a refusal that names the field."""
    prefix = _PREFIX[kind]
    if not text.startswith(prefix) or not _READABLE.fullmatch(text, len(prefix)):
        raise Refusal(Code.INVALID_FIELD, f"{field} must be {prefix} and a ULID", field=field)
    return kind(text)


def corr_id_of(event_id: EventId) -> CorrId:
    """The corrId of an event that starts a conversation: its own ULID (ENV-3), so that a repeat gets the same."""
    return CorrId("corr_" + event_id[4:])


def node_mark(node_id: str) -> bytes:
    """What stands in the ids of this node. The name decides it: that is given by whoever invites, not chosen."""
    return sha256(node_id.encode("utf-8", "surrogatepass")).digest()[:MARK_BYTES]


@lru_cache(maxsize=4096)
def mark_of(node_id: str) -> str:
    """The mark of a node as it stands in the text of its ids."""
    return mark_in(_to_text(int.from_bytes(node_mark(node_id), "big") << 8 * (ENTROPY_BYTES - MARK_BYTES)))


def mark_in(text: str) -> str:
    """Where the mark of an id stands. Ids of other makes have chance there."""
    return text[-16:-8]


def derived_event_id(seed: bytes, *, time_ms: int, node_id: str | None = None) -> EventId:
    """The id of an event that is made from something else: from the same thing and time it is always the same."""
    mark = b"" if node_id is None else node_mark(node_id)
    chance = int.from_bytes((mark + sha256(seed).digest())[:ENTROPY_BYTES], "big")
    time = min(max(time_ms, 0), (1 << _TIME_BITS) - 1)
    return EventId(_PREFIX[EventId] + _to_text(time << _ENTROPY_BITS | chance))


def ulid_time_ms(text: str) -> int:
    """When the id was made, in epoch ms, as it says itself; 0 if it does not start like a true ULID."""
    value = 0
    for letter in text[-26:-16]:
        digit = _VALUES.get(letter)
        if digit is None:
            return 0
        value = value * 32 + digit
    return value if value < 1 << _TIME_BITS else 0


class UlidSource:
    """Makes ids that sort in the order they were made. One per gateway; not shared between threads."""

    def __init__(self) -> None:
        self._last = 0
        # Ids of the same millisecond have nearly all of their text in common.
        self._high, self._high_text = -1, ""

    def make(self, kind: Callable[[str], AnyId], *, now_ms: int, entropy: bytes) -> AnyId:
        """A new id of `kind`; `entropy` is ten random bytes."""
        return self._name(kind, next_ulid(self._last, now_ms=now_ms, entropy=entropy))

    def another(self, kind: Callable[[str], AnyId]) -> AnyId:
        """One more of the moment of the last one: the next number, as it is for all of one millisecond."""
        return self._name(kind, _within_range(self._last + 1))

    def _name(self, kind: Callable[[str], AnyId], ulid: int) -> AnyId:
        self._last = ulid
        if ulid >> 20 != self._high:
            self._high, self._high_text = ulid >> 20, _to_text(ulid)[:-4]
        return kind(f"{_PREFIX[kind]}{self._high_text}{_PAIRS[(ulid >> 10) & 1023]}{_PAIRS[ulid & 1023]}")
