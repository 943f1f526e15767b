-- PIPE-7: a payload goes when no event that is kept names it. Two sources may name the same one, so each counts alone.
CREATE TABLE payload_readers_by_name (
  sha256         TEXT NOT NULL,
  node_id        TEXT NOT NULL,
  source_node_id TEXT NOT NULL,
  seq            INTEGER NOT NULL,
  size_bytes     INTEGER NOT NULL,
  PRIMARY KEY (sha256, node_id, source_node_id)
) STRICT, WITHOUT ROWID;
INSERT INTO payload_readers_by_name SELECT sha256, node_id, source_node_id, seq, size_bytes FROM payload_readers;
DROP TABLE payload_readers;
ALTER TABLE payload_readers_by_name RENAME TO payload_readers;
CREATE INDEX payload_readers_by_source ON payload_readers (source_node_id, seq);

-- The events that name a payload and were said or taken here, whether or not they are still kept. Those of mirrors stand
-- in payload_readers.
CREATE TABLE payload_events (
  sha256   TEXT NOT NULL,
  event_id TEXT NOT NULL,
  PRIMARY KEY (sha256, event_id)
) STRICT, WITHOUT ROWID;

-- Since when nobody has needed a payload. It goes after a time of grace.
CREATE TABLE unneeded_payloads (
  sha256   TEXT PRIMARY KEY,
  since_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What is kept already. An event is msgpack: in its map the key `payloadRef`, in that of the reference the key `sha256`
-- and a text of 64 bytes. One name too many keeps a payload for longer and does no other harm.
INSERT OR IGNORE INTO payload_events (sha256, event_id)
SELECT CAST(substr(ref, instr(ref, x'A6736861323536D940') + 9, 64) AS TEXT), event_id
FROM (
  SELECT event_id, substr(body, instr(body, x'AA7061796C6F6164526566')) AS ref
  FROM (
    SELECT event_id, body FROM outbox
    UNION ALL SELECT event_id, body FROM inbox
    UNION ALL SELECT event_id, body FROM dead_letter_events
    UNION ALL SELECT event_id, body FROM task_events
  )
  WHERE instr(body, x'AA7061796C6F6164526566') > 0
)
WHERE instr(ref, x'A6736861323536D940') > 0;
