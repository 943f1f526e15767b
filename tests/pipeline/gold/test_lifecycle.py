"""The state of a delivery, from what the outboxes say, is what the sender's own table of states leads to."""

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from agentpost.protocol.errors import Refusal
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.protocol.machine import walk
from tests.pipeline.gold.building import HOUR, SECOND, START_US, Story, event_id, rows_of, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

G = DeliverySignal
# A resend says nothing of when it was made, so it is not among them; docs/pipeline.md says what that means.
SIGNALS = (
    G.ACCEPTED,
    G.PROCESSED,
    G.FAILED_TERMINAL,
    G.REPLY,
    G.ACK_TIMEOUT,
    G.EXHAUSTED,
    G.EXPIRED,
    G.UNROUTABLE,
    G.SLA_TIMEOUT,
)
REASONS = {G.EXHAUSTED: "max_attempts", G.EXPIRED: "expired", G.UNROUTABLE: "no_route"}
SLA_US = 24 * HOUR + 120 * SECOND
NOW_US = START_US + 2 * HOUR  # before any SLA that did not run out


def heard_in_order() -> list[tuple[DeliverySignal, ...]]:
    """Every order of up to four signals that a sender can hear."""
    found: list[tuple[DeliverySignal, ...]] = []
    for length in range(5):
        for signals in permutations(SIGNALS, length):
            state = DELIVERY.initial
            try:
                for signal in signals:
                    path = walk(DELIVERY, state, signal)
                    state = path[-1] if path else state
            except Refusal:
                continue
            found.append(signals)
    return found


def end_of(signals: tuple[DeliverySignal, ...]) -> DeliveryState:
    state = DELIVERY.initial
    for signal in signals:
        path = walk(DELIVERY, state, signal)
        state = path[-1] if path else state
    return state


def tell(story: Story, number: int, signals: tuple[DeliverySignal, ...]) -> None:
    """What the outboxes hold after a sender has heard these signals in this order."""
    # A timeout of the ACK leaves nothing but time; without one the send is young.
    is_old = bool({G.ACK_TIMEOUT, G.EXHAUSTED, G.EXPIRED, G.UNROUTABLE} & set(signals))
    begun_us = NOW_US - (60 * SECOND if is_old else 10 * SECOND)
    if G.SLA_TIMEOUT in signals:
        begun_us = NOW_US - SLA_US - HOUR
    story.send(number, at_us=begun_us)
    at_us = begun_us
    for signal in signals:
        at_us += SECOND
        match signal:
            case G.ACCEPTED:
                story.ack(number, "accepted", at_us=at_us)
            case G.PROCESSED:
                story.ack(number, "processed", at_us=at_us)
            case G.FAILED_TERMINAL:
                story.ack(number, "failed_terminal", at_us=at_us)
            case G.REPLY:
                story.reply(number, at_us=at_us)
            case G.EXHAUSTED | G.EXPIRED | G.UNROUTABLE:
                story.dead(number, REASONS[signal], at_us=at_us)
            case G.SLA_TIMEOUT:
                at_us = begun_us + SLA_US + 60 * SECOND
            case _:
                pass


@pytest.mark.req("RTY-6", "OBS-6")
def test_every_order_of_signals_ends_as_the_table_says(spark: "SparkSession") -> None:
    """Whatever a sender hears, and in whatever order, the lake's state of the delivery is the sender's own."""
    from agentpost.pipeline.gold.lifecycle import with_state
    from agentpost.pipeline.params import Params

    story, expected = Story(), dict[str, str]()
    for number, signals in enumerate(heard_in_order()):
        tell(story, number, signals)
        expected[event_id(number)] = str(end_of(signals))
    lifecycle = with_state(tables(spark, story.rows, now_us=NOW_US)["lifecycle"], Params(now_us=NOW_US))
    found = {row["event_id"]: row["state"] for row in rows_of(lifecycle) if row["event_id"] in expected}
    assert len(expected) > 250
    assert set(expected.values()) == {str(state) for state in DeliveryState}
    assert found == expected


