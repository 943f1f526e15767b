-- name: add_session
INSERT INTO sessions (name) VALUES (?) RETURNING id

-- name: session_id
SELECT id FROM sessions WHERE name = ?

-- name: count_pending
UPDATE sessions SET pending = pending + ? WHERE id = ?

-- name: pending
SELECT pending FROM sessions WHERE id = ?

-- name: remember
INSERT INTO remembered (session, msg_id, message, seen_at_ms) VALUES (?, ?, ?, ?)

-- name: seen
SELECT msg_id FROM remembered WHERE session = ?1 AND msg_id = ?2

-- name: living
SELECT m.id, m.session, m.msg_id, m.sender, m.state, m.rank, m.attempt, m.due_at_ms, m.expires_at_ms, m.body
FROM remembered AS r JOIN messages AS m ON m.id = r.message
WHERE r.session = ?1 AND r.msg_id = ?2 AND m.state IN ('pending', 'in_flight')

-- name: remembered
SELECT message, ended FROM remembered WHERE session = ? AND msg_id = ?

-- name: note_end
UPDATE remembered SET message = NULL, ended = ? WHERE session = ? AND msg_id = ?

-- name: note_ends_of_living
UPDATE remembered SET message = NULL, ended = 'purged'
WHERE session = ?1 AND msg_id IN (SELECT msg_id FROM messages WHERE session = ?1 AND state IN ('pending', 'in_flight'))

-- name: last_rank_of_pair
SELECT rank FROM messages
WHERE session = ? AND sender = ? AND state IN ('pending', 'in_flight') ORDER BY id DESC LIMIT 1

-- name: last_message
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'

-- name: add_message
INSERT INTO messages (id, session, msg_id, sender, state, rank, created_at, attempt, due_at_ms, expires_at_ms, body)
VALUES (?, ?, ?, ?, 'pending', ?, ?, ?, 0, ?, ?)

-- name: message
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms, body FROM messages WHERE id = ?

-- name: first_pending
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms, body FROM messages
WHERE session = ? AND state = 'pending' ORDER BY rank, id LIMIT ?

-- name: holding
SELECT sender, min(id) FROM messages
WHERE session = ? AND state = 'pending' AND due_at_ms > 0 AND due_at_ms > ? GROUP BY sender

-- name: next_sender
SELECT sender FROM messages
WHERE session = ? AND sender > ? AND state IN ('pending', 'in_flight') ORDER BY sender LIMIT 1

-- name: pending_of_sender
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms, body FROM messages
WHERE session = ? AND sender = ? AND state IN ('pending', 'in_flight') AND id < ? AND state = 'pending'
ORDER BY id LIMIT ?

-- name: hand_out
UPDATE messages SET state = 'in_flight', due_at_ms = ? WHERE id = ?

-- name: retry
UPDATE messages SET state = 'pending', attempt = ?, due_at_ms = ? WHERE id = ?

-- name: bury
UPDATE messages SET state = 'dead_letter', reason = ?, failed_at = ?, attempts = ? WHERE id = ?

-- name: note_burial
UPDATE remembered SET ended = 'dead_letter' WHERE session = ? AND msg_id = ?

-- name: extend
UPDATE messages SET due_at_ms = ? WHERE id = ?

-- name: drop_message
DELETE FROM messages WHERE id = ?

-- name: overdue_in_flight
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms, body FROM messages
WHERE state = 'in_flight' AND due_at_ms <= ? ORDER BY due_at_ms LIMIT ?

-- name: past_ttl
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms, body FROM messages
WHERE state IN ('pending', 'in_flight') AND expires_at_ms <= ? ORDER BY expires_at_ms LIMIT ?

-- name: reason
SELECT reason FROM messages WHERE id = ?

-- name: in_flight_page
SELECT msg_id, sender, created_at, attempt, state FROM messages
WHERE session = ? AND state = 'in_flight' AND (rank, id) > (?, ?) ORDER BY rank, id LIMIT ?

-- name: pending_page
SELECT msg_id, sender, created_at, attempt, state FROM messages
WHERE session = ? AND state = 'pending' AND (rank, id) > (?, ?) ORDER BY rank, id LIMIT ?

-- name: dead_page
SELECT body, attempt, reason, failed_at, attempts FROM messages
WHERE session = ? AND state = 'dead_letter' AND id > ? ORDER BY id LIMIT ?

-- name: purge_living
DELETE FROM messages WHERE session = ? AND state IN ('pending', 'in_flight')

-- name: no_pending
UPDATE sessions SET pending = 0 WHERE id = ?

-- name: note_ends_of_dead
UPDATE remembered SET message = NULL
WHERE session = ?1 AND msg_id IN (SELECT msg_id FROM messages WHERE session = ?1 AND state = 'dead_letter')

-- name: purge_dead
DELETE FROM messages WHERE session = ? AND state = 'dead_letter'

-- name: forget
DELETE FROM remembered WHERE (session, msg_id) IN (
  SELECT session, msg_id FROM remembered WHERE seen_at_ms < ? AND message IS NULL ORDER BY seen_at_ms LIMIT ?)
