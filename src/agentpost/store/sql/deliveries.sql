-- name: add_deliveries
-- Deliveries that have all this in common. Each value is the rest of one, in one piece: 30 characters of event id, 20 of
-- seq, and the corrId.
INSERT INTO deliveries (event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason, corr_id, from_agent_id)
SELECT substr(value, 1, 30), ?1, ?2, ?3, CAST(substr(value, 31, 20) AS INTEGER), ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
  substr(value, 51), ?12
FROM carray(?13)

-- name: move_deliveries
-- Deliveries that are all alike from now on; each value is 30 characters of event id, and the agent.
UPDATE deliveries SET to_node_id = ?1, route_decision = ?2, seq = coalesce(?3, seq), state = ?4, attempts = ?5,
  due_at_ms = ?6, accepted_at_ms = ?7, closed_at_ms = ?8, answered_by_event_id = ?9, reason = ?10, late = ?11,
  late_at_ms = ?12, is_undelivered = ?13
WHERE (event_id, to_agent_id) IN (SELECT substr(value, 1, 30), substr(value, 31) FROM carray(?14))

-- name: move_expected
-- The same for deliveries that are in one state now; what is NULL stays as it is, but for timer and end. The plus keeps
-- SQLite from walking through all deliveries of that state.
UPDATE deliveries SET state = ?1, due_at_ms = ?2, accepted_at_ms = coalesce(?3, accepted_at_ms), closed_at_ms = ?4,
  answered_by_event_id = coalesce(?5, answered_by_event_id), reason = coalesce(?6, reason), is_undelivered = ?7
WHERE +state = ?8 AND (event_id, to_agent_id) IN (SELECT substr(value, 1, 30), substr(value, 31) FROM carray(?9))

-- name: deliveries_of_events
SELECT event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason, corr_id, from_agent_id,
  resent_as, late, late_at_ms
FROM deliveries WHERE event_id IN carray(?)

-- name: due_deliveries
SELECT event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason, corr_id, from_agent_id,
  resent_as, late, late_at_ms
FROM deliveries WHERE due_at_ms <= ? ORDER BY due_at_ms, event_id, to_agent_id LIMIT ?

-- name: unaccepted_by
SELECT event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason, corr_id, from_agent_id,
  resent_as, late, late_at_ms
FROM deliveries INDEXED BY deliveries_unaccepted
WHERE state IN ('Emitted', 'RetryPending') AND seq > ? AND seq <= ? AND to_node_id = ?
ORDER BY seq, event_id, to_agent_id LIMIT ?

-- name: unaccepted_counts
-- The index alone has all of it.
SELECT to_node_id, count(*), min(seq) FROM (
  SELECT to_node_id, seq FROM deliveries INDEXED BY deliveries_unaccepted
  WHERE state IN ('Emitted', 'RetryPending') ORDER BY seq LIMIT ?
) GROUP BY to_node_id ORDER BY to_node_id

-- name: unaccepted_since
SELECT min(emitted_at_ms) FROM deliveries INDEXED BY deliveries_unaccepted
WHERE state IN ('Emitted', 'RetryPending') AND seq = ?

-- name: next_due_delivery
SELECT due_at_ms FROM deliveries WHERE due_at_ms IS NOT NULL ORDER BY due_at_ms LIMIT 1

-- name: oldest_unaccepted_seq
-- Its own index: SQLite would rather look through the index of all states.
SELECT min(seq) FROM deliveries INDEXED BY deliveries_unaccepted WHERE state IN ('Emitted', 'RetryPending')

-- name: count_deliveries
SELECT state, count(*) FROM deliveries GROUP BY state

-- name: count_deliveries_in_state
SELECT count(*) FROM deliveries WHERE state = ?

-- name: deliveries_in_state
SELECT event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason, corr_id, from_agent_id,
  resent_as, late, late_at_ms
FROM deliveries WHERE state = ? AND (event_id, to_agent_id) > (?, ?) ORDER BY event_id, to_agent_id LIMIT ?

-- name: undelivered
SELECT event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason, corr_id, from_agent_id,
  resent_as, late, late_at_ms
