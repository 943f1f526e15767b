-- PIPE-5: the gateways that an event names as readers of its payload. `seq` is where the event stands in the mirror of
-- its source; 0 for an event of this gateway. A payload that is not here yet is looked for after a restart.
CREATE TABLE payload_readers (
  sha256         TEXT NOT NULL,
  node_id        TEXT NOT NULL,
  source_node_id TEXT NOT NULL,
  seq            INTEGER NOT NULL,
  size_bytes     INTEGER NOT NULL,
  PRIMARY KEY (sha256, node_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX payload_readers_by_source ON payload_readers (source_node_id, seq);

-- PIPE-9: the chain that the first event of a mirror builds on, so that another mirror can check that one, too.
ALTER TABLE mirrors ADD COLUMN floor_chain BLOB NOT NULL
  DEFAULT x'0000000000000000000000000000000000000000000000000000000000000000';

-- RTY-7: a dead letter can be looked into and sent again until it is purged, also when its event has left the outbox.
CREATE TABLE dead_letter_events (
  event_id TEXT PRIMARY KEY,
  seq      INTEGER NOT NULL,
  chain    BLOB NOT NULL,
  body     BLOB NOT NULL
) STRICT;
