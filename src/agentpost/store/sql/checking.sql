-- name: check_inbox
SELECT seq, event_id, source_node_id, source_epoch, source_seq, received_at_ms, corr_id, body, sum
FROM inbox WHERE seq > ? ORDER BY seq LIMIT ?

-- name: open_agents_of_event
SELECT to_agent_id FROM ledger WHERE event_id = ? AND settled_at_ms IS NULL ORDER BY to_agent_id

-- name: ledger_of_other_event
SELECT l.event_id, l.to_agent_id FROM ledger AS l JOIN inbox AS i ON i.seq = l.inbox_seq
WHERE i.event_id <> l.event_id LIMIT ?

-- name: check_task_events
SELECT place, task_id, event_id, is_own, at_ms, body, sum FROM task_events WHERE place > ? ORDER BY place LIMIT ?

-- name: bodies_in_outbox
SELECT seq, body FROM outbox WHERE event_id = ?

-- name: body_in_inbox
SELECT body FROM inbox WHERE event_id = ?

-- name: check_dead_letter_events
SELECT event_id, seq, body FROM dead_letter_events WHERE event_id > ? ORDER BY event_id LIMIT ?

-- name: chunks_without_blob
SELECT sha256 FROM blob_chunks WHERE sha256 NOT IN (SELECT sha256 FROM blobs) GROUP BY sha256 LIMIT ?

-- name: check_mirror_streams
SELECT consumer_node_id, s.seq, s.chain, e.body FROM mirror_streams AS s
LEFT JOIN mirror_events AS e ON e.source_node_id = s.source_node_id AND e.seq = s.seq
WHERE s.source_node_id = ?1 AND (consumer_node_id, s.seq) > (?2, ?3) ORDER BY consumer_node_id, s.seq LIMIT ?4

-- name: check_mirror_heads
SELECT seq, head FROM mirror_heads WHERE source_node_id = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: mirror_chain_at
SELECT chain FROM mirror_events WHERE source_node_id = ? AND seq = ?

-- name: events_without_mirror
SELECT source_node_id, seq FROM mirror_events WHERE source_node_id NOT IN (SELECT source_node_id FROM mirrors) LIMIT ?
