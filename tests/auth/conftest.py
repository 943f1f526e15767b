"""The gateway that nodes join. A test that asks for `gateway` has it in memory, one that needs a disk `on_disk`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.testing import MemoryStore
from tests.auth.building import SEED, Gateway, Visitor
from tests.store.building import open_sqlite


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    store = MemoryStore(node_id=SEED, epoch="first")
    yield Gateway(store)
    await store.close()


@pytest.fixture
async def on_disk(home: Path) -> AsyncIterator[Gateway]:
    store = open_sqlite(home, node_id=SEED)
    yield Gateway(store)
    await store.close()


@pytest.fixture(params=["sqlite", "memory"])
async def either(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Gateway]:
    """A gateway on each kind of store, one after the other."""
    memory = MemoryStore(node_id=SEED, epoch="first")
    store = open_sqlite(home, node_id=SEED) if request.param == "sqlite" else memory
    yield Gateway(store)
    await store.close()


@pytest.fixture
def visitor(gateway: Gateway) -> Visitor:
    return Visitor(gateway)
