-- name: put_note
INSERT INTO notes (collection, key, value, at_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (collection, key) DO UPDATE SET value = excluded.value, at_ms = excluded.at_ms

-- name: remove_note
DELETE FROM notes WHERE collection = ? AND key = ?

-- name: note
SELECT value, at_ms FROM notes WHERE collection = ? AND key = ?

-- name: notes
SELECT key, value, at_ms FROM notes WHERE collection = ? AND key > ? ORDER BY key LIMIT ?

-- name: count_notes
SELECT count(*) FROM notes WHERE collection = ?
