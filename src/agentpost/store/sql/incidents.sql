-- name: raise_incident
INSERT INTO incidents (kind, subject, at_ms, corr_id, detail) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (kind, subject) WHERE closed_at_ms IS NULL DO NOTHING

-- name: close_incident
UPDATE incidents SET closed_at_ms = ? WHERE kind = ? AND subject = ? AND closed_at_ms IS NULL

-- name: incidents
SELECT id, kind, subject, at_ms, corr_id, detail, closed_at_ms FROM incidents WHERE id > ? ORDER BY id LIMIT ?

-- name: open_incidents
SELECT id, kind, subject, at_ms, corr_id, detail, closed_at_ms FROM incidents INDEXED BY incidents_open_in_order
WHERE id > ? AND closed_at_ms IS NULL ORDER BY id LIMIT ?

-- name: open_incidents_of_kind
SELECT id, kind, subject, at_ms, corr_id, detail, closed_at_ms FROM incidents INDEXED BY incidents_open
WHERE kind = ? AND closed_at_ms IS NULL ORDER BY subject

-- name: count_open_incidents
SELECT kind, count(*) FROM incidents INDEXED BY incidents_open WHERE closed_at_ms IS NULL GROUP BY kind
