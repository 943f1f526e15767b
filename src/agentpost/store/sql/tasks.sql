-- name: task
SELECT record FROM tasks WHERE task_id = ?

-- name: tasks
SELECT record FROM tasks WHERE task_id > ? ORDER BY task_id LIMIT ?

-- name: tasks_newest_first
SELECT record FROM tasks WHERE task_id < ? ORDER BY task_id DESC LIMIT ?

-- name: open_tasks
SELECT record FROM tasks INDEXED BY tasks_open WHERE is_open = 1 AND task_id > ? ORDER BY task_id LIMIT ?

-- name: open_tasks_newest_first
SELECT record FROM tasks INDEXED BY tasks_open WHERE is_open = 1 AND task_id < ? ORDER BY task_id DESC LIMIT ?

-- name: tasks_of
SELECT record FROM tasks INDEXED BY tasks_by_requester
WHERE requester_agent_id = ? AND (updated_at_ms, task_id) < (?, ?)
ORDER BY updated_at_ms DESC, task_id DESC LIMIT ?

-- name: put_task
INSERT INTO tasks (task_id, is_open, state, requester_agent_id, accepted_by_agent_id, updated_at_ms, record)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (task_id) DO UPDATE SET is_open = excluded.is_open, state = excluded.state,
  accepted_by_agent_id = excluded.accepted_by_agent_id, updated_at_ms = excluded.updated_at_ms, record = excluded.record

-- name: keep_task_event
INSERT INTO task_events (task_id, event_id, is_own, at_ms, body, sum) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (event_id, is_own) DO NOTHING

-- name: task_of_event
SELECT task_id FROM task_events WHERE event_id = ? AND is_own = ?

-- name: task_events
SELECT place, task_id, event_id, is_own, at_ms, body FROM task_events WHERE task_id = ? ORDER BY place

-- name: all_task_events
SELECT place, task_id, event_id, is_own, at_ms, body FROM task_events WHERE place > ? ORDER BY place LIMIT ?

-- name: task_rows
SELECT task_id, is_open, state, requester_agent_id, accepted_by_agent_id, updated_at_ms, record
FROM tasks WHERE task_id > ? ORDER BY task_id LIMIT ?

-- name: clear_tasks
DELETE FROM tasks

-- name: prune_task_events
DELETE FROM task_events WHERE task_id IN (
  SELECT task_id FROM tasks INDEXED BY tasks_over WHERE is_open = 0 AND updated_at_ms < ?
  ORDER BY updated_at_ms, task_id LIMIT ?
)

-- name: prune_tasks
DELETE FROM tasks WHERE task_id IN (
  SELECT task_id FROM tasks INDEXED BY tasks_over WHERE is_open = 0 AND updated_at_ms < ?
  ORDER BY updated_at_ms, task_id LIMIT ?
)
