-- What the delivery engine keeps: the streams of the outbox, mirrors of others, local agents, incidents.

-- The events of the outbox that name a gateway, with a hash chain of their own. It grows with the outbox.
CREATE TABLE streams (
  consumer_node_id TEXT NOT NULL,
  seq              INTEGER NOT NULL,
  chain            BLOB NOT NULL,
  PRIMARY KEY (consumer_node_id, seq)
) STRICT, WITHOUT ROWID;
-- How far each stream was pruned, with the chain value that its first kept event builds on.
CREATE TABLE stream_floors (
  consumer_node_id TEXT PRIMARY KEY,
  seq              INTEGER NOT NULL,
  chain            BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- PIPE-9: the outboxes of other nodes, kept for their readers: all events, and the heads that their owners signed.
CREATE TABLE mirrors (
  source_node_id TEXT PRIMARY KEY,
  epoch          TEXT NOT NULL,
  last_seq       INTEGER NOT NULL,
  last_chain     BLOB NOT NULL,
  floor_seq      INTEGER NOT NULL,
  updated_at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE mirror_events (
  id             INTEGER PRIMARY KEY,
  source_node_id TEXT NOT NULL,
  seq            INTEGER NOT NULL,
  chain          BLOB NOT NULL,
  body           BLOB NOT NULL,
  UNIQUE (source_node_id, seq)
) STRICT;
CREATE TABLE mirror_heads (
  source_node_id TEXT NOT NULL,
  seq            INTEGER NOT NULL,
  head           BLOB NOT NULL,
  signature      BLOB NOT NULL,
  at_ms          INTEGER NOT NULL,
  PRIMARY KEY (source_node_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE mirror_streams (
  source_node_id   TEXT NOT NULL,
  consumer_node_id TEXT NOT NULL,
  seq              INTEGER NOT NULL,
  chain            BLOB NOT NULL,
  PRIMARY KEY (source_node_id, consumer_node_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE mirror_stream_floors (
  source_node_id   TEXT NOT NULL,
  consumer_node_id TEXT NOT NULL,
  seq              INTEGER NOT NULL,
  chain            BLOB NOT NULL,
  PRIMARY KEY (source_node_id, consumer_node_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE agents (
  agent_id      TEXT PRIMARY KEY,
  runtime       TEXT NOT NULL,
  options       TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  is_paused     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE incidents (
  id           INTEGER PRIMARY KEY,
  kind         TEXT NOT NULL,
  subject      TEXT NOT NULL,
  at_ms        INTEGER NOT NULL,
  corr_id      TEXT,
  detail       TEXT NOT NULL,
  closed_at_ms INTEGER
) STRICT;
CREATE UNIQUE INDEX incidents_open ON incidents (kind, subject) WHERE closed_at_ms IS NULL;
CREATE INDEX incidents_open_in_order ON incidents (id) WHERE closed_at_ms IS NULL;

-- An agent looks through its inbox, settled or not, and through a conversation.
ALTER TABLE ledger ADD COLUMN read_at_ms INTEGER;
CREATE INDEX ledger_by_agent ON ledger (to_agent_id, inbox_seq);
CREATE INDEX ledger_waiting ON ledger (to_agent_id, due_at_ms) WHERE state = 'queued';
CREATE INDEX ledger_settled ON ledger (settled_at_ms) WHERE settled_at_ms IS NOT NULL;
ALTER TABLE inbox ADD COLUMN corr_id TEXT NOT NULL DEFAULT '';
CREATE INDEX inbox_by_corr ON inbox (corr_id);

-- The sender asks what became of a conversation, and which deliveries ended badly.
ALTER TABLE deliveries ADD COLUMN corr_id TEXT NOT NULL DEFAULT '';
ALTER TABLE deliveries ADD COLUMN from_agent_id TEXT NOT NULL DEFAULT '';
CREATE INDEX deliveries_by_corr ON deliveries (corr_id);
CREATE INDEX deliveries_by_state ON deliveries (state);
-- RTY-7: a dead letter stays until somebody purges it.
CREATE INDEX deliveries_ended ON deliveries (closed_at_ms) WHERE closed_at_ms IS NOT NULL AND state <> 'DeadLetter';
