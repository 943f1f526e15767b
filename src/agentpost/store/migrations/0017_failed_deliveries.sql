-- RTY-7: what ended without the agent having dealt with it is listed and sent again, whether no gateway accepted it or its
-- agent failed. It stays until somebody purges it.
ALTER TABLE deliveries ADD COLUMN is_undelivered INTEGER;
UPDATE deliveries SET is_undelivered = 1
WHERE state = 'DeadLetter' OR (state = 'Processed' AND reason IS NOT NULL AND reason NOT IN ('taken', 'claim_lost', 'invalid_transition'));
CREATE INDEX deliveries_undelivered ON deliveries (is_undelivered, event_id, to_agent_id) WHERE is_undelivered IS NOT NULL;
DROP INDEX deliveries_ended;
CREATE INDEX deliveries_ended ON deliveries (closed_at_ms) WHERE closed_at_ms IS NOT NULL AND is_undelivered IS NULL;

-- The last attempt of an agent that failed with a message of this gateway, as the agent's gateway told it. `body` is the
-- event that told it: the error is sealed in there. Without `next_at_ms` there is no other try.
CREATE TABLE failed_attempts (
  event_id      TEXT NOT NULL,
  to_agent_id   TEXT NOT NULL,
  attempt       INTEGER NOT NULL,
  most_attempts INTEGER NOT NULL,
  first_at_ms   INTEGER NOT NULL,
  at_ms         INTEGER NOT NULL,
  next_at_ms    INTEGER,
  holds_back    INTEGER NOT NULL,
  body          BLOB NOT NULL,
  PRIMARY KEY (event_id, to_agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX failed_attempts_next ON failed_attempts (to_agent_id, next_at_ms) WHERE next_at_ms IS NOT NULL;
