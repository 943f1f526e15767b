"""One batch after the other, in any order and with anything in between: always the tables of one undisturbed run."""

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentpost.pipeline.files import Files
from agentpost.pipeline.warehouse import Warehouse
from agentpost.protocol.errors import Refusal
from agentpost.testing import START_MS
from tests.pipeline.lakes import HOUR_MS, NOW_US, Outbox, write_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from agentpost.pipeline.run import RunResult

DAY_MS = 24 * HOUR_MS

pytestmark = pytest.mark.long


def run(spark: "SparkSession", lake: Path, **options: object) -> "RunResult":
    from agentpost.pipeline.run import RunOptions, run_batch
    from tests.pipeline.tiny import TINY

    files = Files(str(lake))
    return run_batch(spark, files, warehouse_of(lake), RunOptions(now_us=NOW_US, **options), catalog=TINY)


def warehouse_of(lake: Path) -> Warehouse:
    return Warehouse(Files(str(lake)).below("pipeline"))


def tables(lake: Path) -> object:
    from tests.pipeline.tiny import rows_of

    return rows_of(warehouse_of(lake))


def month_of_mail(lake: Path) -> list[Path]:
    """Three nodes over a month; gives the manifests in the order of sealing, with the last node's all at the end."""
    write_keys(lake, "node-a", "node-b", "node-c")
    for node, days in (("node-a", (0, 0, 10, 30)), ("node-b", (0, 1, 30)), ("node-c", (0, 2, 29))):
        outbox = Outbox(lake, node)
        for day in days:
            outbox.seal(outbox.messages(5, at_ms=START_MS + day * DAY_MS))
    return sorted((lake / "manifests").rglob("*.json"))


def hidden(manifests: list[Path], away: Path) -> None:
    """Take the manifests out of the lake, so that their segments are not there yet."""
    for number, path in enumerate(manifests):
        away.mkdir(exist_ok=True)
        (away / f"{number}").write_text(str(path))
        shutil.move(path, away / f"{number}.json")


def brought(away: Path, number: int) -> None:
    shutil.move(away / f"{number}.json", (away / f"{number}").read_text())


@pytest.fixture
def whole(tmp_path: Path, spark: "SparkSession") -> object:
    """The tables of one run over everything."""
    lake = tmp_path / "whole"
    month_of_mail(lake)
    assert run(spark, lake).events == 50
    return tables(lake)


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize("order", ["forth", "back", "mixed"])
def test_the_order_of_arrival_does_not_matter(tmp_path: Path, spark: "SparkSession", whole: object, order: str) -> None:
    """Segments one by one, in any order, a node that comes back after a month: the tables of one run over all."""
    lake, away = tmp_path / "lake", tmp_path / "away"
    manifests = month_of_mail(lake)
    hidden(manifests, away)
    numbers = list(range(len(manifests)))
    arrivals = {"forth": numbers, "back": numbers[::-1], "mixed": [*numbers[1::2], *numbers[::2]]}[order]
    (lake / "manifests").mkdir(exist_ok=True)
    for number in arrivals:
        brought(away, number)
        assert run(spark, lake).events == 5
    assert tables(lake) == whole
    assert warehouse_of(lake).require().events == 50
    assert warehouse_of(lake).require().batch == len(manifests)


def test_a_full_run_is_the_same(tmp_path: Path, spark: "SparkSession", whole: object) -> None:
    """`--full` over a warehouse that grew bit by bit makes the same tables from the lake alone."""
    lake, away = tmp_path / "lake", tmp_path / "away"
    hidden(month_of_mail(lake)[::2], away)
    run(spark, lake)
    for number in range(5):
        brought(away, number)
    run(spark, lake)
    assert tables(lake) == whole
    again = run(spark, lake, full=True)
    assert again.events == 50
    assert tables(lake) == whole


