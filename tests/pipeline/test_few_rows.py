"""Three ways to the same tables: by the driver, by the workers of Spark, and by Spark's own engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from agentpost.simulate.faults import ALL_RULES
from agentpost.simulate.fleet import release_part, write_fleet
from agentpost.simulate.plan import FleetPlan
from tests.pipeline.makers import made_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN = FleetPlan(nodes=3, agents=9, events=1500, hours=2, seed=5, parts=(0.6, 0.4), faults=ALL_RULES)


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize("maker", ["workers", "spark"])
def test_few_rows_and_many_make_the_same_tables(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, maker: str
) -> None:
    """What the driver makes, run by run, is what others make in one go, row for row and type for type."""
    from agentpost.pipeline import few_rows
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.run import RunOptions, run_batch
    from agentpost.pipeline.tables import FLEET, GOLD
    from agentpost.pipeline.warehouse import Warehouse
    from tests.pipeline.tiny import rows_of

    lake = tmp_path / "lake"
    now_us = write_fleet(PLAN, lake, workers=1).now_us
    few, many = (Warehouse(Files(str(tmp_path / name))) for name in ("few", "many"))
    with monkeypatch.context() as patched:
        # Spark is not asked to build anything.
        patched.setattr(few_rows, "local_frame", None)
        for part in (0, 1):
            release_part(lake, part)
            run_batch(spark, Files(str(lake)), few, RunOptions(now_us=now_us))
    with made_by(maker):
        run_batch(spark, Files(str(lake)), many, RunOptions(now_us=now_us))
    assert few.require().schemas == many.require().schemas
    assert all("/lifecycle/part-0." in file.path for file in few.require().tables["lifecycle"])
    sign = "/lifecycle-spark/" if maker == "spark" else "/lifecycle/part-"
    assert all(sign in file.path for file in many.require().tables["lifecycle"])
    names = tuple(table.name for table in (*GOLD, *FLEET))
    here, there = rows_of(few, names), rows_of(many, names)
    assert here["lifecycle"]
    for name in names:
        assert here[name] == there[name], name
        types = [{field.name: field.type for field in w.read(w.require(), name).schema} for w in (few, many)]
        assert types[0] == types[1], name


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize("maker", ["workers", "spark"])
def test_what_comes_in_steps_makes_the_same_tables(tmp_path: Path, spark: "SparkSession", maker: str) -> None:
    """New partials that lie beside those of earlier runs are merged with them, whoever does it."""
    from agentpost.pipeline import hours
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.run import RunOptions, run_batch
    from agentpost.pipeline.tables import FLEET, GOLD
    from agentpost.pipeline.warehouse import Warehouse
    from tests.pipeline.tiny import rows_of

    lake = tmp_path / "lake"
    now_us = write_fleet(PLAN, lake, workers=1).now_us
    in_steps, at_once = (Warehouse(Files(str(tmp_path / name))) for name in ("in_steps", "at_once"))
    with made_by(maker), patch.object(hours, "FEW_EVENTS", 2000):
        for part in (0, 1):
            release_part(lake, part)
            run_batch(spark, Files(str(lake)), in_steps, RunOptions(now_us=now_us))
    run_batch(spark, Files(str(lake)), at_once, RunOptions(now_us=now_us))
    # Both parts tell of all hours: beside each other in two files.
    assert len(in_steps.require().tables["silver_deliveries"]) == 2
    names = tuple(table.name for table in (*GOLD, *FLEET))
    here, there = rows_of(in_steps, names), rows_of(at_once, names)
    assert here["lifecycle"]
    for name in names:
        assert here[name] == there[name], name


@pytest.mark.req("OBS-4")
def test_what_workers_cannot_make_is_left_to_spark(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose plan is not known, or fits no rows, is made by Spark; the others are not."""
    from agentpost.pipeline import hours
    from agentpost.pipeline.few_rows import Recipe, recipe_of
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.plans import Step
    from agentpost.pipeline.run import RunOptions, run_batch
    from agentpost.pipeline.tables import GOLD
    from agentpost.pipeline.warehouse import Warehouse
    from tests.pipeline.tiny import rows_of

    lake = tmp_path / "lake"
    now_us = write_fleet(PLAN, lake, workers=1).now_us
    for part in (0, 1):
        release_part(lake, part)
    plans = {"rates": None, "tasks": Step("Input")}

    def without_some(*asked: Any, key: Any) -> Recipe:
        recipe = recipe_of(*asked, key=key)
        name = next(table.name for table in GOLD if table.build == key[0])
        return recipe._replace(plan=plans.get(name, recipe.plan))

    partly, whole = (Warehouse(Files(str(tmp_path / name))) for name in ("partly", "whole"))
    monkeypatch.setattr(hours, "recipe_of", without_some)
    for warehouse, maker in ((partly, "workers"), (whole, "driver")):
        with made_by(maker):
            run_batch(spark, Files(str(lake)), warehouse, RunOptions(now_us=now_us))
    by_spark = {
        name for name, files in partly.require().tables.items() for file in files if f"/{name}-spark/" in file.path
    }
    assert by_spark == {"rates", "tasks"}
    names = tuple(table.name for table in GOLD)
    assert rows_of(partly, names) == rows_of(whole, names)


def test_a_table_in_pieces_is_read_whole(spark: "SparkSession") -> None:
    """What the driver has comes to Spark with all of its rows, also those after a piece without any."""
    from agentpost.pipeline.frames import local_frame

    pieces = [pa.table({"n": pa.array(numbers, pa.int64())}) for numbers in ([], [1], [], [2, 3])]
    rows = local_frame(spark, pa.concat_tables(pieces)).collect()
    assert [row["n"] for row in rows] == [1, 2, 3]
