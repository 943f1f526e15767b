-- name: add_delivery
INSERT INTO deliveries (event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: replace_delivery
INSERT OR REPLACE INTO deliveries (event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: deliveries_of_events
SELECT event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason
FROM deliveries WHERE event_id IN carray(?)

-- name: due_deliveries
SELECT event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason
FROM deliveries WHERE due_at_ms <= ? ORDER BY due_at_ms, event_id, to_agent_id LIMIT ?

-- name: next_due_delivery
SELECT due_at_ms FROM deliveries WHERE due_at_ms IS NOT NULL ORDER BY due_at_ms LIMIT 1

-- name: oldest_unaccepted_seq
SELECT min(seq) FROM deliveries WHERE state IN ('Emitted', 'RetryPending')

-- name: count_deliveries
SELECT state, count(*) FROM deliveries GROUP BY state
