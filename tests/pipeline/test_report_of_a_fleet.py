"""The report and the feedback over real tables: those of a simulated fleet, through the whole pipeline."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from agentpost.pipeline.feedback import collect
from agentpost.pipeline.files import Files
from agentpost.pipeline.report.gather import gather
from agentpost.pipeline.report.model import Report
from agentpost.pipeline.report.page import page
from agentpost.pipeline.run import RunOptions, run_batch
from agentpost.pipeline.warehouse import Warehouse
from agentpost.simulate.faults import ALL_RULES
from agentpost.simulate.fleet import write_fleet
from agentpost.simulate.plan import FleetPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

OBSERVED = ("sla_breach", "expired", "dead_letter", "eta_missed", "task_failed")


class Fleet:
    def __init__(self, lake: Path, spark: "SparkSession") -> None:
        write_fleet(FleetPlan(nodes=6, agents=24, events=6000, seed=12, faults=ALL_RULES), lake, workers=1)
        self.truth: dict[str, Any] = json.loads((lake / "truth.json").read_text())
        files = Files(str(lake))
        self.warehouse = Warehouse(files.below("pipeline"))
        run_batch(spark, files, self.warehouse, RunOptions(now_us=self.truth["nowUs"]))
        self.version = self.warehouse.require()

    def read(self, name: str, columns: "Sequence[str]") -> pa.Table | None:
        found = name in self.version.tables
        return self.warehouse.read(self.version, name, columns=list(columns)) if found else None

    def report(self) -> Report:
        return gather(
            self.read,
            lake="lake",
            version=self.version.number,
            now_us=self.version.now_us,
            newest_us=self.version.newest_us,
            events=self.version.events,
        )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Fleet:
    return Fleet(tmp_path_factory.mktemp("report") / "lake", spark)


def test_the_report_of_a_fleet_agrees_with_its_truth(fleet: Fleet) -> None:
    """The report counts the broken rules and the failed tasks that were put into the fleet, and misses no table."""
    report = fleet.report()
    wanted = Counter(fault["rule"] for fault in fleet.truth["faults"])
    assert {each.rule: each.count for each in report.rules} == {
        rule: count for rule, count in wanted.items() if rule not in OBSERVED
    }
    assert report.missing == ()
    assert report.tasks.failed == wanted["task_failed"]
    assert report.tasks.promised - report.tasks.kept == wanted["eta_missed"]
    assert sum(each.dead_letters for each in report.rates) == wanted["dead_letter"] + wanted["expired"]
    assert len(report.freshness) == 6
    wrong = [each for each in report.tasks.capabilities if each.failed or each.late]
    assert {each.capability_id for each in report.reviews} == {each.name for each in wrong} != set()
    assert {each.name for each in report.objectives} == {
        "Delivery between online gateways",
        "No backlog grows unnoticed",
    }


def test_latency_in_the_report_is_that_of_the_events(fleet: Fleet) -> None:
    """The p95 of messages equals a plain computation over the lifecycle."""
    rows = fleet.warehouse.read(fleet.version, "lifecycle").to_pylist()
    took = [
        row["accepted_us"] - row["emitted_us"]
        for row in rows
        if row["kind"] == "message" and row["accepted_us"] is not None
    ]
    assert fleet.report().latency["message"].p95_us == pytest.approx(float(np.percentile(took, 95)), abs=1)


def test_every_section_of_the_page_has_something(fleet: Fleet) -> None:
    """With a fleet in the tables no section of the page is empty."""
    assert "nothing to show" not in page(fleet.report())


@pytest.mark.req("OBS-9")
def test_what_goes_back_is_what_was_found(fleet: Fleet) -> None:
    """Every broken rule, review item and watermark of the tables is in the feedback, the same in each run."""
    feedback = collect(fleet.read)
    told = {
        tuple(sorted((name, value) for name, value in each.items() if name != "corrId")) for each in feedback.findings
    }
    wanted = {tuple(sorted(fault.items())) for fault in fleet.truth["faults"] if fault["rule"] not in OBSERVED}
    assert told == wanted
    assert set(feedback.watermarks) == {f"node-{n:04d}" for n in range(6)}
    assert feedback.reviews
    assert collect(fleet.read) == feedback
