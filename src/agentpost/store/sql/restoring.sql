-- name: restore_ledger_entry
INSERT INTO ledger (event_id, to_agent_id, inbox_seq, state, attempts, accepted_at_ms, engaged_at_ms, settled_at_ms,
  outcome)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: restore_stream_floor
INSERT INTO stream_floors (consumer_node_id, seq, chain) VALUES (?, ?, ?)

-- name: begin_epoch
UPDATE gateway SET epoch = ?

-- name: clear_streams
DELETE FROM streams

-- name: clear_stream_floors
DELETE FROM stream_floors

-- name: stream_end_before
SELECT chain FROM streams WHERE consumer_node_id = ? AND seq <= ? ORDER BY seq DESC LIMIT 1

-- name: restore_stream
INSERT INTO streams (consumer_node_id, seq, chain) VALUES (?, ?, ?)

-- name: restore_delivery
INSERT INTO deliveries (event_id, to_agent_id, to_node_id, route_decision, seq, state, attempts, due_at_ms,
  emitted_at_ms, accepted_at_ms, closed_at_ms, answered_by_event_id, reason, corr_id, from_agent_id,
  is_undelivered)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: restore_inbox_event
INSERT INTO inbox (seq, event_id, source_node_id, source_epoch, source_seq, received_at_ms, body, corr_id, sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: restore_dead_letter_event
-- The last send of an event is the one that counts.
INSERT OR REPLACE INTO dead_letter_events (event_id, seq, chain, body) VALUES (?, ?, ?, ?)
