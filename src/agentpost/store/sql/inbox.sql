-- name: inbox_floor
SELECT inbox_floor_seq FROM gateway

-- name: inbox_latest_seq
SELECT max(seq) FROM inbox

-- name: take_events
-- Each value is one row in one piece: 30 bytes of event id, 20 of seq, 20 of the source's seq, 31 of corrId, 10 of sum,
-- the body.
INSERT INTO inbox (seq, event_id, source_node_id, source_epoch, source_seq, received_at_ms, body, corr_id, sum)
SELECT CAST(CAST(substr(value, 31, 20) AS TEXT) AS INTEGER), CAST(substr(value, 1, 30) AS TEXT), ?1, ?2,
  CAST(CAST(substr(value, 51, 20) AS TEXT) AS INTEGER), ?3, substr(value, 112),
  rtrim(CAST(substr(value, 71, 31) AS TEXT)), CAST(CAST(substr(value, 102, 10) AS TEXT) AS INTEGER)
FROM carray(?4)

-- name: inbox_slice
SELECT seq, body, received_at_ms FROM inbox WHERE seq > ? ORDER BY seq LIMIT ?

-- name: inbox_bodies
SELECT event_id, body FROM inbox WHERE event_id IN carray(?)

-- name: known_events
-- Which of these events stand in the inbox, and where, and which agents have them in the ledger.
SELECT event_id, NULL, seq, source_node_id FROM inbox WHERE event_id IN carray(?1)
UNION ALL
SELECT event_id, to_agent_id, inbox_seq, NULL FROM ledger WHERE event_id IN carray(?1)

-- name: open_ledger_entries
-- Each value is 30 characters of event id, and the place in the inbox.
INSERT INTO ledger (event_id, to_agent_id, inbox_seq, state, accepted_at_ms)
SELECT substr(value, 1, 30), ?1, CAST(substr(value, 31) AS INTEGER), 'queued', ?2 FROM carray(?3)

-- name: close_ledger_entries
-- The same for what the gateway has dealt with already.
INSERT INTO ledger (event_id, to_agent_id, inbox_seq, state, accepted_at_ms, settled_at_ms, outcome, error)
SELECT substr(value, 1, 30), ?1, CAST(substr(value, 31) AS INTEGER), 'settled', ?2, ?2, ?3, ?4 FROM carray(?5)

-- name: set_expiry
UPDATE ledger SET expires_at_ms = ? WHERE event_id = ?

-- name: mark_urgent
UPDATE ledger SET is_urgent = 1 WHERE event_id = ?

-- name: urgent_unread
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM ledger AS l INDEXED BY ledger_urgent JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE l.to_agent_id = ? AND l.is_urgent IS NOT NULL AND l.settled_at_ms IS NULL AND l.read_at_ms IS NULL
ORDER BY l.inbox_seq LIMIT ?

-- name: expired_mail
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM ledger AS l INDEXED BY ledger_expiring JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE l.expires_at_ms <= ? AND l.state = 'queued' AND l.settled_at_ms IS NULL
ORDER BY l.expires_at_ms, l.inbox_seq, l.to_agent_id LIMIT ? OFFSET ?

-- name: ledger_entry
SELECT event_id, to_agent_id, inbox_seq, state, attempts, due_at_ms, accepted_at_ms, engaged_at_ms, settled_at_ms,
  outcome, error, read_at_ms
FROM ledger WHERE event_id = ? AND to_agent_id = ?

-- name: ledger_entries
SELECT event_id, to_agent_id, inbox_seq, state, attempts, due_at_ms, accepted_at_ms, engaged_at_ms, settled_at_ms,
  outcome, error, read_at_ms
FROM ledger WHERE event_id IN carray(?)

-- name: engaged_entries
SELECT event_id, to_agent_id, inbox_seq, state, attempts, due_at_ms, accepted_at_ms, engaged_at_ms, settled_at_ms,
  outcome, error, read_at_ms
FROM ledger INDEXED BY ledger_backlog WHERE state = 'engaged' AND settled_at_ms IS NULL ORDER BY inbox_seq, to_agent_id

-- name: engage
-- What is with an agent is not due: there the time says until when it may stay, if somebody said so.
UPDATE ledger SET state = 'engaged', attempts = attempts + 1, engaged_at_ms = ?, due_at_ms = ?
WHERE event_id = ? AND to_agent_id = ? AND settled_at_ms IS NULL

-- name: extend_lease
UPDATE ledger SET due_at_ms = max(due_at_ms, ?)
WHERE event_id = ? AND to_agent_id = ? AND state = 'engaged' AND settled_at_ms IS NULL

-- name: give_back
-- An attempt that never reached its agent.
UPDATE ledger SET state = 'queued', attempts = attempts - 1, engaged_at_ms = ?, due_at_ms = 0
WHERE event_id = ? AND to_agent_id = ? AND attempts = ? AND state = 'engaged' AND settled_at_ms IS NULL

