"""`integrity` and `observed`: every broken rule of the fleet's history, and what else is worth a look (OBS-7).

docs/pipeline.md has the precise definition of each rule.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame

from agentpost.pipeline.codes import quoted
from agentpost.pipeline.gold.inputs import FleetInputs
from agentpost.pipeline.gold.names import located
from agentpost.pipeline.gold.tasks import late_at

__all__ = ["OBSERVED", "RULES", "integrity", "observed", "of_segments"]

_HOUR_US: Final = 3_600_000_000
# A sentence for each; {agent}, {event} and {node} are filled in. Those without one bring their own.
RULES: Final = {
    "gap": "",
    "fork": "",
    "chain_break": "",
    "bad_signature": "",
    "bad_segment": "",
    "bad_event": "",
    "foreign_source": "",
    "clock_off": "",
    "sealer_clock": "",
    "regression": "",
    "duplicate": "{event} stands twice in the outbox of {node}, with the same attempt",
    "orphan_ack": "{node} speaks of {event} for {agent}, which no outbox ever sent",
    "wrong_acker": "{node} was not asked, and answers {event} for {agent}",
    "accept_before_emit": "{node} accepted {event} for {agent} before it was sent",
    "unaccepted_outcome": "{node} has an outcome of {event} for {agent} that it had not accepted",
    "double_injection": "{event} was accepted twice for {agent}",
    "black_hole": "{event} for {agent}: its gateway was there, and nothing was ever said of it",
}
OBSERVED: Final = {
    "sla_breach": "{event} was accepted for {agent}, and had no outcome in time",
    "expired": "{event} expired before {agent} had it",
    "dead_letter": "{event} could not be delivered to {agent}",
    "eta_missed": "a task of {node} was not done by its ETA",
    "task_failed": "a task failed at {node}",
}
_COLUMNS: Final = ("rule", "node", "epoch", "seq", "event_id", "agent_id", "corr_id", "at_us", "text")
_POINTED: Final = "event_id, recipient as agent_id, cast(null as string) as corr_id"


def integrity(inputs: FleetInputs) -> DataFrame:
    """One row for each broken rule."""
    found = (
        of_segments(inputs)
        .unionByName(_told(_of_deliveries(inputs, RULES), RULES))
        .unionByName(_told(located(_orphans(inputs), inputs.outboxes), RULES))
        .unionByName(_told(located(_black_holes(inputs), inputs.outboxes), RULES))
    )
    return found.select(*_COLUMNS)


def observed(inputs: FleetInputs) -> DataFrame:
    """One row for each thing that no rule forbids and that is worth a look."""
    found = (
        _told(_of_deliveries(inputs, OBSERVED), OBSERVED)
        .unionByName(_told(located(_missed_slas(inputs), inputs.outboxes), OBSERVED))
        .unionByName(_told(_of_tasks(inputs), OBSERVED))
    )
    return found.select(*_COLUMNS)


def of_segments(inputs: FleetInputs) -> DataFrame:
    """What is wrong with the lake itself, as it is now: what a later segment fills or heals is not found any more."""
    return inputs.segments.sparkSession.sql(
        f"""
        with known as (
          select * from {{segments}}
        ), good as (
          select * from known where status in ('taken', 'superseded')
        ), pieces as (
          select node, epoch, piece.slice_first as first_seq, piece.slice_last as last_seq
          from good lateral view inline(arrays_zip(slice_first, slice_last)) piece as slice_first, slice_last
          union all
          select node, epoch, seq, seq from good lateral view explode(left_out) piece as seq
        ), covered as (
          select bad.manifest, sum(least(bad.last_seq, pieces.last_seq) - greatest(bad.first_seq, pieces.first_seq) + 1) as seqs
          from known as bad join pieces on bad.node = pieces.node and bad.epoch = pieces.epoch
            and bad.first_seq <= pieces.last_seq and pieces.first_seq <= bad.last_seq
          where bad.status in ('set_aside', 'retry') group by bad.manifest
        ), placed as (
          select *, max(last_seq) over (
            partition by node, epoch order by first_seq rows between unbounded preceding and 1 preceding) as through_seq
          from known where last_seq >= first_seq
        ), ends as (
          select node, epoch, last_seq, collect_set(end_chain) as chains from good group by node, epoch, last_seq
        ), found as (
          select found.rule, node, epoch, found.seq, found.event_id, found.corr_id, found.at_us, found.text
          from known left join covered using (manifest) lateral view inline(findings) found
            as rule, seq, event_id, corr_id, at_us, text
          where found.rule <> 'bad_segment' or last_seq < first_seq or coalesce(seqs, 0) < last_seq - first_seq + 1
          union all
          select 'bad_segment', node, epoch, first_seq, null, null, sealed_at_us, reason
          from known left join covered using (manifest)
          where status = 'retry' and since_us < {inputs.params.now_us - inputs.params.retry_grace_us}L
            and coalesce(seqs, 0) < last_seq - first_seq + 1
          union all
          select 'gap', node, epoch, through_seq + 1, null, null, sealed_at_us,
            concat('seq ', through_seq + 1, ' to ', first_seq - 1, ' are in no segment')
          from placed where first_seq > through_seq + 1
          union all
          select 'chain_break', good.node, good.epoch, first_seq, null, null, sealed_at_us, 'does not follow from the segment before'
          from good join ends on good.node = ends.node and good.epoch = ends.epoch and good.first_seq = ends.last_seq + 1
          where not array_contains(chains, start_chain)
          union all
          select 'fork', node, epoch, fork_seq, null, null, sealed_at_us,
            concat('other events in ', path, ' than in ', fork_path)
          from known where fork_seq is not null
          union all
          select 'regression', node, epoch, min(regressed_seq), null, null, min(sealed_at_us),
            concat('a later life of ', node, ' has other events at seqs that the one before has used')
          from known where regressed_seq is not null group by node, epoch
        )
        select rule, node, epoch, seq, event_id, cast(null as string) as agent_id, corr_id, min(at_us) as at_us,
          min(text) as text
        from found group by rule, node, epoch, seq, event_id, corr_id
        """,
        segments=inputs.segments,
    )


def _of_deliveries(inputs: FleetInputs, rules: Mapping[str, str]) -> DataFrame:
    named = ", ".join(quoted(rule) for rule in rules)
    return inputs.delivery_findings.where(f"rule in ({named})").selectExpr(
        "rule", "node", "epoch", "seq", "event_id", "agent_id", "cast(null as string) as corr_id", "at_us"
    )


def _orphans(inputs: FleetInputs) -> DataFrame:
    """What was spoken of for long enough, and never sent."""
    oldest = inputs.params.now_us - inputs.params.orphan_grace_us
    return inputs.open_deliveries.where(f"emitted_us is null and spoken_us < {oldest}L").selectExpr(
        "'orphan_ack' as rule", *_POINTED.split(", "), "spoken_us as at_us", "`by`", "place"
    )


def _black_holes(inputs: FleetInputs) -> DataFrame:
    """What a gateway that was there said nothing of: it wrote to its outbox after it, and an hour later again."""
    limit_us = inputs.params.black_hole_us
    return inputs.open_deliveries.sparkSession.sql(
        f"""
        with unanswered as (
          select * from {{open}}
          where emitted_us < {inputs.params.now_us - limit_us}L and accepted_us is null and to_node is not null
        ), activity as (
          select node, hour, max(last_us) as last_us from {{throughput}} group by node, hour
        ), seen as (
          select event_id, recipient, emitted_us, `by`, place, min(activity.hour) as first_hour, max(last_us) as last_us
          from unanswered join activity on node = to_node and activity.hour >= emitted_us div {_HOUR_US}
          group by event_id, recipient, emitted_us, `by`, place
        )
        select 'black_hole' as rule, {_POINTED}, emitted_us as at_us, `by`, place from seen
        where last_us >= greatest(first_hour * {_HOUR_US}L, emitted_us) + {limit_us}L
        """,
        open=inputs.open_deliveries,
        throughput=inputs.throughput,
    )


def _missed_slas(inputs: FleetInputs) -> DataFrame:
    """What had no outcome by its SLA, where the outbox of its gateway is in the lake through then."""
    return inputs.open_deliveries.sparkSession.sql(
        f"""
        select 'sla_breach' as rule, {_POINTED}, sla_due_us as at_us, `by`, place
        from {{open}} left join {{completeness}} on node = to_node
        where emitted_us is not null and sla_due_us < least({inputs.params.now_us}L, complete_us)
        """,
        open=inputs.open_deliveries,
        completeness=inputs.completeness,
    )


def _of_tasks(inputs: FleetInputs) -> DataFrame:
    """Tasks that failed or came late. One that is open is late where the outbox of its worker is in the lake."""
    return inputs.task_findings.sparkSession.sql(
        f"""
        select rule, tasks.node, tasks.epoch, seq, cast(null as string) as event_id, cast(null as string) as agent_id,
          corr_id, if(rule = 'eta_missed', eta_us, ended_us) as at_us
        from {{tasks}} as tasks left join {{completeness}} as heads on heads.node = worker_node
        where rule = 'task_failed' or ({late_at(inputs.params)}
          and (ended_us is not null or eta_us + {inputs.params.eta_grace_us}L < complete_us))
        """,
        tasks=inputs.task_findings,
        completeness=inputs.completeness,
    )


def _told(rows: DataFrame, sentences: Mapping[str, str]) -> DataFrame:
    """The rows with a sentence for people."""
    text = (
        "case rule " + " ".join(f"when {quoted(rule)} then {quoted(said)}" for rule, said in sentences.items()) + " end"
    )
    for name, column in (("event", "event_id"), ("agent", "agent_id"), ("node", "node")):
        text = f"replace({text}, '{{{name}}}', coalesce({column}, ''))"
    return rows.selectExpr("*", f"{text} as text")
