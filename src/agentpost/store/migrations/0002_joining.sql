-- Who may join and who has: invites, and the nodes whose keys this gateway knows.

-- AUTH-2: one use, and only the hash of the token. An invite is for one node.
CREATE TABLE invites (
  invite_id        TEXT PRIMARY KEY,
  token_hash       BLOB NOT NULL UNIQUE,
  tier             TEXT NOT NULL,
  expected_node_id TEXT NOT NULL,
  public_key       TEXT,
  created_by       TEXT NOT NULL,
  created_at_ms    INTEGER NOT NULL,
  expires_at_ms    INTEGER NOT NULL,
  consumed_at_ms   INTEGER,
  consumed_by      TEXT,
  revoked_at_ms    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX invites_open ON invites (expected_node_id) WHERE consumed_at_ms IS NULL AND revoked_at_ms IS NULL;

-- AUTH-7: the key that a node id is pinned to. A node of a lab without proofs has none.
CREATE TABLE known_nodes (
  node_id        TEXT PRIMARY KEY,
  signing_public TEXT,
  sealing_public TEXT,
  tier           TEXT NOT NULL,
  admitted_by    TEXT NOT NULL,
  invite_id      TEXT,
  pinned_at_ms   INTEGER NOT NULL,
  revoked_at_ms  INTEGER
) STRICT, WITHOUT ROWID;
