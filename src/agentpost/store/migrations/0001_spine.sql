-- The spine of a gateway's home: its outbox, its inbox, and what became of both.
-- Event ids are ULIDs, so every index on them grows at its right edge and stays cheap at any size.

CREATE TABLE gateway (
  only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
  node_id    TEXT NOT NULL,
  epoch      TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  -- How far the streams were pruned, with the chain value that the first kept event builds on.
  outbox_floor_seq   INTEGER NOT NULL DEFAULT 0,
  outbox_floor_chain BLOB NOT NULL,
  inbox_floor_seq    INTEGER NOT NULL DEFAULT 0
) STRICT;

-- pipe:<node>:out. One event may stand here more than once: a resend keeps its event_id and takes a new seq.
CREATE TABLE outbox (
  seq      INTEGER PRIMARY KEY,
  event_id TEXT NOT NULL,
  chain    BLOB NOT NULL,
  body     BLOB NOT NULL
) STRICT;
CREATE INDEX outbox_by_event ON outbox (event_id);
CREATE TRIGGER outbox_is_append_only BEFORE UPDATE ON outbox
BEGIN SELECT RAISE(ABORT, 'the outbox is append-only'); END;

-- The sender's view, one row for each recipient of each event.
CREATE TABLE deliveries (
  event_id    TEXT NOT NULL,
  to_agent_id TEXT NOT NULL,
  to_node_id  TEXT,
  route_decision TEXT NOT NULL,
  seq         INTEGER NOT NULL,
  state       TEXT NOT NULL,
  attempts    INTEGER NOT NULL,
  due_at_ms   INTEGER,
  emitted_at_ms  INTEGER NOT NULL,
  accepted_at_ms INTEGER,
  closed_at_ms   INTEGER,
  answered_by_event_id TEXT,
  reason      TEXT,
  PRIMARY KEY (event_id, to_agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (due_at_ms) WHERE due_at_ms IS NOT NULL;
-- PIPE-8: what may still have to be sent again, in outbox order.
CREATE INDEX deliveries_unaccepted ON deliveries (seq) WHERE state IN ('Emitted', 'RetryPending');

-- pipe:<node>:inbox. The gateway's own durable record of what it took for its agents.
CREATE TABLE inbox (
  seq            INTEGER PRIMARY KEY,
  event_id       TEXT NOT NULL UNIQUE,
  source_node_id TEXT NOT NULL,
  source_epoch   TEXT NOT NULL,
  source_seq     INTEGER NOT NULL,
  received_at_ms INTEGER NOT NULL,
  body           BLOB NOT NULL
) STRICT;

-- RTY-3: one row for each (event, agent), which outlives the inbox row, so that a late repeat is still a repeat.
CREATE TABLE ledger (
  event_id      TEXT NOT NULL,
  to_agent_id   TEXT NOT NULL,
  inbox_seq     INTEGER NOT NULL,
  state         TEXT NOT NULL,
  attempts      INTEGER NOT NULL DEFAULT 0,
  due_at_ms     INTEGER NOT NULL DEFAULT 0,
  accepted_at_ms INTEGER NOT NULL,
  engaged_at_ms INTEGER,
  settled_at_ms INTEGER,
  outcome       TEXT,
  error         TEXT,
  PRIMARY KEY (event_id, to_agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_backlog ON ledger (to_agent_id, inbox_seq) WHERE settled_at_ms IS NULL;
CREATE INDEX ledger_open ON ledger (inbox_seq) WHERE settled_at_ms IS NULL;

-- CUR-1: how far this gateway has read each source.
CREATE TABLE cursors (
  source_node_id TEXT PRIMARY KEY,
  epoch          TEXT NOT NULL,
  last_seq       INTEGER NOT NULL,
  last_chain     BLOB NOT NULL,
  updated_at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- PIPE-7: how far each subscriber says it has read this gateway's outbox.
CREATE TABLE subscribers (
  consumer_node_id TEXT PRIMARY KEY,
  epoch            TEXT NOT NULL,
  last_seq         INTEGER NOT NULL,
  updated_at_ms    INTEGER NOT NULL,
  lease_expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- ENV-6: what was read and could not be understood, with the reason.
CREATE TABLE quarantine (
  id             INTEGER PRIMARY KEY,
  source_node_id TEXT NOT NULL,
  source_epoch   TEXT NOT NULL,
  source_seq     INTEGER,
  event_id       TEXT,
  code           TEXT NOT NULL,
  message        TEXT NOT NULL,
  at_ms          INTEGER NOT NULL,
  body           BLOB NOT NULL
) STRICT;

-- PIPE-5: encrypted content, addressed by the sha256 of what is stored, in chunks that can be fetched one by one.
CREATE TABLE blobs (
  sha256      TEXT PRIMARY KEY,
  size_bytes  INTEGER NOT NULL,
  chunk_bytes INTEGER NOT NULL,
  chunks      INTEGER NOT NULL,
  complete    INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE blob_chunks (
  id     INTEGER PRIMARY KEY,
  sha256 TEXT NOT NULL,
  part   INTEGER NOT NULL,
  data   BLOB NOT NULL,
  UNIQUE (sha256, part)
) STRICT;

-- AUTH-8, EXT-4: what must never be used twice, until it expires. Only hashes are kept.
CREATE TABLE replay_guard (
  scope      TEXT NOT NULL,
  value_hash BLOB NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  PRIMARY KEY (scope, value_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX replay_guard_expiry ON replay_guard (expires_at_ms);

CREATE TABLE audit (
  id         INTEGER PRIMARY KEY,
  at_ms      INTEGER NOT NULL,
  actor      TEXT NOT NULL,
  action     TEXT NOT NULL,
  subject    TEXT,
  corr_id    TEXT,
  session_id TEXT,
  detail     TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
