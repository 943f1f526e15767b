"""Two ways to the same tables: few rows in one task and by the driver, many in parts and by Spark."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from agentpost.simulate.faults import ALL_RULES
from agentpost.simulate.fleet import release_part, write_fleet
from agentpost.simulate.plan import FleetPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN = FleetPlan(nodes=3, agents=9, events=1500, hours=2, seed=5, parts=(0.6, 0.4), faults=ALL_RULES)


@pytest.mark.req("OBS-4")
def test_few_rows_and_many_make_the_same_tables(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver makes, run by run, is what Spark makes in one go, row for row and type for type."""
    from agentpost.pipeline import few_rows, hours, run
    from agentpost.pipeline.files import Files
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
            run.run_batch(spark, Files(str(lake)), few, run.RunOptions(now_us=now_us))
    monkeypatch.setattr(hours, "SMALL_EVENTS", 0)
    monkeypatch.setattr(hours, "FEW_EVENTS", 0)
    monkeypatch.setattr(hours, "FEW_ROWS", 0)
    run.run_batch(spark, Files(str(lake)), many, run.RunOptions(now_us=now_us))
    assert few.require().schemas == many.require().schemas
    files = [file.path for file in few.require().tables["lifecycle"]]
    assert all(path.endswith("/part-0.parquet") for path in files)
    assert {file.path for file in many.require().tables["lifecycle"]}.isdisjoint(files)
    names = tuple(table.name for table in (*GOLD, *FLEET))
    here, there = rows_of(few, names), rows_of(many, names)
    assert here["lifecycle"]
    for name in names:
        assert here[name] == there[name], name
        types = [{field.name: field.type for field in w.read(w.require(), name).schema} for w in (few, many)]
        assert types[0] == types[1], name


@pytest.mark.req("OBS-4")
def test_few_events_in_hours_of_many_rows_make_the_same_tables(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """New partials that lie beside those of large hours lose nothing."""
    from agentpost.pipeline import hours, run
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.tables import FLEET, GOLD
    from agentpost.pipeline.warehouse import Warehouse
    from tests.pipeline.tiny import rows_of

    lake = tmp_path / "lake"
    now_us = write_fleet(PLAN, lake, workers=1).now_us
    in_steps, at_once = (Warehouse(Files(str(tmp_path / name))) for name in ("in_steps", "at_once"))
    with monkeypatch.context() as patched:
        patched.setattr(hours, "FEW_ROWS", 0)
        for part in (0, 1):
            release_part(lake, part)
            run.run_batch(spark, Files(str(lake)), in_steps, run.RunOptions(now_us=now_us))
    run.run_batch(spark, Files(str(lake)), at_once, run.RunOptions(now_us=now_us))
    # Both parts tell of all hours: beside each other in two files.
    assert len(in_steps.require().tables["silver_deliveries"]) == 2
    names = tuple(table.name for table in (*GOLD, *FLEET))
    here, there = rows_of(in_steps, names), rows_of(at_once, names)
    assert here["lifecycle"]
    for name in names:
        assert here[name] == there[name], name


def test_a_table_in_pieces_is_read_whole(spark: "SparkSession") -> None:
    """What the driver has comes to Spark with all of its rows, also those after a piece without any."""
    from agentpost.pipeline.frames import local_frame

    pieces = [pa.table({"n": pa.array(numbers, pa.int64())}) for numbers in ([], [1], [], [2, 3])]
    rows = local_frame(spark, pa.concat_tables(pieces)).collect()
    assert [row["n"] for row in rows] == [1, 2, 3]
