-- Names may contain NUL, which ends a text in an array: they come as bytes and are texts again here.

-- name: add_session
INSERT INTO sessions (name) VALUES (?) RETURNING id

-- name: session_id
SELECT id FROM sessions WHERE name = ?

-- name: session_and_last
SELECT id, pending, (SELECT max(id) FROM messages) FROM sessions WHERE name = ?

-- name: waiting_abroad
SELECT name FROM sessions WHERE instr(name, '@') > 0 AND pending > 0 ORDER BY id

-- name: count_pending
UPDATE sessions SET pending = pending + ? WHERE id = ?

-- name: pending
SELECT pending FROM sessions WHERE name = ?

-- name: remember
INSERT INTO remembered (session, msg_id, message, seen_at_ms) VALUES (?, ?, ?, ?)

-- name: seen
SELECT msg_id FROM remembered WHERE session = ?1 AND msg_id IN (SELECT CAST(value AS TEXT) FROM carray(?2))

-- name: living
SELECT m.id, m.session, m.msg_id, m.sender, m.state, m.rank, m.attempt, m.due_at_ms, m.expires_at_ms
FROM remembered AS r JOIN messages AS m ON m.id = r.message
WHERE r.session = ?1 AND r.msg_id IN (SELECT CAST(value AS TEXT) FROM carray(?2)) AND m.failed_at IS NULL

-- name: remembered
SELECT message, ended FROM remembered WHERE session = ? AND msg_id = ?

-- name: note_ends
UPDATE remembered SET message = NULL, ended = ?1
WHERE session = ?2 AND msg_id IN (SELECT CAST(value AS TEXT) FROM carray(?3))

-- name: note_ends_of_living
UPDATE remembered SET message = NULL, ended = 'purged'
WHERE session = ?1 AND msg_id IN (SELECT msg_id FROM messages WHERE session = ?1 AND state IN ('pending', 'in_flight'))

-- name: last_rank_of_pair
SELECT rank FROM messages WHERE session = ? AND sender = ? AND failed_at IS NULL ORDER BY id DESC LIMIT 1

-- name: add_message
INSERT INTO messages (id, session, msg_id, sender, state, rank, created_at, attempt, due_at_ms, expires_at_ms, body)
VALUES (?, ?, ?, ?, 'pending', ?, ?, ?, 0, ?, ?)

-- name: message
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms FROM messages WHERE id = ?

-- name: first_pending
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms, body FROM messages
WHERE session = ? AND state = 'pending' ORDER BY rank, id LIMIT ?

-- name: holding
SELECT sender, min(id) FROM messages
WHERE session = ? AND state = 'pending' AND due_at_ms > 0 AND due_at_ms > ? GROUP BY sender

-- name: next_sender
SELECT sender FROM messages WHERE session = ? AND sender > ? AND failed_at IS NULL ORDER BY sender LIMIT 1

-- name: pending_of_sender
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms, body FROM messages
WHERE session = ? AND sender = ? AND failed_at IS NULL AND id < ? AND state = 'pending' ORDER BY id LIMIT ?

-- name: hand_out
UPDATE messages SET state = 'in_flight', due_at_ms = ?1 WHERE id IN carray(?2)

-- name: retry
UPDATE messages SET state = 'pending', attempt = ?, due_at_ms = ? WHERE id = ?

-- name: bury
UPDATE messages SET state = 'dead_letter', reason = ?, failed_at = ?, attempts = ? WHERE id = ?

-- name: note_burial
UPDATE remembered SET ended = 'dead_letter' WHERE session = ? AND msg_id = ?

-- name: extend
UPDATE messages SET due_at_ms = ? WHERE id = ?

-- name: drop_messages
DELETE FROM messages WHERE id IN carray(?1)

-- name: is_time_for_sweep
SELECT EXISTS (SELECT 1 FROM messages WHERE failed_at IS NULL AND expires_at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM messages WHERE state = 'in_flight' AND due_at_ms <= ?1)

-- name: overdue_in_flight
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms FROM messages
WHERE state = 'in_flight' AND due_at_ms <= ? ORDER BY due_at_ms LIMIT ?

-- name: past_ttl
SELECT id, session, msg_id, sender, state, rank, attempt, due_at_ms, expires_at_ms FROM messages
WHERE failed_at IS NULL AND expires_at_ms <= ? ORDER BY expires_at_ms LIMIT ?

-- name: reason
SELECT reason FROM messages WHERE id = ?

-- name: page
-- In two parts, because an index finds its place by the first column of a pair only.
SELECT msg_id, sender, created_at, attempt, state, rank, id FROM messages
WHERE session = ?1 AND state = ?2 AND rank = ?3 AND id > ?4
UNION ALL
SELECT msg_id, sender, created_at, attempt, state, rank, id FROM messages
WHERE session = ?1 AND state = ?2 AND rank > ?3
ORDER BY rank, id LIMIT ?5

-- name: dead_page
SELECT body, attempt, reason, failed_at, attempts, rank, id FROM messages
WHERE session = ?1 AND state = 'dead_letter' AND rank = ?2 AND id > ?3
UNION ALL
SELECT body, attempt, reason, failed_at, attempts, rank, id FROM messages
WHERE session = ?1 AND state = 'dead_letter' AND rank > ?2
ORDER BY rank, id LIMIT ?4

-- name: purge_living
DELETE FROM messages WHERE session = ? AND state IN ('pending', 'in_flight')

-- name: no_pending
UPDATE sessions SET pending = 0 WHERE id = ?

-- name: note_ends_of_dead
UPDATE remembered SET message = NULL
WHERE session = ?1 AND msg_id IN (SELECT msg_id FROM messages WHERE session = ?1 AND state = 'dead_letter')

-- name: purge_dead
DELETE FROM messages WHERE session = ? AND state = 'dead_letter'

-- name: end_of_look_back
SELECT session, msg_id FROM remembered WHERE (session, msg_id) > (?, ?) ORDER BY session, msg_id LIMIT 1 OFFSET ?

-- name: forget_between
DELETE FROM remembered
WHERE (session, msg_id) > (?, ?) AND (session, msg_id) <= (?, ?) AND message IS NULL AND seen_at_ms < ?

-- name: forget_after
DELETE FROM remembered WHERE (session, msg_id) > (?, ?) AND message IS NULL AND seen_at_ms < ?
