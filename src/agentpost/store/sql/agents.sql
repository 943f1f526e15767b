-- name: put_agent
INSERT INTO agents (agent_id, runtime, options, created_at_ms, is_paused) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (agent_id) DO UPDATE
SET runtime = excluded.runtime, options = excluded.options, created_at_ms = excluded.created_at_ms,
  is_paused = excluded.is_paused

-- name: remove_agent
DELETE FROM agents WHERE agent_id = ?

-- name: local_agents
SELECT agent_id, runtime, options, created_at_ms, is_paused FROM agents ORDER BY agent_id
