"""The outside world as interfaces: time and chance. The only module that asks the machine for either.

Everything else is handed a Clock and a Chance, so that tests and the simulation can bring their own.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from agentpost.protocol.ids import ENTROPY_BYTES, AnyId, SessionId, UlidSource, node_mark

__all__ = ["Chance", "Clock", "IdMaker", "SystemChance", "SystemClock", "new_epoch"]


_PAGE_BYTES: Final = 4096


class Clock(Protocol):
    def now_ms(self) -> int:
        """The time of day in epoch milliseconds."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that only ever grow, for measuring how long something took."""
        ...


class Chance(Protocol):
    def entropy(self, count: int) -> bytes:
        """Unpredictable bytes, fit for keys."""
        ...

    def fraction(self) -> float:
        """A number from 0 up to but not including 1, for jitter."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class SystemChance:
    """The machine's own randomness. Each byte is given out once.

    The kernel is asked for a page at a time: a call for each id and each nonce costs more than all that is done with
    them. A process that forks starts with a page of its own.
    """

    def __init__(self) -> None:
        self._page = b""
        self._at = 0
        os.register_at_fork(after_in_child=self._forget)

    def entropy(self, count: int) -> bytes:
        if count > _PAGE_BYTES:
            return os.urandom(count)
        at, end = self._at, self._at + count
        if end > len(self._page):
            self._page, at, end = os.urandom(_PAGE_BYTES), 0, count
        self._at = end
        return self._page[at:end]

    def _forget(self) -> None:
        self._page, self._at = b"", 0

    def fraction(self) -> float:
        return random.random()  # noqa: S311 - jitter spreads load; nothing secret depends on it


class IdMaker:
    """New ids of any kind, in the order of their making. Those of events and tasks have the mark of their `node_id`."""

    def __init__(self, clock: Clock, chance: Chance, *, node_id: str | None = None) -> None:
        self._clock = clock
        self._chance = chance
        self._mark = b"" if node_id is None else node_mark(node_id)
        self._chance_bytes = ENTROPY_BYTES - len(self._mark)
        self._source = UlidSource()

    def make(self, kind: Callable[[str], AnyId]) -> AnyId:
        entropy = self._mark + self._chance.entropy(self._chance_bytes)
        return self._source.make(kind, now_ms=self._clock.now_ms(), entropy=entropy)

    def of_one_moment(self, kind: Callable[[str], AnyId]) -> Iterator[AnyId]:
        """As many new ids as are asked for, all of the time of the first. For what is said at once, not to be kept."""
        yield self.make(kind)
        while True:
            yield self._source.another(kind)


def new_epoch(ids: IdMaker) -> str:
    """The name of a new life of an outbox. Epochs sort by time, so that a reader can tell which is the later one."""
    return ids.make(SessionId).replace("ses_", "epoch_")
