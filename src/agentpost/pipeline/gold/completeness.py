"""`completeness`: through when the outbox of every gateway is in the lake, and when it was last seen.

What is younger than that is not known: it may have been answered by words that are not sealed yet.
"""

from pyspark.sql import DataFrame

from agentpost.pipeline.gold.inputs import FleetInputs

__all__ = ["build"]


def build(inputs: FleetInputs) -> DataFrame:
    """One row for each node: its present epoch, the last seq and the time that are sealed, and its last heartbeat.

    Who seals its own outbox vouches for all it had said by then; of a mirror's copy only the events themselves tell a
    time. A segment that cannot be read for now ends what is known.
    """
    return inputs.segments.sparkSession.sql(
        """
        with readable as (
          select *, min(if(status = 'retry', first_seq, null)) over (partition by node, epoch) as unread_seq
          from {segments} where node <> ''
        ), sealed as (
          select node, epoch, max(last_seq) as sealed_seq,
            greatest(max(if(sealed_by = node, sealed_at_us, null)), max(newest_us)) as sealed_us
          from readable
          where status in ('taken', 'superseded') and (unread_seq is null or last_seq < unread_seq)
          group by node, epoch
        ), present as (
          select node, max(epoch) as epoch, max_by(sealed_seq, epoch) as sealed_seq, max(sealed_us) as sealed_us
          from sealed group by node
        ), members as (
          select key as node, get_json_object(value, '$.status') as status from {facts} where topic = 'node'
        ), seen as (
          select key as node, get_json_object(value, '$.status') as presence, at_us from {facts} where topic = 'presence'
        )
        select coalesce(present.node, members.node) as node, epoch, coalesce(sealed_seq, 0) as sealed_seq,
          least(sealed_us, {now}) as complete_us,
          coalesce(members.status, 'active') = 'active' as is_active,
          presence, seen.at_us as presence_us
        from present
        full join members on members.node = present.node
        left join seen on seen.node = coalesce(present.node, members.node)
        """.replace("{now}", f"{inputs.params.now_us}L"),
        segments=inputs.segments,
        facts=inputs.facts,
    )
