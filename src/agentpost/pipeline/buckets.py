"""How the rows of a batch are distributed: a partition has a few hours, or a part of one that is full. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Buckets", "buckets_of", "weights_of"]


class Buckets(NamedTuple):
    """How many there are, and the SQL that tells the bucket of a row by `hour` and `event_id`."""

    count: int
    expression: str


def weights_of(spoken: Iterable[tuple[Iterable[int], int]]) -> Counter[int]:
    """About how many events each hour has: those of a segment are taken to be spread over all of its hours."""
    weights: Counter[int] = Counter()
    for hours, events in spoken:
        listed = tuple(hours)
        for hour in listed:
            weights[hour] += max(1, events // len(listed))
    return weights


def buckets_of(weights: Mapping[int, int], *, events_a_bucket: int, least: int = 1) -> Buckets:
    """Contiguous hours of about as many events each. An hour with more than that is divided by the event's id."""
    total = sum(weights.values())
    most = max(1, min(events_a_bucket, -(-total // least)))
    cases: list[str] = []
    bucket, filled = 0, 0
    for hour in sorted(weights):
        if weights[hour] > most:
            bucket += filled > 0
            parts = -(-weights[hour] // most)
            cases.append(f"when hour <= {hour} then {bucket} + cast(pmod(xxhash64(event_id), {parts}) as int)")
            bucket, filled = bucket + parts, 0
            continue
        if filled and filled + weights[hour] > most:
            bucket, filled = bucket + 1, 0
        filled += weights[hour]
        if cases and cases[-1].endswith(f"then {bucket}"):
            cases.pop()
        cases.append(f"when hour <= {hour} then {bucket}")
    count = max(1, bucket + (filled > 0))
    return Buckets(count, f"case {' '.join(cases)} else 0 end" if cases else "0")
