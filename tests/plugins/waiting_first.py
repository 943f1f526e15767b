"""What waits long is begun first: a minute of waiting at the end of a run is a minute in which nothing else happens.

Each worker of a run (pytest-xdist) begins with its part of a list that is cut into as many pieces as there are workers.
Here the pieces are dealt anew: each begins with some of the tests that are marked `waits`, module by module, since the
tests of a module may share a mesh; everything else follows in the order in which it was found.
"""

import os
from itertools import groupby
from typing import Final

import pytest

_WORKERS: Final = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


# Last: the tests that `-k` or `-m` leave out are gone by then.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = deal(items, workers=_WORKERS)


def deal(items: list[pytest.Item], *, workers: int) -> list[pytest.Item]:
    """The same tests in as many pieces of equal length as there are workers, each with some of what waits in front."""
    waiting = [item for item in items if item.get_closest_marker("waits")]
    others = [item for item in items if not item.get_closest_marker("waits")]
    modules = [list(each) for _, each in groupby(waiting, key=lambda item: item.nodeid.partition("::")[0])]
    pieces: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for module in modules:
        min(pieces, key=len).extend(module)
    left = len(items)
    for at, piece in enumerate(pieces):
        size = left // (workers - at)
        left -= size
        missing = max(0, size - len(piece))
        piece += others[:missing]
        del others[:missing]
    return [item for piece in pieces for item in piece]
