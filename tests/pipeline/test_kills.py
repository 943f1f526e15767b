"""kill -9 the driver wherever it is: the next run makes the tables that an undisturbed one would have made."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.lakes import Outbox
from tests.pipeline.makers import MAKERS
from tests.pipeline.test_run import month_of_mail, run, tables, warehouse_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 5 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
# The first ones are those of a short run.
POINTS = (
    "silver",
    "version",
    "compact_written",
    "any moment",
    "pointer",
    "begun",
    "taken_in",
    "hour_gold",
    "fleet_gold",
    "pruned",
    "compact_begun",
    "compact_version",
    "compact_pointer",
    "compact_pruned",
)


@pytest.fixture(scope="module")
def half_way(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Path:
    """A lake of which a run has seen the first part, and to which more came."""
    lake = tmp_path_factory.mktemp("half") / "lake"
    month_of_mail(lake)
    run(spark, lake)
    for node in ("node-a", "node-b"):
        more = Outbox(lake, node, epoch="second")
        more.seal(more.messages(40))
    return lake


@pytest.fixture(scope="module")
def undisturbed(half_way: Path, tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> object:
    lake = tmp_path_factory.mktemp("undisturbed") / "lake"
    shutil.copytree(half_way, lake)
    assert run(spark, lake).events == 80
    return tables(lake)


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.long
def test_a_killed_run_changes_nothing(
    tmp_path: Path, spark: "SparkSession", half_way: Path, undisturbed: object, number: int
) -> None:
    """After kill -9 at any point of a run or a compaction the next run brings exactly the tables that are due."""
    from agentpost.pipeline.frames import table_frame
    from tests.pipeline.tiny import TINY_TABLES

    point = POINTS[number % len(POINTS)]
    lake = tmp_path / "lake"
    shutil.copytree(half_way, lake)
    before = tables(lake)
    # In the end every point has come with every maker.
    kill(lake, point, MAKERS[number // len(POINTS) % len(MAKERS)], random.Random(number))
    # Whoever reads now sees the state before the run or after it, and nothing between.
    assert tables(lake) in (before, undisturbed)
    run(spark, lake)
    assert tables(lake) == undisturbed
    warehouse = warehouse_of(lake)
    version = warehouse.require()
    assert version.events == 130
    named = {file.path.split("/")[1] for files in version.tables.values() for file in files}
    assert named <= set(warehouse.files.directories("batches"))
    for name in TINY_TABLES:
        assert table_frame(spark, warehouse, version, name).count() == warehouse.read(version, name).num_rows


def kill(lake: Path, point: str, maker: str, chance: random.Random) -> None:
    """Start a run of its own, and end it at the point, or at any moment while it works."""
    phase = "never" if point == "any moment" else point
    command = [sys.executable, "-m", "tests.pipeline.victim", str(lake), phase, maker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "working\n", victim.communicate()[1]
        if point == "any moment":
            time.sleep(chance.uniform(0, 3))
            victim.kill()
        # Its output ends when the JVM, which has it too, has ended as well.
        output, problems = victim.communicate()
    assert victim.returncode in ((-9, 0) if point == "any moment" else (-9,)), output + problems
