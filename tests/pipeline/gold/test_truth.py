"""Simulated fleets, through the whole pipeline: it finds exactly the faults put in, and counts as Python does."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from typer.testing import CliRunner

from agentpost.simulate.faults import ALL_RULES
from agentpost.simulate.fleet import write_fleet
from agentpost.simulate.plan import FleetPlan
from tests.pipeline.gold import reference
from tests.simulate.plain_check import PlainCheck, truth_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from agentpost.pipeline.files import Files
    from agentpost.pipeline.warehouse import Warehouse

SEEDS = range(1, 21 if int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1")) > 1 else 4)
FIELDS = ("rule", "node", "epoch", "seq", "eventId", "agentId")


class Fleet(NamedTuple):
    place: Path
    lake: "Files"
    warehouse: "Warehouse"
    now_us: int


@pytest.fixture(scope="module", params=SEEDS)
def fleet(request: pytest.FixtureRequest, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A fleet with every fault, and its tables: by turns made by the driver, by Spark's workers, and by Spark."""
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.run import RunOptions, run_batch
    from agentpost.pipeline.warehouse import Warehouse
    from tests.pipeline.makers import MAKERS, made_by

    place = tmp_path_factory.mktemp("fleet") / "lake"
    plan = FleetPlan(nodes=6, agents=24, events=3_000, seed=request.param, faults=ALL_RULES, segment_events=2_000)
    now_us = write_fleet(plan, place, workers=1).now_us
    lake = Files(str(place))
    warehouse = Warehouse(lake.below("pipeline"))
    with made_by(MAKERS[request.param % len(MAKERS)]):
        run_batch(spark, lake, warehouse, RunOptions(now_us=now_us))
    return Fleet(place, lake, warehouse, now_us)


def named(finding: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, finding[name]) for name in FIELDS if finding.get(name) is not None))


@pytest.mark.req("OBS-7", "OBS-8")
def test_exactly_the_injected_faults_are_found(fleet: Fleet) -> None:
    """Every fault that was put in is reported with its place, event and agent; nothing else is."""
    from agentpost.edges.cli.app import make_app

    said = CliRunner().invoke(make_app(), ["pipeline", "check", "--all", "--lake", str(fleet.place), "-o", "json"])
    assert said.exit_code == 1
    result = json.loads(said.stdout)
    found = {named(each) for each in (*result["findings"], *result["observed"])}
    truth = {each for each in truth_of(fleet.place) if dict(each)["rule"] != "late_arrival"}
    assert {dict(each)["rule"] for each in truth} == set(ALL_RULES) - {"late_arrival"}
    assert found - truth == set()
    assert truth - found == set()
    assert all("corrId" in each for each in result["findings"] if "agentId" in each)


@pytest.mark.req("OBS-6", "OBS-2")
@pytest.mark.long
def test_states_and_latencies_are_those_of_an_independent_computation(fleet: Fleet, spark: "SparkSession") -> None:
    """Plain Python, event by event, comes to the same state of every delivery and to the same percentiles."""
    from agentpost.pipeline.frames import table_frame
    from agentpost.pipeline.gold.lifecycle import with_state
    from agentpost.pipeline.params import Params

    version = fleet.warehouse.current()
    assert version is not None
    events = PlainCheck(fleet.place, now_us=fleet.now_us).events()
    expected = reference.deliveries(event for event in events if event["kind"] != "signal")
    lifecycle = with_state(table_frame(spark, fleet.warehouse, version, "lifecycle"), Params(now_us=fleet.now_us))
    found = {(row.event_id, row.recipient): (row.state, row.attempts) for row in lifecycle.collect()}
    assert found == {
        key: (delivery.state(key[1], fleet.now_us), len(delivery.sends)) for key, delivery in expected.items()
    }
    latency = table_frame(spark, fleet.warehouse, version, "latency").where("accepted > 0").collect()
    percentiles = {
        (row.hour, row.kind, row.source_node, row.to_node): (
            row.delivery_p50_ms,
            row.delivery_p95_ms,
            row.delivery_p99_ms,
        )
        for row in latency
    }
    wanted = reference.latencies(expected)
    assert percentiles.keys() == wanted.keys()
    for key, values in wanted.items():
        assert percentiles[key] == pytest.approx(values, abs=1e-6), key
