"""How much one answer may hold, so that every transport can carry it."""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from agentpost.protocol.mailbox import MAX_MESSAGE_BYTES, MessageSummary

__all__ = ["ALWAYS_FIT", "MAX_ANSWER_BYTES", "size_of_summary", "that_fit"]

# Half of what a message on a socket may have: a name or a reason may grow when it is written as JSON.
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
# So many messages need no look at their sizes.
ALWAYS_FIT: Final = MAX_ANSWER_BYTES // MAX_MESSAGE_BYTES

T = TypeVar("T")


def size_of_summary(summary: MessageSummary) -> int:
    """What a line of a peek takes as JSON: its names, and a little more."""
    return len(msgspec.json.encode((summary.msg_id, summary.sender))) + 128


def that_fit(found: Iterable[T], size_of: Callable[[T], int]) -> list[T]:
    """The first of them that fit into one answer, and the very first in any case."""
    fitting: list[T] = []
    room = MAX_ANSWER_BYTES
    for each in found:
        room -= size_of(each)
        if room < 0 and fitting:
            break
        fitting.append(each)
    return fitting