def test_a_repeated_export_counts_once(tmp_path: Path, spark: "SparkSession", whole: object) -> None:
    """A mirror that exported part of an outbox as well changes nothing, before or after."""
    lake = tmp_path / "lake"
    month_of_mail(lake)
    run(spark, lake)
    copy = Outbox(lake, "node-a")
    events = copy.messages(5)
    for part in (events[:2], events[2:]):
        # The owner's manifest has the name of seq 1; a mirror that cuts elsewhere writes others.
        if copy.seq:
            copy.seal(part, sealed_by="node-b")
        else:
            from hashlib import sha256

            from agentpost.protocol.codec import encode_event

            for event in part:
                copy.chain = sha256(copy.chain + encode_event(event)).digest()
            copy.seq = 2
    result = run(spark, lake)
    assert (result.segments, result.events, result.findings) == (1, 0, 0)
    assert tables(lake) == whole


def test_slices_of_a_segment(tmp_path: Path, spark: "SparkSession", whole: object) -> None:
    """Where an earlier segment covers a part of a later one, only the rest of that is read."""
    lake, away = tmp_path / "lake", tmp_path / "away"
    owner = [path for path in month_of_mail(lake) if "node-a" in str(path)]
    hidden(owner[:1], away)
    mirror = Outbox(lake, "node-a")
    mirror.seal_from(mirror.messages(5)[:3], first_seq=1, chain=bytes(32), sealed_by="node-b")
    run(spark, lake)
    first = owner[0]
    first.unlink()
    brought(away, 0)
    assert run(spark, lake).events == 2
    assert tables(lake) == whole