-- name: postpone
UPDATE ledger SET state = 'queued', due_at_ms = ?, error = ?
WHERE event_id = ? AND to_agent_id = ? AND settled_at_ms IS NULL

-- name: settled_of_entries
SELECT event_id, to_agent_id, settled_at_ms FROM ledger WHERE event_id IN carray(?)

-- name: settle
-- Each value is one pair in one piece: 30 characters of event id, and the agent. ?4 is when an attempt began that was
-- not recorded before.
UPDATE ledger SET state = 'settled', settled_at_ms = ?1, outcome = ?2, error = ?3,
  attempts = attempts + (?4 IS NOT NULL), engaged_at_ms = coalesce(?4, engaged_at_ms)
WHERE settled_at_ms IS NULL
  AND (event_id, to_agent_id) IN (SELECT substr(value, 1, 30), substr(value, 31) FROM carray(?5))
RETURNING event_id, to_agent_id

-- name: backlog
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM ledger AS l INDEXED BY ledger_backlog JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE l.to_agent_id = ? AND l.inbox_seq > ? AND l.settled_at_ms IS NULL
ORDER BY l.inbox_seq LIMIT ?

-- name: unread_backlog
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM ledger AS l INDEXED BY ledger_backlog JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE l.to_agent_id = ? AND l.inbox_seq > ? AND l.settled_at_ms IS NULL AND l.read_at_ms IS NULL
ORDER BY l.inbox_seq LIMIT ?

-- name: backlog_newest_first
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM ledger AS l INDEXED BY ledger_backlog JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE l.to_agent_id = ? AND l.inbox_seq < ? AND l.settled_at_ms IS NULL
ORDER BY l.inbox_seq DESC LIMIT ?

-- name: inbox_items
-- The ledger outlives the inbox: without the floor, all that was pruned would be looked through.
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM ledger AS l JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE l.to_agent_id = ? AND l.inbox_seq > max(?, (SELECT inbox_floor_seq FROM gateway))
ORDER BY l.inbox_seq LIMIT ?

-- name: inbox_items_newest_first
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM ledger AS l JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE l.to_agent_id = ? AND l.inbox_seq < ? AND l.inbox_seq > (SELECT inbox_floor_seq FROM gateway)
ORDER BY l.inbox_seq DESC LIMIT ?

-- name: inbox_item
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM ledger AS l JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE l.event_id = ? AND l.to_agent_id = ?

-- name: inbox_by_corr
SELECT l.event_id, l.to_agent_id, l.inbox_seq, l.state, l.attempts, l.due_at_ms, l.accepted_at_ms, l.engaged_at_ms,
  l.settled_at_ms, l.outcome, l.error, l.read_at_ms, i.source_node_id, i.source_seq, i.body
FROM inbox AS i JOIN ledger AS l ON l.event_id = i.event_id AND l.inbox_seq = i.seq
WHERE i.corr_id = ? ORDER BY i.seq, l.to_agent_id

-- name: backlog_size
SELECT count(*) FROM (
  SELECT 1 FROM ledger INDEXED BY ledger_backlog WHERE to_agent_id = ? AND settled_at_ms IS NULL LIMIT ?
)

-- name: unread_size
SELECT count(*) FROM (
  SELECT 1 FROM ledger INDEXED BY ledger_backlog
  WHERE to_agent_id = ? AND settled_at_ms IS NULL AND read_at_ms IS NULL LIMIT ?
)

-- name: mark_read
UPDATE ledger SET read_at_ms = ? WHERE event_id = ? AND to_agent_id = ? AND read_at_ms IS NULL

-- name: prune_settled_entries
DELETE FROM ledger WHERE (event_id, to_agent_id) IN (
  SELECT event_id, to_agent_id FROM ledger
  WHERE settled_at_ms < ? AND settled_at_ms IS NOT NULL ORDER BY settled_at_ms, event_id, to_agent_id LIMIT ?
)

-- name: waiting_agents
-- One step of the index for each agent, however much waits for it.
WITH RECURSIVE waiting (agent_id) AS (
  SELECT min(to_agent_id) FROM ledger INDEXED BY ledger_backlog WHERE settled_at_ms IS NULL
  UNION ALL
  SELECT (
    SELECT min(to_agent_id) FROM ledger INDEXED BY ledger_backlog
    WHERE settled_at_ms IS NULL AND to_agent_id > agent_id
  ) FROM waiting WHERE agent_id IS NOT NULL
)
SELECT agent_id, (
  SELECT min(inbox_seq) FROM ledger INDEXED BY ledger_backlog WHERE to_agent_id = agent_id AND settled_at_ms IS NULL
) AS first_seq
FROM waiting WHERE agent_id IS NOT NULL ORDER BY first_seq, agent_id LIMIT ?

-- name: prune_inbox
DELETE FROM inbox WHERE seq <= ?
