"""`ack_lag` and `watermarks`: how far every gateway has read every outbox, and what may be pruned (OBS-1, PIPE-7)."""

from pyspark.sql import DataFrame

from agentpost.pipeline.gold.inputs import FleetInputs

__all__ = ["ack_lag", "watermarks"]

_CURSOR = "consumer string, source string, epoch string, lastSeq bigint, leaseExpiresUs bigint, status string"


def ack_lag(inputs: FleetInputs) -> DataFrame:
    """One row for each consumer and source: what of its present outbox it has not read.

    A cursor in an earlier epoch has read nothing of the present one. What is no cursor is left out.
    """
    return inputs.facts.sparkSession.sql(
        f"""
        with told as (
          select from_json(value, '{_CURSOR}') as at, at_us from {{facts}} where topic = 'cursor'
        ), cursors as (
          select at.consumer as consumer, at.source as source, at.epoch as epoch, at_us,
            greatest(coalesce(at.lastSeq, 0), 0) as last_seq,
            at.status = 'active' and coalesce(at.leaseExpiresUs, 0) > {inputs.params.now_us}L as is_active
          from told where at.consumer is not null and at.source is not null
        )
        select consumer, source, heads.epoch as epoch,
          if(cursors.epoch = heads.epoch, cursors.last_seq, 0) as last_seq, sealed_seq as latest_seq,
          greatest(sealed_seq - if(cursors.epoch = heads.epoch, cursors.last_seq, 0), 0) as lag,
          coalesce(cursors.is_active, false) as is_active, at_us
        from cursors join {{heads}} as heads on heads.node = source and heads.epoch is not null
        """,
        facts=inputs.facts,
        heads=inputs.completeness,
    )


def watermarks(inputs: FleetInputs) -> DataFrame:
    """One row for each node: up to which seq its outbox may be pruned.

    That is below the smallest cursor of the active subscribers, less the retention window, and never beyond what the
    lake holds. Without an active subscriber nothing may be pruned: no gateway has said that it reads it.
    """
    return inputs.facts.sparkSession.sql(
        f"""
        with readers as (
          select source, min(last_seq) as smallest_cursor, count(*) as subscribers
          from {{ack_lag}} where is_active and consumer <> source group by source
        )
        select node, epoch, sealed_seq, smallest_cursor, coalesce(subscribers, 0) as subscribers,
          greatest(coalesce(least(smallest_cursor, sealed_seq) - {inputs.params.retention_events}, 0), 0)
            as prune_through_seq
        from {{heads}} left join readers on source = node where epoch is not null
        """,
        ack_lag=ack_lag(inputs),
        heads=inputs.completeness,
    )