FROM deliveries WHERE is_undelivered = 1 AND (event_id, to_agent_id) > (?, ?) ORDER BY event_id, to_agent_id LIMIT ?

-- name: deliveries_by_corr
SELECT event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason, corr_id, from_agent_id,
  resent_as, late, late_at_ms
FROM deliveries WHERE corr_id = ? ORDER BY event_id, to_agent_id

-- name: reschedule
UPDATE deliveries SET due_at_ms = ?
WHERE event_id = ? AND to_agent_id = ? AND state IN ('Emitted', 'RetryPending', 'Accepted')

-- name: note_resent
UPDATE deliveries SET resent_as = ?
WHERE event_id = ? AND to_agent_id = ? AND is_undelivered IS NOT NULL AND resent_as IS NULL

-- name: purge_delivery
DELETE FROM deliveries
WHERE event_id = ? AND to_agent_id = ? AND state NOT IN ('Emitted', 'RetryPending', 'Accepted')

-- name: prune_ended_deliveries
DELETE FROM deliveries WHERE (event_id, to_agent_id) IN (
  SELECT event_id, to_agent_id FROM deliveries
  WHERE closed_at_ms < ? AND closed_at_ms IS NOT NULL AND is_undelivered IS NULL
  ORDER BY closed_at_ms, event_id, to_agent_id LIMIT ?
)

-- name: note_failed_attempt
-- Only of a delivery that went to the gateway that tells of it, and has no outcome; never one before the one that is known.
INSERT INTO failed_attempts (
  event_id, to_agent_id, attempt, most_attempts, first_at_ms, at_ms, next_at_ms, holds_back, body
)
SELECT event_id, to_agent_id, ?3, ?4, ?5, ?5, ?6, ?7, ?8 FROM deliveries
WHERE event_id = ?1 AND to_agent_id = ?2 AND to_node_id = ?9
  AND (?6 IS NULL OR state NOT IN ('Processed', 'Replied'))
ON CONFLICT (event_id, to_agent_id) DO UPDATE SET attempt = max(attempt, excluded.attempt),
  most_attempts = max(most_attempts, excluded.most_attempts), at_ms = excluded.at_ms, next_at_ms = excluded.next_at_ms,
  holds_back = excluded.holds_back, body = excluded.body
WHERE next_at_ms IS NOT NULL AND (excluded.next_at_ms IS NULL OR excluded.attempt >= attempt)

-- name: failed_attempts_of
SELECT event_id, to_agent_id, attempt, most_attempts, first_at_ms, at_ms, next_at_ms, holds_back, body
FROM failed_attempts WHERE event_id = ?

-- name: failing_before
-- What one agent said to another and that one fails with, while later mail of the same sender waits behind it.
SELECT failed.event_id FROM failed_attempts AS failed INDEXED BY failed_attempts_next
JOIN deliveries ON deliveries.event_id = failed.event_id AND deliveries.to_agent_id = failed.to_agent_id
WHERE failed.to_agent_id = ?1 AND failed.next_at_ms > ?2 AND failed.holds_back = 1
  AND deliveries.from_agent_id = ?3 AND deliveries.state = 'Accepted' AND deliveries.seq < ?4
ORDER BY deliveries.seq LIMIT 1

-- name: prune_failed_attempts
-- Those of the deliveries that prune_ended_deliveries is about to remove.
DELETE FROM failed_attempts WHERE (event_id, to_agent_id) IN (
  SELECT event_id, to_agent_id FROM deliveries
  WHERE closed_at_ms < ? AND closed_at_ms IS NOT NULL AND is_undelivered IS NULL
  ORDER BY closed_at_ms, event_id, to_agent_id LIMIT ?
)

-- name: forget_failed_attempt
DELETE FROM failed_attempts WHERE event_id = ? AND to_agent_id = ?
  AND NOT EXISTS (
    SELECT 1 FROM deliveries
    WHERE deliveries.event_id = failed_attempts.event_id AND deliveries.to_agent_id = failed_attempts.to_agent_id
  )
