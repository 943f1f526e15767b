-- name: cursor
SELECT source_node_id, epoch, last_seq, last_chain, updated_at_ms FROM cursors WHERE source_node_id = ?

-- name: cursors
SELECT source_node_id, epoch, last_seq, last_chain, updated_at_ms FROM cursors ORDER BY source_node_id

-- name: move_cursor
INSERT INTO cursors (source_node_id, epoch, last_seq, last_chain, updated_at_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (source_node_id) DO UPDATE
SET epoch = excluded.epoch, last_seq = excluded.last_seq, last_chain = excluded.last_chain,
  updated_at_ms = excluded.updated_at_ms

-- name: sign_cursor
UPDATE cursors SET head = ?, signature = ? WHERE source_node_id = ?

-- name: signed_end
SELECT head, signature FROM cursors WHERE source_node_id = ? AND head IS NOT NULL

-- name: note_subscriber
INSERT INTO subscribers (consumer_node_id, epoch, last_seq, updated_at_ms, lease_expires_at_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (consumer_node_id) DO UPDATE
SET epoch = excluded.epoch, last_seq = excluded.last_seq, updated_at_ms = excluded.updated_at_ms,
  lease_expires_at_ms = excluded.lease_expires_at_ms

-- name: subscribers
SELECT consumer_node_id, epoch, last_seq, updated_at_ms, lease_expires_at_ms FROM subscribers ORDER BY consumer_node_id
