"""The state of a delivery, from what the outboxes say, is what the sender's own table of states leads to."""

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from agentpost.protocol.errors import Refusal
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.protocol.machine import walk
from tests.pipeline.gold.building import HOUR, SECOND, START_US, Story, event_id, findings_of, rows_of, tables

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
    made = tables(spark, story.rows, now_us=NOW_US)
    lifecycle = with_state(made["lifecycle"], made["completeness"], Params(now_us=NOW_US))
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
    made = tables(spark, story.rows, now_us=NOW_US)
    lifecycle = with_state(made["lifecycle"], made["completeness"], Params(now_us=NOW_US))
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


@pytest.mark.req("ROUTE-2")
def test_of_three_gateways_that_were_asked_each_is_heard(spark: "SparkSession") -> None:
    """A delivery that moved twice ends by the word of the gateway in the middle."""
    story = Story()
    for attempt, to in enumerate("bcd", start=1):
        story.send(1, to=to, attempt=attempt)
        story.rows[-1]["to_agents"] = ["agent-b"]
    story.ack(1, "accepted", node="c", agent="agent-b", at_us=START_US + SECOND)
    story.ack(1, "processed", node="c", agent="agent-b", at_us=START_US + 2 * SECOND)
    (row,) = rows_of(tables(spark, story.rows, now_us=NOW_US)["lifecycle"])
    assert (row["end_state"], row["accepted_by_node"], row["attempts"]) == ("Processed", "c", 3)
    assert row["accepted_us"] == START_US + SECOND


@pytest.mark.req("OBS-6")
def test_a_gateway_that_was_not_asked_lends_no_time(spark: "SparkSession") -> None:
    """The word of a stranger is a finding; acceptance, latency and state are those of the gateway that was asked."""
    story = Story()
    story.send(1)
    early = story.ack(1, "accepted", node="c", agent="agent-b", at_us=START_US + SECOND)
    story.ack(1, "accepted", at_us=START_US + 9 * SECOND)
    made = tables(spark, story.rows, now_us=NOW_US)
    (row,) = rows_of(made["lifecycle"])
    assert (row["accepted_us"], row["accepted_by_node"]) == (START_US + 9 * SECOND, "b")
    (latency,) = rows_of(made["latency"])
    assert latency["delivery_p50_ms"] == 9000
    assert findings_of(made["integrity"]) == {("wrong_acker", "c", early["seq"], event_id(1), "agent-b")}


@pytest.mark.req("OBS-6", "ROUTE-1")
def test_where_no_gateway_is_named_the_first_answer_counts(spark: "SparkSession") -> None:
    """A send that leaves open who engages the agent is answered by whichever gateway does."""
    story = Story()
    story.send(1, to="b")
    story.rows[-1]["to_nodes"] = [""]
    story.ack(1, "accepted", node="c", agent="agent-b", at_us=START_US + SECOND)
    story.ack(1, "processed", node="c", agent="agent-b", at_us=START_US + 2 * SECOND)
    made = tables(spark, story.rows, now_us=NOW_US)
    (row,) = rows_of(made["lifecycle"])
    assert (row["end_state"], row["accepted_by_node"]) == ("Processed", "c")
    assert findings_of(made["integrity"]) == set()


@pytest.mark.req("OBS-6", "RTY-2")
def test_only_the_sender_s_own_dead_letter_counts(spark: "SparkSession") -> None:
    """Strangers that give up mail of others change neither state nor rates; beside theirs the sender's own counts."""
    story = Story()
    for number in (1, 2):
        story.send(number)
        story.dead(number, "max_attempts", node="b", at_us=START_US + SECOND)
        story.dead(number, "max_attempts", node="c", at_us=START_US + 2 * SECOND)
    story.dead(2, "expired", at_us=START_US + HOUR)
    made = tables(spark, story.rows, now_us=NOW_US)
    found = {
        row["event_id"]: (row["end_state"], row["dead_us"], row["dead_reason"]) for row in rows_of(made["lifecycle"])
    }
    assert found == {event_id(1): (None, None, None), event_id(2): ("DeadLetter", START_US + HOUR, "expired")}
    (rates,) = rows_of(made["rates"])
    assert (rates["dead_letters"], rates["expired"]) == (1, 1)


