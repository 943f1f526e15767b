-- name: name_payload
-- An event that was sent again stands further up in its mirror.
INSERT INTO payload_readers (sha256, node_id, source_node_id, seq, size_bytes) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (sha256, node_id, source_node_id) DO UPDATE SET seq = max(seq, excluded.seq)

-- name: name_payload_event
INSERT INTO payload_events (sha256, event_id) VALUES (?, ?) ON CONFLICT (sha256, event_id) DO NOTHING

-- name: unplace_payloads
-- Their places were in a mirror that is no more. Whoever may read them still may.
UPDATE payload_readers SET seq = 0 WHERE source_node_id = ?

-- name: may_read_payload
SELECT count(*) FROM payload_readers WHERE sha256 = ? AND node_id = ?

-- name: missing_payloads
SELECT p.sha256, p.source_node_id, p.seq, p.size_bytes
FROM mirrors CROSS JOIN payload_readers AS p INDEXED BY payload_readers_by_source
WHERE p.source_node_id = mirrors.source_node_id AND p.seq > mirrors.floor_seq
  AND NOT EXISTS (SELECT 1 FROM blobs AS b WHERE b.sha256 = p.sha256 AND b.complete)
GROUP BY p.sha256 ORDER BY p.source_node_id, p.seq LIMIT ?

-- name: payloads_in_order
-- The payloads that are known here, with their sizes if they are here, since when they are marked as unneeded, and
-- whether somebody needs them: an event that is kept, a delivery without a good end, or a mirror that has the event.
SELECT known.sha256, blobs.size_bytes, unneeded_payloads.since_ms, EXISTS (
    SELECT 1 FROM payload_events AS named WHERE named.sha256 = known.sha256 AND (
      EXISTS (SELECT 1 FROM outbox WHERE event_id = named.event_id)
      OR EXISTS (SELECT 1 FROM inbox WHERE event_id = named.event_id)
      OR EXISTS (SELECT 1 FROM task_events WHERE event_id = named.event_id)
      OR EXISTS (
        SELECT 1 FROM deliveries WHERE event_id = named.event_id
          AND (state NOT IN ('Processed', 'Replied') OR is_undelivered IS NOT NULL)
      )
    )
  ) OR EXISTS (
    SELECT 1 FROM payload_readers AS named JOIN mirrors ON mirrors.source_node_id = named.source_node_id
    WHERE named.sha256 = known.sha256 AND named.seq > mirrors.floor_seq
  )
FROM (
  SELECT sha256 FROM blobs WHERE sha256 > ?1
  UNION SELECT sha256 FROM payload_events WHERE sha256 > ?1
  UNION SELECT sha256 FROM payload_readers WHERE sha256 > ?1
  ORDER BY sha256 LIMIT ?2
) AS known
LEFT JOIN blobs ON blobs.sha256 = known.sha256
LEFT JOIN unneeded_payloads ON unneeded_payloads.sha256 = known.sha256
ORDER BY known.sha256

-- name: mark_unneeded
INSERT INTO unneeded_payloads (sha256, since_ms) VALUES (?, ?)
ON CONFLICT (sha256) DO UPDATE SET since_ms = excluded.since_ms

-- name: unmark_unneeded
DELETE FROM unneeded_payloads WHERE sha256 = ?

-- name: forget_payload_readers
DELETE FROM payload_readers WHERE sha256 = ?

-- name: forget_payload_events
DELETE FROM payload_events WHERE sha256 = ?

-- name: payload_usage
SELECT count(*), coalesce(sum(size_bytes), 0) FROM blobs

-- name: sources_of_payload
-- The other gateways that named it, in a mirror or in what was taken.
SELECT DISTINCT source_node_id FROM payload_readers
WHERE sha256 = ?1 AND source_node_id <> (SELECT node_id FROM gateway)
UNION
SELECT i.source_node_id FROM payload_events AS p JOIN inbox AS i ON i.event_id = p.event_id
WHERE p.sha256 = ?1 AND i.source_node_id <> (SELECT node_id FROM gateway)

-- name: blobs_in_order
SELECT sha256, size_bytes, chunk_bytes, chunks, complete FROM blobs WHERE sha256 > ? ORDER BY sha256 LIMIT ?
