"""Latency, rates, backlog, objectives, cursors, tasks and reviews on a few events."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.pipeline.gold.building import HOUR, MINUTE, SECOND, START_US, Story, rows_of, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_US = START_US + HOUR


def fact(topic: str, key: str, at_us: int = START_US, **value: Any) -> dict[str, Any]:
    return {"at_us": at_us, "observer": "a", "topic": topic, "key": key, "value": json.dumps(value)}


@pytest.mark.req("OBS-2")
def test_percentiles_are_exact(spark: "SparkSession") -> None:
    """p50, p95 and p99 are what numpy says of the same numbers, not an estimate."""
    story, took_ms = Story(), [7, 1, 400, 35, 90, 12, 5000, 60, 61, 3]
    for number, ms in enumerate(took_ms):
        story.send(number)
        story.ack(number, "accepted", at_us=START_US + 1000 * ms)
    (row,) = rows_of(tables(spark, story.rows)["latency"])
    for name, share in (("p50", 50), ("p95", 95), ("p99", 99)):
        assert row[f"delivery_{name}_ms"] == pytest.approx(float(np.percentile(took_ms, share)), abs=1e-9)
    assert (row["source_node"], row["to_node"], row["kind"], row["deliveries"]) == ("a", "b", "message", 10)


@pytest.mark.req("OBS-1", "OBS-2")
def test_rates(spark: "SparkSession") -> None:
    """Retries, duplicates and dead letters are shares of what a node had to deliver."""
    story = Story()
    for number in range(4):
        story.send(number)
    story.send(0, attempt=2)
    story.send(1)
    story.dead(2, "max_attempts")
    (row,) = rows_of(tables(spark, story.rows)["rates"])
    assert (row["node"], row["deliveries"], row["sends"]) == ("a", 4, 6)
    assert (row["retry_rate"], row["duplicate_rate"], row["dead_letter_rate"]) == (0.25, 0.25, 0.25)


@pytest.mark.req("OBS-3", "OBS-8")
def test_a_backlog_that_grows_for_more_than_ten_minutes_is_an_alert(spark: "SparkSession") -> None:
    """One that grows and is worked off in time is none; the alert names the gateway and since when."""
    from agentpost.pipeline.gold.backlog import alerts

    story = Story()
    for number in range(15):
        story.send(number, to="b", at_us=START_US + number * MINUTE)
        story.send(100 + number, to="c", at_us=START_US + number * MINUTE)
        story.ack(100 + number, "accepted", node="c", at_us=START_US + (number + number % 5) * MINUTE + SECOND)
    story.add("b", "signal", at_us=NOW_US)
    found = tables(spark, story.rows, now_us=NOW_US)
    (alert,) = rows_of(alerts(found["backlog"]))
    assert (alert["node"], alert["since_us"], alert["waiting"]) == ("b", START_US, 15)
    backlog = next(row for row in rows_of(found["slo"]) if row["objective"] == "backlog" and row["window"] == "3d")
    assert not backlog["is_met"]


@pytest.mark.req("OBS-3")
def test_the_delivery_objective_burns_by_the_share_that_is_late(spark: "SparkSession") -> None:
    """Of twenty deliveries two are late: twice what is allowed. Mail to a node that is away does not count."""
    story = Story()
    for number in range(20):
        story.send(number)
        story.ack(number, "accepted", at_us=START_US + (8 if number < 2 else 1) * SECOND)
    story.send(99)
    story.rows[-1]["route_decision"] = "wait"
    rows = rows_of(tables(spark, story.rows, now_us=START_US + 30 * MINUTE)["slo"])
    delivery = {row["window"]: row for row in rows if row["objective"] == "delivery"}
    assert set(delivery) == {"1h", "6h", "24h", "3d"}
    assert (delivery["1h"]["good"], delivery["1h"]["total"]) == (18, 20)
    assert delivery["1h"]["burn_rate"] == pytest.approx(2.0)
    assert not delivery["1h"]["is_met"]


@pytest.mark.req("OBS-9", "PIPE-7", "OBS-1")
def test_watermarks_follow_the_slowest_active_reader(spark: "SparkSession") -> None:
    """What an active gateway has not read is never below the watermark; one whose lease ran out holds nothing back."""
    story = Story()
    for number in range(100):
        story.send(number)
    cursors = [
        fact(
            "cursor",
            f"{who}/a",
            consumer=who,
            source="a",
            epoch="1",
            lastSeq=seq,
            leaseExpiresUs=lease,
            status="active",
        )
        for who, seq, lease in (("b", 80, NOW_US + HOUR), ("c", 60, NOW_US + HOUR), ("d", 5, NOW_US - HOUR))
    ]
    found = tables(spark, story.rows, now_us=NOW_US, facts=cursors, retention_events=10)
    (mark,) = [row for row in rows_of(found["watermarks"]) if row["node"] == "a"]
    assert (mark["smallest_cursor"], mark["subscribers"], mark["prune_through_seq"]) == (60, 2, 50)
    assert {row["consumer"]: row["lag"] for row in rows_of(found["ack_lag"])} == {"b": 20, "c": 40, "d": 95}


@pytest.mark.req("CAP-6", "OBS-9", "TASK-8")
def test_reviews_are_one_for_each_cause(spark: "SparkSession") -> None:
    """Late, failed and mismatched tasks, and repeated routing misses: one item a cause, with examples."""
    story = Story()

    def task(number: int, **end: Any) -> None:
        named = {"task_id": f"tsk_{number:026d}", "corr_id": f"corr_{number:026d}"}
        story.send(number, kind="task_create", capability_id="docs.review", skill_version="1.2.0", **named)
        story.add("b", "task_accept", eta_us=START_US + MINUTE, **named)
        if end:
            story.add("b", end.pop("kind"), ended_us=START_US + 30 * SECOND, **named, **end)

    task(1)
    task(2, kind="task_failed", failure_class="timeout")
    task(3, kind="task_failed", failure_class="timeout")
    task(4, kind="task_failed", failure_class="contract_mismatch")
    task(5, kind="task_complete")
    for number in (6, 7, 8):
        story.send(number, kind="task_create", capability_id="code.build", task_id=f"tsk_{number:026d}")
        story.dead(number, "no_route")
    facts = [
        fact("capability", name, version="3", status="active", executorSkillVersion="2.0")
        for name in ("docs.review", "code.build")
    ]
    found = tables(spark, story.rows, now_us=NOW_US, facts=facts)
    reviews = {(row["trigger"], row["capability_id"]): row for row in rows_of(found["reviews"])}
    assert {cause: row["count"] for cause, row in reviews.items()} == {
        ("eta_missed", "docs.review"): 1,
        ("task_failed", "docs.review"): 2,
        ("contract_mismatch", "docs.review"): 1,
        ("routing_miss", "code.build"): 3,
    }
    failed = reviews["task_failed", "docs.review"]
    assert (failed["delegation_skill_version"], failed["executor_skill_version"]) == ("1.2.0", "2.0")
    assert failed["failure_class"] == "timeout"
    assert failed["sample_corr_ids"] == [f"corr_{2:026d}", f"corr_{3:026d}"]


@pytest.mark.req("TASK-8")
def test_tasks_tell_promise_and_outcome(spark: "SparkSession") -> None:
    """A task has who gave it, who took it, what was promised, how it went on and how it ended."""
    story, named = Story(), {"task_id": "tsk_" + "1" * 26}
    story.send(1, kind="task_create", requester_agent="agent-a", **named)
    story.add("b", "task_accept", eta_us=START_US + 10 * MINUTE, **named)
    story.add("b", "task_update", eta_us=START_US + 20 * MINUTE, progress=40, task_status="in_progress", **named)
    story.add("b", "task_complete", ended_us=START_US + 25 * MINUTE, **named)
    (task,) = rows_of(tables(spark, story.rows)["tasks"])
    assert (task["requester_agent"], task["assignee_agent"], task["node"]) == ("agent-a", "agent-b", "a")
    assert (task["updates"], task["progress"], task["outcome"]) == (1, 40, "completed")
    assert (task["lateness_us"], task["is_eta_kept"]) == (5 * MINUTE, False)


@pytest.mark.req("TASK-3", "TASK-8")
def test_the_promise_is_the_one_that_was_said_last(spark: "SparkSession") -> None:
    """An ETA that was revised to an earlier time counts, and a failed task has kept no ETA."""
    story, named = Story(), {"task_id": "tsk_" + "3" * 26}
    story.send(1, kind="task_create", **named)
    story.add("b", "task_accept", eta_us=START_US + 20 * MINUTE, at_us=START_US + SECOND, **named)
    story.add("b", "task_update", eta_us=START_US + 10 * MINUTE, at_us=START_US + 2 * SECOND, **named)
    story.add("b", "task_complete", ended_us=START_US + 15 * MINUTE, **named)
    (task,) = rows_of(tables(spark, story.rows)["tasks"])
    assert (task["eta_us"], task["lateness_us"], task["is_eta_kept"]) == (START_US + 10 * MINUTE, 5 * MINUTE, False)


@pytest.mark.req("TASK-8")
def test_a_canceled_task_is_over_and_nobody_s_fault(spark: "SparkSession") -> None:
    """What its requester does not want any more is neither open nor late, whatever its worker says of it later."""
    story, named = Story(), {"task_id": "tsk_" + "2" * 26, "capability_id": "docs.review"}
    story.send(1, kind="task_create", requester_agent="agent-a", **named)
    story.add("b", "task_accept", eta_us=START_US + 10 * MINUTE, task_id=named["task_id"])
    story.add("a", "signal", at_us=START_US + 5 * MINUTE, signal="task_withdrawn", task_id=named["task_id"])
    story.add("b", "task_complete", ended_us=START_US + 4 * MINUTE, task_id=named["task_id"])
    found = tables(spark, story.rows, now_us=START_US + 60 * MINUTE)
    (task,) = rows_of(found["tasks"])
    assert (task["outcome"], task["ended_us"]) == ("canceled", START_US + 5 * MINUTE)
    assert (task["lateness_us"], task["is_eta_kept"], task["is_deadline_missed"]) == (None, None, None)
    assert rows_of(found["reviews"]) == []
