-- name: quarantine_event
INSERT INTO quarantine (source_node_id, source_epoch, source_seq, event_id, code, message, at_ms, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: forget_quarantined_event
DELETE FROM quarantine WHERE source_node_id = ? AND event_id = ?

-- name: quarantine_overflow
SELECT id FROM (
  SELECT id, row_number() OVER newest_first AS place, sum(length(body)) OVER newest_first AS size_bytes
  FROM quarantine WHERE source_node_id = ?
  WINDOW newest_first AS (ORDER BY id DESC)
) WHERE place > ? OR size_bytes > ?

-- name: leave_quarantine
DELETE FROM quarantine WHERE id = ?

-- name: count_dropped
INSERT INTO quarantine_dropped (source_node_id, events) VALUES (?, ?)
ON CONFLICT (source_node_id) DO UPDATE SET events = events + excluded.events

-- name: quarantined
SELECT id, source_node_id, source_epoch, source_seq, event_id, code, message, at_ms, length(body) FROM quarantine
WHERE id > ? ORDER BY id LIMIT ?

-- name: quarantined_of
SELECT id, source_node_id, source_epoch, source_seq, event_id, code, message, at_ms, length(body) FROM quarantine
WHERE source_node_id = ? AND id > ? ORDER BY id LIMIT ?

-- name: quarantined_body
SELECT body FROM quarantine WHERE id = ?

-- name: quarantine_sources
SELECT source_node_id, sum(events), sum(size_bytes), sum(dropped) FROM (
  SELECT source_node_id, count(*) AS events, sum(length(body)) AS size_bytes, 0 AS dropped FROM quarantine
  GROUP BY source_node_id
  UNION ALL
  SELECT source_node_id, 0, 0, events FROM quarantine_dropped
) GROUP BY source_node_id ORDER BY source_node_id

-- name: prune_quarantine
DELETE FROM quarantine WHERE id IN (SELECT id FROM quarantine WHERE at_ms < ? ORDER BY at_ms LIMIT ?)

-- name: prune_incidents
DELETE FROM incidents WHERE id IN (
  SELECT id FROM incidents INDEXED BY incidents_closed WHERE closed_at_ms < ? ORDER BY closed_at_ms LIMIT ?
) AND id < (SELECT max(id) FROM incidents)

-- name: prune_invites
DELETE FROM invites WHERE invite_id IN (
  SELECT invite_id FROM invites WHERE coalesce(consumed_at_ms, revoked_at_ms, expires_at_ms) < ? LIMIT ?
)

-- name: prune_agent_invites
DELETE FROM agent_invites WHERE invite_id IN (
  SELECT invite_id FROM agent_invites WHERE coalesce(consumed_at_ms, withdrawn_at_ms, expires_at_ms) < ? LIMIT ?
)

-- name: ended_agent_sessions
SELECT session_id FROM agent_sessions WHERE coalesce(ended_at_ms, expires_at_ms) < ? LIMIT ?

-- name: prune_agent_session
DELETE FROM agent_sessions WHERE session_id = ?

-- name: prune_refresh_tokens
DELETE FROM refresh_tokens WHERE session_id = ?
