"""What readers see: the tables as they read at a moment, and the views that are made when asked."""

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from agentpost.lake.schema import FACTS
from tests.pipeline.gold.building import HOUR, MINUTE, SECOND, START_US, Story, bronze, rows_of, tables
from tests.pipeline.gold.test_measures import fact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.req("OBS-6")
def test_what_is_open_changes_as_time_passes(spark: "SparkSession") -> None:
    """The same tables, looked at later, show a late task, and that an outcome that was due since is not known."""
    from agentpost.pipeline.gold.views import register
    from agentpost.pipeline.params import Params

    story = Story()
    story.send(1, kind="task_create", task_id="tsk_" + "1" * 26)
    story.ack(1, "accepted", at_us=START_US + SECOND)
    story.add("b", "task_accept", task_id="tsk_" + "1" * 26, eta_us=START_US + HOUR)
    found = tables(spark, story.rows, now_us=START_US + MINUTE)
    read = {name: found[name] for name in ("lifecycle", "tasks", "backlog", "completeness")}
    seen = []
    for now_us in (START_US + MINUTE, START_US + 30 * HOUR):
        names = register(spark, read, Params(now_us=now_us))
        (state,) = [row["state"] for row in rows_of(spark.sql("select state from lifecycle"))]
        (is_late,) = [row["is_late"] for row in rows_of(spark.sql("select is_late from tasks"))]
        seen.append((state, is_late))
    assert seen == [("Accepted", False), ("Unknown", True)]
    assert {"lifecycle", "tasks", "latency_daily", "backlog_alerts"} <= set(names)
    assert "audit" not in names


@pytest.mark.req("OBS-10")
def test_the_audit_has_every_event_of_a_session_in_causal_order(spark: "SparkSession") -> None:
    """The gateway that answers is an hour behind: what it says still comes after what it speaks of."""
    from agentpost.pipeline.frames import local_frame
    from agentpost.pipeline.gold.views import audit

    story = Story()
    message = story.send(1, at_us=START_US)
    again = story.send(1, at_us=START_US, attempt=2)
    accepted = story.ack(1, "accepted", at_us=START_US - HOUR)
    reply = story.reply(1, at_us=START_US - HOUR + SECOND)
    heard = story.add("a", "ack", ref_event_id=reply["event_id"], ack_type="accepted", at_us=START_US - HOUR)
    facts = [
        fact("session", message["corr_id"], at_us=START_US + at, sessionId=session, actor="x", action="send")
        for at, session in enumerate(("ses_0", "ses_1"))
    ]
    frame = local_frame(spark, pa.Table.from_pylist(facts, schema=FACTS))
    rows = sorted(rows_of(audit(bronze(spark, story.rows), frame)), key=lambda row: row["position"])
    assert [row["session_id"] for row in rows] == ["ses_1"] * 5
    assert [(row["node"], row["seq"]) for row in rows] == [
        (each["node"], each["seq"]) for each in (message, again, accepted, reply, heard)
    ]
