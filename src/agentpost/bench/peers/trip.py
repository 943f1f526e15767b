"""One measured trip: how many a second with a window of messages under way, and how long one alone takes."""

import statistics
from collections.abc import Sequence

from msgspec import Struct

__all__ = ["BODY", "Trip", "median_ms"]

BODY = "x" * 256


class Trip(Struct, frozen=True, kw_only=True):
    """The result of one run with one window."""

    window: int
    messages: int
    seconds: float
    p50_ms: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


def median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1000
