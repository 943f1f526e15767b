"""`delivery_findings`: the rules that one delivery shows to be broken, whatever time it is (OBS-7).

docs/pipeline.md has the precise definition of each. Nearly all deliveries break none, so they are sorted out first, by
one expression over numbers; only what is left is looked at rule by rule.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame

from agentpost.pipeline.codes import DEAD_REASONS, KINDS, STATES, quoted
from agentpost.pipeline.gold.deliveries import KEY
from agentpost.pipeline.gold.inputs import HourInputs
from agentpost.pipeline.gold.names import located, with_names
from agentpost.pipeline.params import Params
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind

__all__ = ["build"]

_NOTED: Final = f"{KINDS[Kind.TASK_ACCEPT]}, {KINDS[Kind.TASK_UPDATE]}"
_REPORTS: Final = f"{KINDS[Kind.TASK_COMPLETE]}, {KINDS[Kind.TASK_FAILED]}"
_AT: Final = "coalesce(dead_us, accepted_us, outcome_us, replied_us, emitted_us)"
_SAID: Final = "accepts is not null or outcomes is not null or replies is not null"


def build(inputs: HourInputs) -> DataFrame:
    """One row for each finding: hour, rule, node, epoch, seq, event_id, agent_id, at_us, reason, capability_id."""
    evidence = _evidence(inputs.params)
    suspects = inputs.deliveries.where(
        "sends is not null and (" + " or ".join(f"coalesce({holds}, false)" for holds, _, _ in evidence.values()) + ")"
    )
    pointed = ", ".join(
        f"if({holds}, struct({quoted(rule)} as rule, {by} as `by`, {place} as place), null)"
        for rule, (holds, by, place) in evidence.items()
    )
    found = suspects.selectExpr(
        *KEY,
        f"{_AT} as at_us",
        "dead_reason",
        "capability",
        f"inline(filter(array({pointed}), each -> each is not null))",
    ).unionByName(_strangers(inputs))
    told = located(found, inputs.outboxes).selectExpr(
        "hour",
        "rule",
        "node",
        "epoch",
        "event_id",
        # A duplicate is one of the event, not of each of its recipients.
        "if(rule = 'duplicate', null, recipient) as agent_id",
        "seq",
        "at_us",
        f"rule = 'dead_letter' and dead_reason = {DEAD_REASONS['no_route']} as is_miss",
        "capability",
    )
    grouped = told.groupBy("hour", "rule", "node", "epoch", "event_id", "agent_id").agg(
        {"seq": "min", "at_us": "min", "is_miss": "max", "capability": "max"}
    )
    rows = grouped.selectExpr(
        "hour",
        "rule",
        "node",
        "epoch",
        "`min(seq)` as seq",
        "event_id",
        "agent_id",
        "`min(at_us)` as at_us",
        "coalesce(`max(is_miss)`, false) as is_routing_miss",
        "`max(capability)` as capability",
    )
    return with_names(rows, inputs.names, capability="capability_id")


def _strangers(inputs: HourInputs) -> DataFrame:
    """What gateways said that were not asked: one row for each of them."""
    answered = inputs.deliveries.where("has_strangers").selectExpr(*KEY, "emitted_us", "capability")
    words = inputs.legs.where(f"sends is null and ({_SAID})").selectExpr(
        *KEY,
        "gateway as `by`",
        "least(accept_place, outcome_place, reply_place) as place",
        "least(accepted_us, outcome_us, replied_us) as at_us",
    )
    return words.join(answered, [*KEY], how="inner").selectExpr(
        *KEY, "at_us", "cast(null as int) as dead_reason", "capability", "'wrong_acker' as rule", "`by`", "place"
    )


def _evidence(params: Params) -> Mapping[str, tuple[str, str, str]]:
    """For each rule: when it is broken, and where that shows: the hash of a node, and a place in one of its outboxes."""
    is_expired = f"dead_reason = {DEAD_REASONS['expired']}"
    # What a gateway itself closes as it takes it has one ACK, the outcome: acceptances and updates of tasks, and moves
    # that a task does not allow.
    is_closed_at_once = f"kind in ({_NOTED}) or (kind in ({_REPORTS}) and coalesce(failures, 0) > 0)"
    return {
        "duplicate": ("sends > bit_count(attempt_bits)", "source", "last_send_place"),
        "accept_before_emit": (
            f"accepted_us < emitted_us - {params.clock_skew_us}L",
            "accepted_by",
            "accept_place",
        ),
        "unaccepted_outcome": (
            f"unaccepted_place is not null and not ({is_closed_at_once})",
            "unaccepted_by",
            "unaccepted_place",
        ),
        "double_injection": ("accepts > 1", "source", "send_place"),
        "wrong_acker": ("forged > 0", "forged_by", "forged_place"),
        "expired": (f"dead_us is not null and {is_expired}", "source", "dead_place"),
        "dead_letter": (f"dead_us is not null and not coalesce({is_expired}, false)", "source", "dead_place"),
        "sla_breach": (f"end_code = {STATES[DeliveryState.INCIDENT]}", "source", "send_place"),
    }
