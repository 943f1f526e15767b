"""Sets of whole numbers as ranges: hours of a file, seqs of an outbox. Pure."""

from collections.abc import Iterable, Iterator

__all__ = ["Range", "Ranges", "members", "overlaps", "ranges_of", "size", "subtract", "without"]

Range = tuple[int, int]  # first and last, both included
Ranges = tuple[Range, ...]


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """The numbers as ranges, each as long as it can be, in order."""
    found: list[Range] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


def members(ranges: Ranges) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def overlaps(ranges: Ranges, numbers: frozenset[int]) -> bool:
    """Whether any of the numbers is in the ranges."""
    return any(any(first <= number <= last for first, last in ranges) for number in numbers)


def without(ranges: Ranges, numbers: frozenset[int]) -> Ranges:
    """The ranges less those numbers."""
    taken = [(number, number) for number in numbers]
    return tuple(left for each in ranges for left in subtract(each, taken))


def size(ranges: Ranges, numbers: frozenset[int] | None = None) -> int:
    """How many numbers the ranges have; how many of these, if some are given."""
    if numbers is None:
        return sum(last - first + 1 for first, last in ranges)
    return sum(any(first <= number <= last for first, last in ranges) for number in numbers)


def subtract(wanted: Range, taken: Iterable[Range]) -> Ranges:
    """What is left of a range when all of these are taken out of it."""
    left: list[Range] = []
    at, end = wanted
    for first, last in sorted(taken):
        if first > end:
            break
        if first > at:
            left.append((at, first - 1))
        at = max(at, last + 1)
    if at <= end:
        left.append((at, end))
    return tuple(left)
