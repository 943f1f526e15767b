"""The order in which tests are begun."""

from typing import Any, cast

import pytest

from tests.plugins.waiting_first import deal


class Found:
    """As much of a test as the order asks for."""

    def __init__(self, nodeid: str, *, waits: bool) -> None:
        self.nodeid = nodeid
        self._waits = waits

    def get_closest_marker(self, name: str) -> object | None:
        return name if self._waits and name == "waits" else None


def order(waiting: list[str], others: list[str], *, workers: int) -> list[str]:
    found = [*(Found(each, waits=False) for each in others), *(Found(each, waits=True) for each in waiting)]
    return [item.nodeid for item in deal(cast(list[pytest.Item], cast(Any, found)), workers=workers)]


def test_each_worker_begins_with_some_of_what_waits() -> None:
    """Modules that wait are dealt to the workers, whole; the rest follows as it was found."""
    dealt = order(["a::1", "a::2", "b::1", "c::1"], ["x::1", "x::2", "y::1", "y::2"], workers=2)
    assert dealt == ["a::1", "a::2", "x::1", "x::2", "b::1", "c::1", "y::1", "y::2"]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("waiting", [0, 1, 5, 9])
def test_no_test_is_lost_or_run_twice(workers: int, waiting: int) -> None:
    """However many wait, in however many modules, all tests are there once."""
    some, others = [f"m{number % 4}::{number}" for number in range(waiting)], [f"o::{number}" for number in range(11)]
    assert sorted(order(some, others, workers=workers)) == sorted([*some, *others])
