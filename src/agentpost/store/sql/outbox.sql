-- name: append_events
-- Each value is one row in one piece: 30 bytes of event id, 32 of chain, and the body.
INSERT INTO outbox (seq, event_id, chain, body)
SELECT ?1 + rowid, CAST(substr(value, 1, 30) AS TEXT), substr(value, 31, 32), substr(value, 63) FROM carray(?2)

-- name: outbox_head
SELECT seq, chain FROM outbox ORDER BY seq DESC LIMIT 1

-- name: outbox_slice
SELECT seq, chain, body FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?

-- name: outbox_chain_at
SELECT chain FROM outbox WHERE seq = ?

-- name: outbox_event
SELECT seq, chain, body FROM outbox WHERE event_id = ? ORDER BY seq DESC LIMIT 1

-- name: dead_letter_event
SELECT seq, chain, body FROM dead_letter_events WHERE event_id = ?

-- name: keep_dead_letter_events
INSERT OR REPLACE INTO dead_letter_events (event_id, seq, chain, body)
SELECT event_id, seq, chain, body FROM outbox
WHERE seq > ? AND seq <= ?
  AND EXISTS (SELECT 1 FROM deliveries WHERE event_id = outbox.event_id AND is_undelivered = 1)
ORDER BY seq

-- name: forget_dead_letter_event
DELETE FROM dead_letter_events
WHERE event_id = ?1 AND NOT EXISTS (SELECT 1 FROM deliveries WHERE event_id = ?1 AND is_undelivered = 1)

-- name: prune_outbox
DELETE FROM outbox WHERE seq <= ?

-- name: gateway
SELECT node_id, epoch, outbox_floor_seq, outbox_floor_chain, inbox_floor_seq FROM gateway

-- name: create_gateway
INSERT INTO gateway (only_row, node_id, epoch, created_at_ms, outbox_floor_chain) VALUES (1, ?, ?, ?, ?)

-- name: move_outbox_floor
UPDATE gateway SET outbox_floor_seq = ?, outbox_floor_chain = ?

-- name: move_inbox_floor
UPDATE gateway SET inbox_floor_seq = ?

-- name: count_outbox
SELECT count(*) FROM outbox

-- name: count_inbox
SELECT count(*) FROM inbox

-- name: ledger_without_inbox
SELECT event_id, to_agent_id FROM ledger
WHERE settled_at_ms IS NULL AND inbox_seq NOT IN (SELECT seq FROM inbox) LIMIT ?

-- name: outbox_floor
SELECT outbox_floor_seq, outbox_floor_chain FROM gateway
