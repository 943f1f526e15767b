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
