-- name: forget_expired
DELETE FROM replay_guard WHERE expires_at_ms <= ?

-- name: remember_once
INSERT INTO replay_guard (scope, value_hash, expires_at_ms) VALUES (?, ?, ?)
ON CONFLICT (scope, value_hash) DO NOTHING

-- name: record_audit
INSERT INTO audit (at_ms, actor, action, subject, corr_id, session_id, detail) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: audit_log
SELECT id, at_ms, actor, action, subject, corr_id, session_id, detail FROM audit WHERE id > ? ORDER BY id LIMIT ?

-- name: begin_blob
INSERT INTO blobs (sha256, size_bytes, chunk_bytes, chunks, complete, created_at_ms) VALUES (?, ?, ?, ?, 0, ?)
ON CONFLICT (sha256) DO NOTHING

-- name: blob
SELECT sha256, size_bytes, chunk_bytes, chunks, complete FROM blobs WHERE sha256 = ?

-- name: put_chunk
INSERT INTO blob_chunks (sha256, part, data) VALUES (?, ?, ?) ON CONFLICT (sha256, part) DO NOTHING

-- name: chunk
SELECT data FROM blob_chunks WHERE sha256 = ? AND part = ?

-- name: held_chunks
SELECT part FROM blob_chunks WHERE sha256 = ? ORDER BY part

-- name: complete_blob
UPDATE blobs SET complete = 1 WHERE sha256 = ?

-- name: drop_blob
DELETE FROM blobs WHERE sha256 = ?

-- name: drop_chunks
DELETE FROM blob_chunks WHERE sha256 = ?

-- name: name_payload
INSERT INTO payload_readers (sha256, node_id, source_node_id, seq, size_bytes) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (sha256, node_id) DO NOTHING

-- name: may_read_payload
SELECT count(*) FROM payload_readers WHERE sha256 = ? AND node_id = ?

-- name: missing_payloads
SELECT p.sha256, p.source_node_id, p.seq, p.size_bytes
FROM mirrors CROSS JOIN payload_readers AS p INDEXED BY payload_readers_by_source
WHERE p.source_node_id = mirrors.source_node_id AND p.seq > mirrors.floor_seq
  AND NOT EXISTS (SELECT 1 FROM blobs AS b WHERE b.sha256 = p.sha256 AND b.complete)
GROUP BY p.sha256 ORDER BY p.source_node_id, p.seq LIMIT ?
