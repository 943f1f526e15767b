-- The lifecycle of every (event, recipient), as DuckDB would compute it: what Spark's time is held against.
-- {segments} is the list of the segments' files.
with events as (
  select * exclude (body, chain) from read_parquet({segments}, hive_partitioning = true)
),
sends as (
  select
    event_hour as hour, event_id, unnest(to_agents) as recipient, hash(unnest(to_nodes)) as to_node, hash(node) as by_node,
    kind, attempt, created_us, expires_us, deadline_us, seq
  from events where kind not in ('ack', 'signal', 'dead_letter')
),
answers as (
  select
    ref_hour as hour, ref_event_id as event_id,
    case kind when 'ack' then acked_by_agent when 'reply' then source_agent else dead_for_agent end as recipient,
    hash(node) as by_node, coalesce(acked_us, ended_us, created_us) as at_us, seq, eta_us,
    kind = 'ack' and ack_type = 'accepted' as is_accepted, kind = 'ack' and ack_type <> 'accepted' as is_outcome,
    kind = 'reply' as is_reply, kind = 'dead_letter' as is_dead
  from events where kind in ('ack', 'reply', 'dead_letter') and ref_event_id is not null
),
said as (
  select
    hour, event_id, recipient, 1 as sends, attempt, kind, by_node as source, to_node, created_us as sent_us, expires_us,
    deadline_us, seq as send_seq, null as accepted_us, null as accepted_by, null as accept_seq, null as eta_us,
    null as outcome_us, null as outcome_seq, null as replied_us, null as dead_us
  from sends
  union all
  select
    hour, event_id, recipient, null, null, null, null, null, null, null, null, null,
    case when is_accepted then at_us end, case when is_accepted then by_node end, case when is_accepted then seq end,
    eta_us, case when is_outcome then at_us end, case when is_outcome then seq end,
    case when is_reply then at_us end, case when is_dead then at_us end
  from answers
)
select
  hour, event_id, recipient, sum(sends) as sends, max(attempt) as attempts, max(kind) as kind, max(source) as source,
  min(to_node) as to_min, max(to_node) as to_max, min(sent_us) as emitted_us, max(sent_us) as last_sent_us,
  max(expires_us) as expires_us, max(deadline_us) as deadline_us, min(send_seq) as send_seq,
  count(accepted_us) as accepts, min(accepted_us) as accepted_us, min(accepted_by) as accepted_by_min,
  max(accepted_by) as accepted_by_max, min(accept_seq) as accept_seq, max(eta_us) as eta_us,
  count(outcome_us) as outcomes, min(outcome_us) as outcome_us, min(outcome_seq) as outcome_seq,
  count(replied_us) as replies, min(replied_us) as replied_us, min(dead_us) as dead_us
from said group by hour, event_id, recipient
