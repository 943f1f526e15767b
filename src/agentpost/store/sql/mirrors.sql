-- name: mirrors
SELECT source_node_id, epoch, last_seq, last_chain, floor_seq, floor_chain FROM mirrors ORDER BY source_node_id

-- name: mirror
SELECT source_node_id, epoch, last_seq, last_chain, floor_seq, floor_chain FROM mirrors WHERE source_node_id = ?

-- name: move_mirror
INSERT INTO mirrors (source_node_id, epoch, last_seq, last_chain, floor_seq, floor_chain, updated_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (source_node_id) DO UPDATE
SET epoch = excluded.epoch, last_seq = excluded.last_seq, last_chain = excluded.last_chain,
  floor_seq = excluded.floor_seq, floor_chain = excluded.floor_chain, updated_at_ms = excluded.updated_at_ms

-- name: keep_mirror_events
-- Each value is one row in one piece: 32 bytes of chain, 20 digits of seq, and the body.
INSERT INTO mirror_events (source_node_id, seq, chain, body)
SELECT ?1, CAST(CAST(substr(value, 33, 20) AS TEXT) AS INTEGER), substr(value, 1, 32), substr(value, 53)
FROM carray(?2)

-- name: keep_mirror_head
INSERT INTO mirror_heads (source_node_id, seq, head, signature, at_ms) VALUES (?, ?, ?, ?, ?)

-- name: extend_mirror_streams
-- Each value is one row in one piece: 32 bytes of chain, 20 digits of seq, and the reader.
INSERT INTO mirror_streams (source_node_id, consumer_node_id, seq, chain)
SELECT ?1, CAST(substr(value, 53) AS TEXT), CAST(CAST(substr(value, 33, 20) AS TEXT) AS INTEGER), substr(value, 1, 32)
FROM carray(?2)

-- name: mirror_stream_end
SELECT seq, chain FROM mirror_streams WHERE source_node_id = ? AND consumer_node_id = ? ORDER BY seq DESC LIMIT 1

-- name: next_in_mirror_stream
SELECT min(seq) FROM mirror_streams WHERE source_node_id = ? AND consumer_node_id = ? AND seq > ?

-- name: mirror_head_covering
SELECT seq, head, signature FROM mirror_heads WHERE source_node_id = ? AND seq >= ? ORDER BY seq LIMIT 1

-- name: last_mirror_head
SELECT seq, head, signature FROM mirror_heads WHERE source_node_id = ? ORDER BY seq DESC LIMIT 1

-- name: mirror_stream_slice
SELECT s.seq, s.chain, e.body
FROM mirror_streams AS s JOIN mirror_events AS e ON e.source_node_id = s.source_node_id AND e.seq = s.seq
WHERE s.source_node_id = ? AND s.consumer_node_id = ? AND s.seq > ? AND s.seq <= ? ORDER BY s.seq

-- name: mirror_slice
SELECT seq, chain, body FROM mirror_events WHERE source_node_id = ? AND seq > ? AND seq <= ? ORDER BY seq

-- name: mirror_readers
WITH RECURSIVE readers (node_id) AS (
  SELECT min(consumer_node_id) FROM mirror_streams WHERE source_node_id = ?1
  UNION ALL
  SELECT (
    SELECT min(consumer_node_id) FROM mirror_streams WHERE source_node_id = ?1 AND consumer_node_id > node_id
  ) FROM readers
  WHERE node_id IS NOT NULL
)
SELECT node_id FROM readers WHERE node_id IS NOT NULL

-- name: prune_mirror_stream
DELETE FROM mirror_streams WHERE source_node_id = ? AND consumer_node_id = ? AND seq <= ?

-- name: prune_mirror_events
DELETE FROM mirror_events WHERE source_node_id = ? AND seq <= ?

-- name: prune_mirror_heads
-- The last head stays: it tells readers how far they may pass what was not for them.
DELETE FROM mirror_heads
WHERE source_node_id = ?1 AND seq <= ?2 AND seq < (SELECT max(seq) FROM mirror_heads WHERE source_node_id = ?1)

-- name: move_mirror_floor
-- Before the events go: the last of them has the chain that the next one builds on.
UPDATE mirrors SET floor_seq = ?1,
  floor_chain = (SELECT chain FROM mirror_events WHERE source_node_id = ?2 AND seq = ?1)
WHERE source_node_id = ?2

-- name: drop_mirror_events
DELETE FROM mirror_events WHERE source_node_id = ?

-- name: drop_mirror_heads
DELETE FROM mirror_heads WHERE source_node_id = ?

-- name: drop_mirror_streams
DELETE FROM mirror_streams WHERE source_node_id = ?
