"""A figure, and how to get one on a machine that other things also use: several rounds, and the best of them."""

import time
from collections.abc import Callable

from msgspec import Struct

__all__ = ["Metric", "Say", "best_rate", "seconds_of"]

Say = Callable[[str], None]


class Metric(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure. `ratio` is value / against: how much of a limit, or how many times a baseline."""

    metric: str
    value: float
    unit: str
    against: float | None = None
    ratio: float | None = None

    @classmethod
    def of(cls, metric: str, value: float, unit: str, *, against: float | None = None) -> "Metric":
        ratio = None if against is None else round(value / against, 3)
        return cls(
            metric=metric,
            value=_rounded(value),
            unit=unit,
            against=None if against is None else _rounded(against),
            ratio=ratio,
        )


def _rounded(value: float) -> float:
    return round(value) if value >= 1000 else round(value, 3)


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best_rate(work: Callable[[], object], *, count: int, rounds: int) -> float:
    """How many a second, in the best round; `work` does `count` of them."""
    return count / min(seconds_of(work) for _ in range(rounds))
