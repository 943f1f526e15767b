"""`delivery_findings`: the rules that one delivery shows to be broken, whatever time it is (OBS-7).

docs/pipeline.md has the precise definition of each. Nearly all deliveries break none, so they are sorted out first, by
one expression over numbers; only what is left is looked at rule by rule.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import DEAD_REASONS, KINDS, STATES, is_any, outbox_of_place, seq_of_place
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import located
from agentpost.pipeline.lifecycle_sql import end_state, is_accepted, is_ended_by_sender, was_asked
from agentpost.pipeline.params import Params
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind

__all__ = ["build"]

_NOTED: Final = (KINDS[Kind.TASK_ACCEPT], KINDS[Kind.TASK_UPDATE])
_REPORTS: Final = (KINDS[Kind.TASK_COMPLETE], KINDS[Kind.TASK_FAILED])
_ANSWER_PLACES: Final = ("accept_place", "last_accept_place", "outcome_place", "last_outcome_place", "reply_place")
_ANSWERED_BY: Final = ("accepted_by_min", "accepted_by_max", "outcome_by_min", "outcome_by_max")


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each finding: hour, rule, node, epoch, seq, event_id, agent_id, at_us."""
    evidence = _evidence(inputs.params)
    pointed = [
        sf.when(holds, sf.struct(sf.lit(rule).alias("rule"), by.alias("by"), place.alias("place")))
        for rule, holds, by, place in evidence
    ]
    suspects = inputs.silver["deliveries"].where(sf.col("sends").isNotNull() & _is_suspect(inputs.params))
    # They meet before they are looked at. So what all rows go through is a short piece of code, not one with all rules.
    found = suspects.repartition("event_id").select(
        "hour",
        "event_id",
        sf.col("recipient").alias("agent_id"),
        sf.coalesce("dead_us", "accepted_us", "outcome_us", "replied_us", "emitted_us").alias("at_us"),
        sf.inline(sf.filter(sf.array(*pointed), lambda each: each.isNotNull())),
    )
    # A duplicate is one of the event, not of each of its recipients.
    agent = sf.when(sf.col("rule") != "duplicate", sf.col("agent_id"))
    return (
        located(found.withColumn("agent_id", agent), inputs.segments)
        .groupBy("hour", "rule", "node", "epoch", "event_id", "agent_id")
        .agg(sf.min("seq").alias("seq"), sf.min("at_us").alias("at_us"))
        .select("hour", "rule", "node", "epoch", "seq", "event_id", "agent_id", "at_us")
    )


def _is_suspect(params: Params) -> Column:
    """Whether any of the rules below may be broken: true for all that break one, and for few others."""
    signs = [
        sf.col("dead_us").isNotNull(),
        sf.col("forged") > 0,
        *[~was_asked(sf.col(by)) for by in _ANSWERED_BY],
        _is_early(params),
        _is_duplicate(),
        _is_double(),
        _is_unaccepted(sf.least("outcome_place", "reply_place")),
        end_state(params) == STATES[DeliveryState.INCIDENT],
    ]
    return sf.coalesce(reduce(lambda one, other: one | other, signs), sf.lit(False))


def _evidence(params: Params) -> list[tuple[str, Column, Column, Column]]:
    """Rule, when it is broken, and where that shows: the hash of a node, and the place in one of its outboxes."""
    source, send = sf.col("source"), sf.col("send_place")
    by_end = sf.col("dead_us").isNotNull() & is_ended_by_sender()
    is_expired = sf.col("dead_reason") == DEAD_REASONS["expired"]
    accepted_by = sf.col("accepted_by_max")
    first_outcome = sf.least("outcome_place", "reply_place")
    return [
        ("duplicate", _is_duplicate(), source, sf.col("last_send_place")),
        ("accept_before_emit", _is_early(params) & was_asked(accepted_by), accepted_by, sf.col("accept_place")),
        ("unaccepted_outcome", _is_unaccepted(first_outcome), sf.col("outcome_by_max"), first_outcome),
        ("double_injection", _is_double(), source, send),
        ("wrong_acker", sf.col("forged") > 0, sf.col("forged_by"), sf.col("forged_place")),
        # Who it was is known, and where such words stand: the pairs that do not fit find no outbox.
        *[
            ("wrong_acker", ~was_asked(sf.col(by)) & sf.col(place).isNotNull(), sf.col(by), sf.col(place))
            for by in _ANSWERED_BY
            for place in _ANSWER_PLACES
        ],
        ("expired", by_end & is_expired, source, sf.col("dead_place")),
        ("dead_letter", by_end & ~is_expired, source, sf.col("dead_place")),
        ("sla_breach", end_state(params) == STATES[DeliveryState.INCIDENT], source, send),
    ]


def _is_early(params: Params) -> Column:
    return sf.col("accepted_us") < sf.col("emitted_us") - sf.lit(params.clock_skew_us)


def _is_duplicate() -> Column:
    """More sends than attempts, in one outbox: another epoch may hold the same events again, after a restored disk."""
    is_one_outbox = outbox_of_place(sf.col("send_place")) == outbox_of_place(sf.col("last_send_place"))
    return is_one_outbox & (sf.col("sends") > sf.bit_count("attempt_bits"))


def _is_double() -> Column:
    first, last = sf.col("accept_place"), sf.col("last_accept_place")
    is_one_gateway = sf.col("accepted_by_min") == sf.col("accepted_by_max")
    # The same seq in two epochs of one node is one event (a restored disk).
    is_copy = is_one_gateway & (seq_of_place(first) == seq_of_place(last)) & (first != last)
    both_asked = was_asked(sf.col("accepted_by_min")) & was_asked(sf.col("accepted_by_max"))
    return (sf.col("accepts") > 1) & both_asked & ~is_copy


def _is_unaccepted(first_outcome: Column) -> Column:
    """An outcome of a gateway that was asked, without its accept before. A restored disk may have put them apart.

    What a gateway itself closes as it takes it has one ACK, the outcome: acceptances and updates of tasks, and moves
    that a task does not allow.
    """
    accepted = sf.col("accept_place")
    has_accepted = sf.col("accepts").isNotNull() & is_accepted()
    is_same = outbox_of_place(accepted) == outbox_of_place(first_outcome)
    came_before = sf.when(is_same, accepted < first_outcome).otherwise(sf.lit(True))
    is_refused = is_any(sf.col("kind"), _REPORTS) & (sf.coalesce("failures", sf.lit(0)) > 0)
    is_closed_at_once = is_any(sf.col("kind"), _NOTED) | is_refused
    return (
        first_outcome.isNotNull()
        & ~is_closed_at_once
        & was_asked(sf.col("outcome_by_max"))
        & ~sf.coalesce(has_accepted & came_before, sf.lit(False))
    )
