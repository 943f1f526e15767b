-- Names may contain NUL, which ends a text in an array: ids go in arrays, names one by one.

-- name: add_session
INSERT INTO sessions (name) VALUES (?) RETURNING id

-- name: add_line
INSERT INTO lines (line, place, message, pending) VALUES (?, -1, 0, 0)

-- name: session_id
SELECT id FROM sessions WHERE name = ?

-- name: line_to_join
-- The line of a session, how many are pending there, the last number of any message, the last rank of a sender there.
SELECT s.id, head.pending,
       max(coalesce((SELECT max(id) FROM messages), 0), coalesce((SELECT max(id) FROM dead_letters), 0)),
       (SELECT m.rank FROM messages AS m JOIN remembered AS r ON r.session = m.session AND r.msg_id = m.msg_id
        WHERE m.session = s.id AND m.sender = ?2 AND r.ended IS NULL ORDER BY m.id DESC LIMIT 1)
FROM sessions AS s JOIN lines AS head ON head.line = s.id AND head.place = -1 AND head.message = 0 WHERE s.name = ?1

-- name: is_time_for_sweep
SELECT coalesce((SELECT place <= ?1 FROM lines WHERE line = 0 ORDER BY place LIMIT 1), 0)
    OR coalesce((SELECT expires_at_ms <= ?1 FROM messages ORDER BY id LIMIT 1), 0)

-- name: waiting_abroad
SELECT s.name FROM sessions AS s JOIN lines AS head ON head.line = s.id AND head.place = -1 AND head.message = 0
WHERE instr(s.name, '@') > 0 AND head.pending > 0 ORDER BY s.id

-- name: count_pending
UPDATE lines SET pending = pending + ? WHERE line = ? AND place = -1 AND message = 0

