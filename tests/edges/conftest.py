"""A gateway that others can join, and somebody who wants to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edges.meshing import Stranger
from tests.edges.running import NO_LIMITS, RunningGateway, running_gateway


@pytest.fixture
def seed(tmp_path: Path) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path / "vps-jane") as gateway:
        yield gateway


@pytest.fixture
def unlimited(tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway that lets everybody try as often as they like."""
    with running_gateway(tmp_path / "vps-jane", *NO_LIMITS) as gateway:
        yield gateway


@pytest.fixture
def stranger(seed: RunningGateway, tmp_path: Path) -> Stranger:
    return Stranger("mbp-jane", tmp_path / "stranger", seed.url)
