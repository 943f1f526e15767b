"""Three ways to the same tables: by the driver, by the workers of Spark, and by Spark's own engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from agentpost.simulate.faults import ALL_RULES
from agentpost.simulate.fleet import release_part, write_fleet
from agentpost.simulate.plan import FleetPlan
from tests.pipeline.makers import made_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from agentpost.pipeline.warehouse import Warehouse

PLAN = FleetPlan(nodes=3, agents=9, events=1500, hours=2, seed=5, parts=(0.6, 0.4), faults=ALL_RULES)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A fleet with every fault, in two parts of which none is released yet."""
    write_fleet(PLAN, tmp_path / "lake", workers=1)
    return tmp_path / "lake"


def made(spark: "SparkSession", lake: Path, maker: str, *parts: int, few_events: int = 0) -> "Warehouse":
    """The tables that this one makes: at once, or run by run where parts of the lake are still to come."""
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.run import RunOptions, run_batch
    from agentpost.pipeline.warehouse import Warehouse

    warehouse = Warehouse(Files(str(lake.parent / f"{maker}{len(parts)}")))
    with made_by(maker, few_events=few_events):
        for part in parts or (None,):
            if part is not None:
                release_part(lake, part)
            run_batch(spark, Files(str(lake)), warehouse, RunOptions(now_us=PLAN.end_ms * 1000))
    return warehouse


def assert_same_tables(one: "Warehouse", other: "Warehouse") -> None:
    """Row for row, and type for type."""
    from agentpost.pipeline.tables import FLEET, GOLD
    from tests.pipeline.tiny import rows_of

    names = tuple(table.name for table in (*GOLD, *FLEET))
    here, there = rows_of(one, names), rows_of(other, names)
    assert here["lifecycle"]
    for name in names:
        assert here[name] == there[name], name
        types = [{field.name: field.type for field in w.read(w.require(), name).schema} for w in (one, other)]
        assert types[0] == types[1], name
    assert one.require().schemas == other.require().schemas


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize("maker", ["workers", "spark"])
def test_few_rows_and_many_make_the_same_tables(
    lake: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, maker: str
) -> None:
    """What the driver makes, run by run, is what others make in one go."""
    from agentpost.pipeline import few_rows

    with monkeypatch.context() as patched:
        # Spark is not asked to build anything.
        patched.setattr(few_rows, "local_frame", None)
        few = made(spark, lake, "driver", 0, 1)
    many = made(spark, lake, maker)
    assert all("/lifecycle/part-0." in file.path for file in few.require().tables["lifecycle"])
    sign = "/lifecycle-spark/" if maker == "spark" else "/lifecycle/part-"
    assert all(sign in file.path for file in many.require().tables["lifecycle"])
    assert_same_tables(few, many)


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize(
    ("maker", "few_events"),
    [
        ("workers", 2000),
        ("spark", 0),
        pytest.param("workers", 0, marks=pytest.mark.long),
        pytest.param("spark", 2000, marks=pytest.mark.long),
    ],
)
def test_what_comes_in_steps_makes_the_same_tables(
    lake: Path, spark: "SparkSession", maker: str, few_events: int
) -> None:
    """New partials that lie beside those of earlier runs are merged with them, whoever made them, whoever does it."""
    in_steps = made(spark, lake, maker, 0, 1, few_events=few_events)
    # Both parts tell of all hours: beside each other in two files or more.
    files = in_steps.require().tables["silver_deliveries"]
    assert len({file.path.split("/")[1] for file in files}) == 2
    assert_same_tables(in_steps, made(spark, lake, "driver"))


@pytest.mark.req("OBS-4")
def test_what_workers_cannot_make_is_left_to_spark(
    lake: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose plan is not known, or fits no rows, is made by Spark; the others are not."""
    from agentpost.pipeline import hours
    from agentpost.pipeline.few_rows import Recipe, recipe_of
    from agentpost.pipeline.plans import Step
    from agentpost.pipeline.tables import GOLD

    plans = {"rates": None, "tasks": Step("Input")}

    def without_some(*asked: Any, key: Any) -> Recipe:
        recipe = recipe_of(*asked, key=key)
        name = next(table.name for table in GOLD if table.build == key[0])
        return recipe._replace(plan=plans.get(name, recipe.plan))

    whole = made(spark, lake, "driver", 0, 1)
    monkeypatch.setattr(hours, "recipe_of", without_some)
    partly = made(spark, lake, "workers")
    tables = partly.require().tables
    by_spark = {name for name, files in tables.items() for file in files if f"/{name}-spark/" in file.path}
    assert by_spark == {"rates", "tasks"}
    assert_same_tables(partly, whole)


def test_a_table_in_pieces_is_read_whole(spark: "SparkSession") -> None:
    """What the driver has comes to Spark with all of its rows, also those after a piece without any."""
    from agentpost.pipeline.frames import local_frame

    pieces = [pa.table({"n": pa.array(numbers, pa.int64())}) for numbers in ([], [1], [], [2, 3])]
    rows = local_frame(spark, pa.concat_tables(pieces)).collect()
    assert [row["n"] for row in rows] == [1, 2, 3]
