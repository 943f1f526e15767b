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
