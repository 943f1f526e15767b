-- name: extend_streams
-- Each value is one row in one piece: 32 bytes of chain, 20 digits of seq, and the reader.
INSERT INTO streams (consumer_node_id, seq, chain)
SELECT CAST(substr(value, 53) AS TEXT), CAST(CAST(substr(value, 33, 20) AS TEXT) AS INTEGER), substr(value, 1, 32)
FROM carray(?1)

-- name: stream_slice
SELECT s.seq, s.chain, o.body, o.chain
FROM streams AS s JOIN outbox AS o ON o.seq = s.seq
WHERE s.consumer_node_id = ? AND s.seq > ? ORDER BY s.seq LIMIT ?

-- name: stream_end
SELECT seq, chain FROM streams WHERE consumer_node_id = ? ORDER BY seq DESC LIMIT 1

-- name: stream_floor
SELECT seq, chain FROM stream_floors WHERE consumer_node_id = ?

-- name: next_in_stream
SELECT min(seq) FROM streams WHERE consumer_node_id = ? AND seq > ?

-- name: stream_readers
-- One step of the index for each reader, however long the streams are.
WITH RECURSIVE readers (node_id) AS (
  SELECT min(consumer_node_id) FROM streams
  UNION ALL
  SELECT (SELECT min(consumer_node_id) FROM streams WHERE consumer_node_id > node_id) FROM readers
  WHERE node_id IS NOT NULL
)
SELECT node_id FROM readers WHERE node_id IS NOT NULL

-- name: move_stream_floor
INSERT INTO stream_floors (consumer_node_id, seq, chain)
SELECT consumer_node_id, seq, chain FROM streams WHERE consumer_node_id = ? AND seq <= ? ORDER BY seq DESC LIMIT 1
ON CONFLICT (consumer_node_id) DO UPDATE SET seq = excluded.seq, chain = excluded.chain

-- name: prune_stream
DELETE FROM streams WHERE consumer_node_id = ? AND seq <= ?

-- name: stream_chain_at
SELECT chain FROM streams WHERE consumer_node_id = ? AND seq = ?

-- name: count_streams
SELECT count(*) FROM streams
