"""Each integrity rule on a few events: what breaks it, and what only looks like it."""

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.gold.building import HOUR, MINUTE, SECOND, START_US, Story, event_id, findings_of, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_US = START_US + 3 * HOUR


def done(story: Story, number: int) -> None:
    story.send(number)
    story.ack(number, "accepted", at_us=START_US + SECOND)
    story.ack(number, "processed", at_us=START_US + 2 * SECOND)


@pytest.mark.req("OBS-7")
def test_what_keeps_the_rules_is_not_reported(spark: "SparkSession") -> None:
    """Resends, fan-out, replies, an event of a gateway that is away, and what a gateway closes itself break nothing."""
    story = Story()
    done(story, 1)
    story.send(2)
    story.send(2, attempt=2)
    story.ack(2, "accepted", at_us=START_US + 30 * SECOND)
    story.reply(2, at_us=START_US + 40 * SECOND)
    story.send(3, to="c", at_us=START_US)  # c never wrote a word: it is away
    story.send(4)["kind"] = "task_update"
    story.ack(4, "processed", at_us=START_US + SECOND)
    story.send(5)["kind"] = "task_complete"
    story.ack(5, "failed_terminal", at_us=START_US + SECOND)
    found = tables(spark, story.rows, now_us=NOW_US)
    assert findings_of(found["integrity"]) == set()
    assert findings_of(found["observed"]) == set()


@pytest.mark.req("OBS-7", "RTY-3")
def test_rules_about_one_delivery(spark: "SparkSession") -> None:
    """Every rule that a single delivery can break is found where the evidence stands, and nothing else is."""
    story = Story()
    b = "agent-b"
    story.send(1)
    twice = story.send(1)
    story.ack(1, "accepted", at_us=START_US + SECOND)
    orphan = story.ack(2, "accepted", at_us=START_US + SECOND)
    story.ack(2, "processed", at_us=START_US + 2 * SECOND)
    done(story, 3)
    wrong = story.ack(3, "accepted", node="c", agent=b, at_us=START_US + SECOND)
    story.ack(3, "processed", node="c", agent=b, at_us=START_US + 2 * SECOND)
    done(story, 4)
    forged = story.ack(4, "processed", node="c", agent=b, acked_by_node="b")
    story.send(5, at_us=START_US + 2 * MINUTE)
    early = story.ack(5, "accepted", at_us=START_US + 30 * SECOND)
    story.send(6)
    unaccepted = story.ack(6, "processed", at_us=START_US + SECOND)
    story.ack(6, "accepted", at_us=START_US + 2 * SECOND)
    double = story.send(7)
    story.ack(7, "accepted", at_us=START_US + SECOND)
    story.ack(7, "accepted", at_us=START_US + 2 * SECOND)
    moved = story.send(8)
    story.send(8, to="c", attempt=2)
    story.rows[-1]["to_agents"] = [b]
    story.ack(8, "accepted", at_us=START_US + SECOND)
    story.ack(8, "accepted", node="c", agent=b, at_us=START_US + 2 * SECOND)
    hole = story.send(9)
    story.ack(1, "processed", at_us=START_US + 2 * HOUR)  # b is there all the time
    assert findings_of(tables(spark, story.rows, now_us=NOW_US)["integrity"]) == {
        ("duplicate", "a", twice["seq"], event_id(1), None),
        ("orphan_ack", "b", orphan["seq"], event_id(2), b),
        ("wrong_acker", "c", wrong["seq"], event_id(3), b),
        ("wrong_acker", "c", forged["seq"], event_id(4), b),
        ("accept_before_emit", "b", early["seq"], event_id(5), b),
        ("unaccepted_outcome", "b", unaccepted["seq"], event_id(6), b),
        ("double_injection", "a", double["seq"], event_id(7), b),
        ("double_injection", "a", moved["seq"], event_id(8), b),
        ("black_hole", "a", hole["seq"], event_id(9), b),
    }


@pytest.mark.req("OBS-7")
def test_an_ack_that_is_ahead_of_its_event_waits_an_hour(spark: "SparkSession") -> None:
    """Outboxes are exported each in its own time: an ACK without its event is an orphan only after a while."""
    story = Story()
    story.ack(1, "accepted")
    early = tables(spark, story.rows, now_us=START_US + HOUR // 2)["integrity"]
    late = tables(spark, story.rows, now_us=START_US + 2 * HOUR)["integrity"]
    assert findings_of(early) == set()
    assert {rule for rule, *_ in findings_of(late)} == {"orphan_ack"}


@pytest.mark.req("OBS-7", "ENV-7", "ACK-4")
def test_what_is_worth_a_look(spark: "SparkSession") -> None:
    """Dead letters, expired mail and missed SLAs are listed, and are no broken rules."""
    story = Story()
    story.send(1)
    dead = story.dead(1, "max_attempts")
    story.send(2, expires_us=START_US + SECOND)
    expired = story.dead(2, "expired")
    late = story.send(3)
    story.ack(3, "accepted", at_us=START_US + SECOND)
    found = tables(spark, story.rows, now_us=START_US + 25 * HOUR)
    assert findings_of(found["integrity"]) == set()
    assert findings_of(found["observed"]) == {
        ("dead_letter", "a", dead["seq"], event_id(1), "agent-b"),
        ("expired", "a", expired["seq"], event_id(2), "agent-b"),
        ("sla_breach", "a", late["seq"], event_id(3), "agent-b"),
    }