def test_many_runs_stay_few_files(tmp_path: Path, spark: "SparkSession") -> None:
    """The files of an hour do not become many, and compaction leaves one for all hours, with the same rows."""
    from agentpost.pipeline.compact import compact
    from tests.pipeline.tiny import TINY

    lake = tmp_path / "lake"
    outbox = Outbox(lake)
    for number in range(9):
        outbox.seal(outbox.messages(2, at_ms=START_MS + number // 3 * HOUR_MS))
        run(spark, lake)
    version = warehouse_of(lake).require()
    assert len(version.tables["silver_said"]) == 3
    assert len(version.tables["segments"]) <= 7
    before = tables(lake)
    done = compact(spark, warehouse_of(lake), catalog=TINY)
    assert done.files_after < done.files_before
    assert len(warehouse_of(lake).require().tables["silver_said"]) == 1
    assert tables(lake) == before
    outbox.seal(outbox.messages(2))
    run(spark, lake)
    assert run(spark, lake, full=True).events == 20


def test_the_files_of_many_hours_are_joined(tmp_path: Path, spark: "SparkSession") -> None:
    """Runs that each leave an hour behind do not leave a file each, and no row is lost."""
    lake = tmp_path / "lake"
    outbox = Outbox(lake)
    for number in range(30):
        outbox.seal(outbox.messages(2, at_ms=START_MS + number * HOUR_MS))
        run(spark, lake)
    assert len(warehouse_of(lake).require().tables["said_by_hour"]) < 10
    in_steps = tables(lake)
    run(spark, lake, full=True)
    assert tables(lake) == in_steps


def test_spark_and_pyarrow_read_the_same(tmp_path: Path, spark: "SparkSession") -> None:
    """A table is plain Parquet and a list of files: Spark and pyarrow see the same rows, replaced hours included."""
    from agentpost.pipeline.frames import table_frame
    from tests.pipeline.tiny import rows_of

    lake, away = tmp_path / "lake", tmp_path / "away"
    hidden(month_of_mail(lake)[1::2], away)
    run(spark, lake)
    for number in range(5):
        brought(away, number)
        run(spark, lake)
    warehouse = warehouse_of(lake)
    version = warehouse.require()
    assert any(file.is_partial for file in version.tables["said_by_hour"])
    for name, rows in rows_of(warehouse).items():
        frame = table_frame(spark, warehouse, version, name)
        assert sorted((tuple(row[c] for c in sorted(frame.columns)) for row in frame.collect()), key=repr) == rows


def test_nothing_new_is_cheap(tmp_path: Path, spark: "SparkSession") -> None:
    """A run without anything new reads no events, and publishes the tables as of now."""
    lake = tmp_path / "lake"
    month_of_mail(lake)
    run(spark, lake)
    before = tables(lake)
    result = run(spark, lake)
    assert (result.events, result.hours, result.batch, result.version) == (0, 0, 1, 2)
    assert tables(lake) == before


def test_tables_that_an_older_version_has_not_are_made_of_the_lake(tmp_path: Path, spark: "SparkSession") -> None:
    """Where a table of the hours was not there before, all of it is made."""
    from agentpost.pipeline.run import RunOptions, run_batch
    from tests.pipeline.tiny import TINY

    lake = tmp_path / "lake"
    month_of_mail(lake)
    older = TINY._replace(gold=(TINY.gold[0]._replace(name="said_before"),), fleet=())
    run_batch(spark, Files(str(lake)), warehouse_of(lake), RunOptions(now_us=NOW_US), catalog=older)
    assert run(spark, lake).events == 50
    assert warehouse_of(lake).require().events == 50


def test_since_leaves_the_rest_for_later(tmp_path: Path, spark: "SparkSession", whole: object) -> None:
    """`--since` reads what was sealed since then; a later run without it reads the rest."""
    lake = tmp_path / "lake"
    month_of_mail(lake)
    assert run(spark, lake, since_us=(START_MS + 20 * DAY_MS) * 1000).events == 15
    assert run(spark, lake).events == 35
    assert tables(lake) == whole


def test_an_empty_lake_has_empty_tables(tmp_path: Path, spark: "SparkSession") -> None:
    """Where nothing can be read there are tables without rows, and the reasons."""
    lake = tmp_path / "lake"
    bad = lake / "manifests" / "node=node-a" / "epoch=first"
    bad.mkdir(parents=True)
    (bad / f"{1:019d}.json").write_text("nothing of use")
    result = run(spark, lake)
    assert (result.events, result.quarantined, result.findings) == (0, 1, 1)
    assert tables(lake) == {"said_by_hour": [], "said_in_all": [(0, None, 0, 0)]}


def test_watching_until_idle(tmp_path: Path, spark: "SparkSession") -> None:
    """`watch` takes in what is there and what comes, tells how fresh the tables are, and ends when it is idle."""
    from agentpost.pipeline.watch import WatchOptions, watch
    from tests.pipeline.tiny import TINY

    lake = tmp_path / "lake"
    outbox = Outbox(lake)
    outbox.seal(outbox.messages(3))
    events: list[int] = []
    options = WatchOptions(every_seconds=0.01, until_idle=True)
    for done in watch(
        spark,
        Files(str(lake)),
        warehouse_of(lake),
        options,
        stop=threading.Event(),
        now_us=lambda: NOW_US,
        catalog=TINY,
    ):
        events.append(done.run.events)
        assert done.freshness.newest_event_age == (NOW_US - (START_MS + 3000) * 1000) / 1e6
        assert done.freshness.node_lag == {"node-a": done.freshness.newest_event_age}
        if len(events) < 3:
            outbox.seal(outbox.messages(1, at_ms=START_MS))
    assert events == [3, 1, 1]


def test_sql_over_the_tables(tmp_path: Path, spark: "SparkSession") -> None:
    """Every table can be asked, and a wrong query is answered with what is wrong in it."""
    from agentpost.pipeline.params import Params
    from agentpost.pipeline.sql import query, register_tables

    lake = tmp_path / "lake"
    month_of_mail(lake)
    run(spark, lake)
    warehouse = warehouse_of(lake)
    register_tables(spark, Files(str(lake)), warehouse, warehouse.require(), Params(now_us=NOW_US))
    assert query(spark, "select sum(times) as n from said_by_hour").to_pylist() == [{"n": 50}]
    assert query(spark, "select count(*) as n from segments").to_pylist() == [{"n": 10}]
    assert query(spark, "select count(*) as n from bronze where node = 'node-b'").to_pylist() == [{"n": 15}]
    with pytest.raises(Refusal, match="no_such_table"):
        query(spark, "select * from no_such_table")
    with pytest.raises(Refusal, match=r"[Ss]yntax"):
        query(spark, "selekt 1")