-- name: remember
INSERT INTO remembered (session, msg_id, message, seen_at_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: remembered
SELECT ended, message, in_flight_until_ms FROM remembered WHERE session = ? AND msg_id = ?

-- name: last_rank_of_pair
-- A message that has ended may still be there for a moment; what is remembered of it decides.
SELECT m.rank FROM messages AS m JOIN remembered AS r ON r.session = m.session AND r.msg_id = m.msg_id
WHERE m.session = ? AND m.sender = ? AND r.ended IS NULL ORDER BY m.id DESC LIMIT 1

-- name: add_message
INSERT INTO messages (id, session, msg_id, sender, rank, created_at, attempt, expires_at_ms, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: line_up
INSERT INTO lines (line, place, message) VALUES (?, ?, ?)

-- name: next_in_line
-- The first of a session, and whether that is not all: it is time for a sweep, or a sender may be held back.
SELECT m.id, m.session, m.msg_id, m.sender, m.rank, m.attempt, m.retry_at_ms, m.expires_at_ms, NULL, m.body,
       coalesce((SELECT place <= ?2 FROM lines WHERE line = 0 ORDER BY place LIMIT 1), 0)
       OR coalesce((SELECT expires_at_ms <= ?2 FROM messages ORDER BY id LIMIT 1), 0)
       OR EXISTS (SELECT 1 FROM messages WHERE retry_at_ms IS NOT NULL)
       OR m.expires_at_ms <= ?2
FROM lines AS l JOIN messages AS m ON m.id = l.message
WHERE l.line = (SELECT id FROM sessions WHERE name = ?1) AND l.place >= 0 ORDER BY l.place, l.message LIMIT ?3

-- name: sizes_in_line
SELECT length(m.body) FROM lines AS l JOIN messages AS m ON m.id = l.message
WHERE l.line = (SELECT id FROM sessions WHERE name = ?) AND l.place >= 0 ORDER BY l.place, l.message LIMIT ?

-- name: bodies
SELECT id, body FROM messages WHERE id IN carray(?1)

-- name: first_pending
SELECT m.id, m.session, m.msg_id, m.sender, m.rank, m.attempt, m.retry_at_ms, m.expires_at_ms, NULL, length(m.body)
FROM lines AS l JOIN messages AS m ON m.id = l.message
WHERE l.line = ?1 AND l.place >= 0 AND m.expires_at_ms > ?2 ORDER BY l.place, l.message LIMIT ?3

-- name: holding
SELECT sender, min(id) FROM messages WHERE session = ?1 AND retry_at_ms > ?2 AND expires_at_ms > ?2 GROUP BY sender

-- name: next_sender
SELECT sender FROM messages WHERE session = ? AND sender > ? ORDER BY sender LIMIT 1

-- name: pending_of_sender
SELECT m.id, m.session, m.msg_id, m.sender, m.rank, m.attempt, m.retry_at_ms, m.expires_at_ms, NULL, length(m.body)
FROM messages AS m JOIN remembered AS r ON r.session = m.session AND r.msg_id = m.msg_id
WHERE m.session = ?1 AND m.sender = ?2 AND m.id < ?3 AND m.expires_at_ms > ?4
  AND r.ended IS NULL AND r.in_flight_until_ms IS NULL
ORDER BY m.id LIMIT ?5

-- name: move_in_line
UPDATE lines SET line = ?, place = ? WHERE line = ? AND place = ? AND message = ?

-- name: note_in_flight
UPDATE remembered SET in_flight_until_ms = ? WHERE session = ? AND msg_id = ?

-- name: no_retry
UPDATE messages SET retry_at_ms = NULL WHERE id = ?

-- name: ack
UPDATE remembered SET ended = 'acked'
WHERE session = (SELECT id FROM sessions WHERE name = ?1) AND msg_id = ?2 AND ended IS NULL AND in_flight_until_ms > ?3
RETURNING message, in_flight_until_ms

-- name: drop_ended_messages
-- Whoever swept may have removed them before, and given their numbers to others.
DELETE FROM messages AS m WHERE id IN carray(?1) AND NOT EXISTS (
  SELECT 1 FROM remembered AS r
  WHERE r.session = m.session AND r.msg_id = m.msg_id AND r.message = m.id AND r.ended IS NULL)

-- name: leave_line_ended
DELETE FROM lines
WHERE line = 0 AND place = ?1 AND message = ?2 AND NOT EXISTS (SELECT 1 FROM messages WHERE id = ?2)

-- name: retry
UPDATE messages SET attempt = ?, retry_at_ms = ? WHERE id = ?

-- name: bury
INSERT INTO dead_letters (id, session, msg_id, rank, attempt, reason, failed_at, attempts, body)
SELECT id, session, msg_id, rank, attempt, ?, ?, ?, body FROM messages WHERE id = ?

-- name: note_burial
UPDATE remembered SET ended = 'dead_letter', in_flight_until_ms = NULL WHERE session = ? AND msg_id = ?

-- name: leave_line
DELETE FROM lines WHERE line = ? AND place = ? AND message = ?

-- name: drop_messages
DELETE FROM messages WHERE id IN carray(?1)

-- name: note_end
UPDATE remembered SET ended = ?, message = NULL, in_flight_until_ms = NULL WHERE session = ? AND msg_id = ?

-- name: message
SELECT m.id, m.session, m.msg_id, m.sender, m.rank, m.attempt, m.retry_at_ms, m.expires_at_ms, r.in_flight_until_ms
FROM messages AS m JOIN remembered AS r ON r.session = m.session AND r.msg_id = m.msg_id WHERE m.id = ?

-- name: overdue_in_flight
SELECT m.id, m.session, m.msg_id, m.sender, m.rank, m.attempt, m.retry_at_ms, m.expires_at_ms, l.place,
       r.msg_id IS NULL OR r.ended IS NOT NULL
FROM lines AS l JOIN messages AS m ON m.id = l.message
LEFT JOIN remembered AS r ON r.session = m.session AND r.msg_id = m.msg_id AND r.message = m.id
WHERE l.line = 0 AND l.place <= ? ORDER BY l.place LIMIT ?

-- name: past_ttl
-- Of the next so many, those that have expired.
SELECT m.id, m.session, m.msg_id, m.sender, m.rank, m.attempt, m.retry_at_ms, m.expires_at_ms, r.in_flight_until_ms
FROM (SELECT id FROM messages WHERE id > ?1 ORDER BY id LIMIT ?2) AS next JOIN messages AS m ON m.id = next.id
JOIN remembered AS r ON r.session = m.session AND r.msg_id = m.msg_id AND r.message = m.id
WHERE m.expires_at_ms <= ?3 AND r.ended IS NULL

-- name: end_of_walk
SELECT id FROM messages WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?

-- name: page_pending
-- In two parts, because an index finds its place by the first column of a pair only.
SELECT m.msg_id, m.sender, m.created_at, m.attempt, l.place, l.message
FROM lines AS l JOIN messages AS m ON m.id = l.message
WHERE l.line = ?1 AND l.place = ?2 AND l.message > ?3 AND m.expires_at_ms > ?4
UNION ALL
SELECT m.msg_id, m.sender, m.created_at, m.attempt, l.place, l.message
FROM lines AS l JOIN messages AS m ON m.id = l.message
WHERE l.line = ?1 AND l.place > ?2 AND m.expires_at_ms > ?4
ORDER BY l.place, l.message LIMIT ?5

-- name: page_in_flight
-- What is in flight is little, next to what is pending: it is looked through.
SELECT m.msg_id, m.sender, m.created_at, m.attempt
FROM lines AS l JOIN messages AS m ON m.id = l.message
JOIN remembered AS r ON r.session = m.session AND r.msg_id = m.msg_id
WHERE l.line = 0 AND m.session = ?1 AND (m.rank, m.id) > (?2, ?3) AND m.expires_at_ms > ?4 AND r.ended IS NULL
ORDER BY m.rank, m.id LIMIT ?5

-- name: dead_letter
SELECT rank, id, reason FROM dead_letters WHERE id = ?

-- name: page_dead
-- Six bytes are what a character of a reason may take as JSON.
SELECT id, length(body) + 6 * octet_length(reason), rank FROM dead_letters
WHERE session = ?1 AND rank = ?2 AND id > ?3
UNION ALL
SELECT id, length(body) + 6 * octet_length(reason), rank FROM dead_letters
WHERE session = ?1 AND rank > ?2
ORDER BY rank, id LIMIT ?4

-- name: dead_letters
SELECT body, attempt, reason, failed_at, attempts FROM dead_letters WHERE id IN carray(?1) ORDER BY rank, id

-- name: purge_in_flight
DELETE FROM lines WHERE line = 0 AND message IN (SELECT id FROM messages WHERE session = ?)

-- name: note_ends_of_living
UPDATE remembered SET ended = 'purged', message = NULL, in_flight_until_ms = NULL
WHERE session = ?1 AND ended IS NULL AND msg_id IN (SELECT msg_id FROM messages WHERE session = ?1)

-- name: purge_messages
DELETE FROM messages WHERE session = ?

-- name: purge_line
DELETE FROM lines WHERE line = ? AND place >= 0

-- name: no_pending
UPDATE lines SET pending = 0 WHERE line = ? AND place = -1 AND message = 0

-- name: note_ends_of_dead
UPDATE remembered SET message = NULL
WHERE session = ?1 AND msg_id IN (SELECT msg_id FROM dead_letters WHERE session = ?1)

-- name: purge_dead
DELETE FROM dead_letters WHERE session = ?

-- name: walk
SELECT message, session, msg_id FROM walk

-- name: walk_through_messages
UPDATE walk SET message = ?

-- name: walk_through_ids
UPDATE walk SET session = ?, msg_id = ?

-- name: end_of_look_back
SELECT session, msg_id FROM remembered WHERE (session, msg_id) > (?, ?) ORDER BY session, msg_id LIMIT 1 OFFSET ?

-- name: forget_between
DELETE FROM remembered
WHERE (session, msg_id) > (?, ?) AND (session, msg_id) <= (?, ?)
  AND ended IS NOT NULL AND (ended <> 'dead_letter' OR message IS NULL) AND seen_at_ms < ?

-- name: forget_after
DELETE FROM remembered
WHERE (session, msg_id) > (?, ?)
  AND ended IS NOT NULL AND (ended <> 'dead_letter' OR message IS NULL) AND seen_at_ms < ?
