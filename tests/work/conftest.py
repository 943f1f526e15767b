"""A mesh for each test: three gateways, in memory and on a disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.work.meshing import Mesh


@pytest.fixture(params=["memory", "sqlite"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path if request.param == "sqlite" else None)
    await made.add("node-a", "node-b", "node-c")
    yield made
    await made.close()