@pytest.mark.req("OBS-6")
def test_what_is_not_sealed_yet_is_unknown_and_not_late(spark: "SparkSession") -> None:
    """Mail whose recipient's outbox ends before the answer was due is neither late nor answered."""
    from agentpost.pipeline.gold.lifecycle import with_state
    from agentpost.pipeline.params import Params

    story = Story()
    story.send(1)
    story.send(2, to="c")
    story.add("b", "message", event_id=event_id(3), to_agents=["agent-a"], to_nodes=["a"], at_us=START_US + SECOND)
    story.add("c", "message", event_id=event_id(4), to_agents=["agent-a"], to_nodes=["a"], at_us=START_US + HOUR)
    made = tables(spark, story.rows, now_us=NOW_US, sealed_us=0)
    lifecycle = with_state(made["lifecycle"], made["completeness"], Params(now_us=NOW_US))
    states = {row["event_id"]: row["state"] for row in rows_of(lifecycle)}
    assert (states[event_id(1)], states[event_id(2)]) == ("Unknown", "RetryPending")
    delivery = {row["window"]: row for row in rows_of(made["slo"]) if row["objective"] == "delivery"}
    # Of the two that nobody answered only the one counts whose gateway had the time to.
    assert (delivery["6h"]["good"], delivery["6h"]["total"]) == (0, 1)


@pytest.mark.req("OBS-2")
def test_clocks_that_disagree_are_counted_apart(spark: "SparkSession") -> None:
    """An accept before its send is no quick delivery, and no backlog of less than nothing."""
    story = Story()
    story.send(1, at_us=START_US + 30 * SECOND)
    story.ack(1, "accepted", at_us=START_US)
    story.send(2, at_us=START_US + 30 * SECOND)
    story.ack(2, "accepted", at_us=START_US + 32 * SECOND)
    made = tables(spark, story.rows, now_us=NOW_US)
    (latency,) = rows_of(made["latency"])
    assert (latency["accepted"], latency["skewed"], latency["delivery_p50_ms"]) == (2, 1, 2000)
    (minute,) = [row for row in rows_of(made["delivery_minutes"]) if row["begun"]]
    assert (minute["eligible"], minute["in_time"], minute["skewed"]) == (1, 1, 1)
    assert min(row["waiting"] for row in rows_of(made["backlog"])) == 0


@pytest.mark.req("OBS-1", "RTY-1")
def test_a_resend_to_one_of_two_recipients_counts_for_that_one(spark: "SparkSession") -> None:
    """Attempts and rates are those of each recipient."""
    story = Story()
    story.add("a", "message", event_id=event_id(1), to_agents=["agent-b", "agent-c"], to_nodes=["b", "c"])
    story.ack(1, "accepted", at_us=START_US + SECOND)
    story.add("a", "message", event_id=event_id(1), to_agents=["agent-c"], to_nodes=["c"], attempt=2)
    made = tables(spark, story.rows, now_us=NOW_US)
    assert {row["recipient"]: row["attempts"] for row in rows_of(made["lifecycle"])} == {"agent-b": 1, "agent-c": 2}
    (rates,) = rows_of(made["rates"])
    assert (rates["deliveries"], rates["resends"], rates["duplicates"]) == (2, 1, 0)


def test_the_hot_aggregate_is_a_hash_aggregate(spark: "SparkSession", capsys: pytest.CaptureFixture[str]) -> None:
    """No column of the silver tables forces Spark to sort: that would cost two to three times the time."""
    from agentpost.pipeline.gold.deliveries import fold
    from agentpost.pipeline.params import Params
    from agentpost.pipeline.silver import legs, tasks, throughput
    from tests.pipeline.gold.building import bronze

    story = Story()
    story.send(1, kind="task_create", task_id="tsk_1")
    story.ack(1, "accepted")
    events = bronze(spark, story.rows)
    made = legs.partials(legs.narrow(events))
    for table in (made, fold(made, Params(now_us=0)), tasks.partials(events), throughput.partials(events)):
        table.explain()
    plans = capsys.readouterr().out
    assert plans.count("HashAggregate(") >= 8
    assert "SortAggregate" not in plans
    assert "ObjectHashAggregate" not in plans
