"""The outside world as interfaces: time and chance. The only module that asks the machine for either.

Everything else is handed a Clock and a Chance, so that tests and the simulation can bring their own.
"""

import random
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from agentpost.protocol.ids import ENTROPY_BYTES, AnyId, UlidSource

__all__ = ["Chance", "Clock", "IdMaker", "SystemChance", "SystemClock"]


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
    def entropy(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def fraction(self) -> float:
        return random.random()  # noqa: S311 - jitter spreads load; nothing secret depends on it


class IdMaker:
    """New ids of any kind, in the order of their making."""

    def __init__(self, clock: Clock, chance: Chance) -> None:
        self._clock = clock
        self._chance = chance
        self._source = UlidSource()

    def make(self, kind: Callable[[str], AnyId]) -> AnyId:
        return self._source.make(kind, now_ms=self._clock.now_ms(), entropy=self._chance.entropy(ENTROPY_BYTES))
