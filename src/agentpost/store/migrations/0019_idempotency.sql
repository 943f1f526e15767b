-- The answer to a call that came with an idempotency key, kept in the transaction of what the call wrote. `key` and
-- `request` are sha256; `seq` is the place of the first event that the call appended.
CREATE TABLE idempotency_keys (
  agent_id      TEXT NOT NULL,
  key           BLOB NOT NULL,
  request       BLOB NOT NULL,
  answer        BLOB NOT NULL,
  seq           INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  PRIMARY KEY (agent_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at_ms);
