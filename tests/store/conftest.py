"""The stores that the contract is tested on. A test that asks for `store` runs once for each of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.testing import MemoryStore
from tests.store.building import EPOCH, NODE, open_sqlite


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty directory that is its owner's alone."""
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
async def sqlite_store(home: Path) -> AsyncIterator[SqliteStore]:
    store = open_sqlite(home)
    yield store
    await store.close()


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Store]:
    store: Store = open_sqlite(home) if request.param == "sqlite" else MemoryStore(node_id=NODE, epoch=EPOCH)
    yield store
    await store.close()
