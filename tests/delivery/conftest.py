"""A gateway for the tests of dispatch, over each of the stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.store.interface import Store
from agentpost.testing import MemoryStore
from tests.delivery.dispatching import NODE, Gateway
from tests.store.building import EPOCH, open_sqlite


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store: Store = open_sqlite(home) if request.param == "sqlite" else MemoryStore(node_id=NODE, epoch=EPOCH)
    yield store
    await store.close()


@pytest.fixture
async def gateway(store: Store) -> AsyncIterator[Gateway]:
    gateway = Gateway(store)
    yield gateway
    await gateway.close()