@pytest.mark.req("RTY-6")
def test_a_dead_letter_stays_one(spark: "SparkSession") -> None:
    """An accept that the sender had not heard of, said before or after, does not bring a dead letter back."""
    story = Story()
    for number, accepted_us in ((1, START_US + SECOND), (2, START_US + HOUR)):
        story.send(number)
        story.ack(number, "accepted", at_us=accepted_us)
        story.dead(number, "max_attempts", at_us=START_US + 60 * SECOND)
    found = rows_of(tables(spark, story.rows, now_us=NOW_US)["lifecycle"])
    assert [row["end_state"] for row in found] == ["DeadLetter", "DeadLetter"]
    assert {row["dead_reason"] for row in found} == {"max_attempts"}


@pytest.mark.req("OBS-6")
def test_a_gateway_that_was_not_asked_is_not_heard(spark: "SparkSession") -> None:
    """An outcome by somebody else, or in somebody else's name, leaves the delivery as it was."""
    from agentpost.pipeline.gold.lifecycle import with_state
    from agentpost.pipeline.params import Params

    story = Story()
    story.send(1)
    story.ack(1, "accepted", node="c", agent="agent-b")
    story.ack(1, "processed", node="c", agent="agent-b")
    story.send(2)
    story.ack(2, "processed", node="c", agent="agent-b", acked_by_node="b")
    lifecycle = with_state(tables(spark, story.rows, now_us=NOW_US)["lifecycle"], Params(now_us=NOW_US))
    assert [row["state"] for row in rows_of(lifecycle)] == ["RetryPending", "RetryPending"]


@pytest.mark.req("OBS-6", "ACK-4")
def test_only_the_sender_ends_a_delivery(spark: "SparkSession") -> None:
    """A status request in the sender's outbox tells that its SLA ran out; in another's it is nothing."""
    story = Story()
    for number, node in ((1, "a"), (2, "c")):
        story.send(number)
        story.ack(number, "accepted", at_us=START_US + SECOND)
        named = {"signal": "status_request", "dead_for_agent": "agent-b", "ref_event_id": event_id(number)}
        story.add(node, "signal", at_us=START_US + 60 * SECOND, **named)
        story.ack(number, "processed", at_us=START_US + 90 * SECOND)
    story.send(3)
    story.dead(3, "max_attempts", node="c")
    found = {
        row["event_id"]: row["end_state"] for row in rows_of(tables(spark, story.rows, now_us=NOW_US)["lifecycle"])
    }
    assert found == {event_id(1): "Incident", event_id(2): "Processed", event_id(3): None}


@pytest.mark.req("ACK-5")
def test_every_recipient_has_its_own_state(spark: "SparkSession") -> None:
    """Of two recipients of one event, one may be done while the other has not even accepted."""
    story = Story()
    story.add("a", "message", event_id=event_id(1), to_agents=["agent-b", "agent-c"], to_nodes=["b", "c"])
    story.ack(1, "accepted")
    story.ack(1, "processed", at_us=START_US + SECOND)
    found = {row["recipient"]: row for row in rows_of(tables(spark, story.rows)["lifecycle"])}
    assert {name: row["end_state"] for name, row in found.items()} == {"agent-b": "Processed", "agent-c": None}
    assert found["agent-b"]["accepted_by_node"] == "b"
    assert found["agent-c"]["to_node"] == "c"


def test_the_hot_aggregate_is_a_hash_aggregate(spark: "SparkSession", capsys: pytest.CaptureFixture[str]) -> None:
    """No column of the silver tables forces Spark to sort: that would cost two to three times the time."""
    from agentpost.pipeline.silver import deliveries, minutes, tasks
    from tests.pipeline.gold.building import bronze

    story = Story()
    story.send(1, kind="task_create", task_id="tsk_1")
    story.ack(1, "accepted")
    events = bronze(spark, story.rows)
    for table in (deliveries, tasks, minutes):
        table.partials(events).explain()
    plans = capsys.readouterr().out
    # Twice, before and after the rows meet; for deliveries once, since before that nothing of them falls together.
    assert plans.count("HashAggregate(") == 5
    assert "SortAggregate" not in plans
    assert "ObjectHashAggregate" not in plans
