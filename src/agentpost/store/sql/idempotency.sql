-- name: keep_answer
INSERT INTO idempotency_keys (agent_id, key, request, answer, seq, expires_at_ms) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (agent_id, key) DO UPDATE SET
  request = excluded.request, answer = excluded.answer, seq = excluded.seq, expires_at_ms = excluded.expires_at_ms

-- name: kept_answer
SELECT request, answer, seq, expires_at_ms FROM idempotency_keys WHERE agent_id = ? AND key = ?

-- name: prune_answers
DELETE FROM idempotency_keys WHERE (agent_id, key) IN (
  SELECT agent_id, key FROM idempotency_keys WHERE expires_at_ms <= ? ORDER BY expires_at_ms LIMIT ?
)
