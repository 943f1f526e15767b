"""`reviews`: what a capability's owner should look into, one item for each cause (CAP-6)."""

from typing import Final

from pyspark.sql import DataFrame

from agentpost.pipeline.gold.inputs import FleetInputs
from agentpost.pipeline.gold.tasks import late_at

__all__ = ["build"]

_SAMPLES: Final = 5
# The same key in every run: a gateway that has the item knows it.
_KEY_LETTERS: Final = 26


def build(inputs: FleetInputs) -> DataFrame:
    """One row for each cause: trigger, capability, version of the delegating skill and class of the failure.

    A routing miss counts for capabilities that are published, and from the third on.
    """
    return inputs.facts.sparkSession.sql(
        f"""
        with known as (
          select key as capability_id, get_json_object(value, '$.status') in ('active', 'published') as is_published,
            get_json_object(value, '$.executorSkillVersion') as executor_skill_version
          from {{facts}} where topic = 'capability'
        ), tasks as (
          select * from {{tasks}} where capability_id is not null
        ), cases as (
          -- Being late is one cause, whatever the task came to.
          select 'eta_missed' as trigger, capability_id, delegation_skill_version, cast(null as string) as failure_class,
            corr_id, eta_us as at_us
          from tasks where rule = 'eta_missed' and {late_at(inputs.params)}
          union all
          select if(contains(coalesce(failure_class, ''), 'contract'), 'contract_mismatch', 'task_failed'),
            capability_id, delegation_skill_version, failure_class, corr_id, ended_us
          from tasks where rule = 'task_failed' and outcome = 'failed'
          union all
          -- ENV-3: an event that starts a conversation gives it its own ULID.
          select 'routing_miss', capability_id, null, 'no_route', concat('corr_', substr(event_id, 5, {_KEY_LETTERS})), at_us
          from (
            select event_id, capability_id, min(at_us) as at_us from {{findings}}
            where is_routing_miss group by event_id, capability_id
          ) join known using (capability_id) where is_published
        ), causes as (
          select trigger, capability_id, delegation_skill_version, failure_class, count(*) as count,
            slice(sort_array(collect_set(corr_id)), 1, {_SAMPLES}) as sample_corr_ids,
            min(at_us) as first_us, max(at_us) as last_us
          from cases group by trigger, capability_id, delegation_skill_version, failure_class
        )
        select
          substr(sha2(concat(trigger, '|', capability_id, '|', coalesce(delegation_skill_version, ''), '|',
            coalesce(failure_class, '')), 256), 1, {_KEY_LETTERS}) as review_key,
          trigger, capability_id, delegation_skill_version, failure_class, executor_skill_version,
          count, sample_corr_ids, first_us, last_us
        from causes left join known using (capability_id)
        where trigger <> 'routing_miss' or count >= {inputs.params.routing_misses}
        """,
        facts=inputs.facts,
        tasks=inputs.task_findings,
        findings=inputs.delivery_findings,
    )
