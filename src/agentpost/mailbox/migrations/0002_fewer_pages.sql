-- What a commit costs is the pages it changes. One index now shows every state of a session in order, an index that a
-- move from pending to in flight does not concern is not touched by it, and old ids are found by walking through them.

CREATE TABLE messages_now (
  -- The order of arrival. A number may be given again once its message is gone; whoever is there has a lower one.
  id         INTEGER PRIMARY KEY,
  session    INTEGER NOT NULL,
  msg_id     TEXT NOT NULL,
  sender     TEXT NOT NULL,
  state      TEXT NOT NULL,
  -- MBX-8: created_at, but never less than that of an earlier message of the same sender: one order for both rules.
  rank       INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  -- pending: not before this (0 for the first delivery); in flight: the ack has to come before this.
  due_at_ms     INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  -- Of a dead letter; the others have none of it.
  reason     TEXT,
  failed_at  INTEGER,
  attempts   INTEGER,
  body       BLOB NOT NULL
) STRICT;
INSERT INTO messages_now
SELECT id, session, msg_id, sender, state, rank, created_at, attempt, due_at_ms, expires_at_ms, reason, failed_at,
       attempts, body
FROM messages;
DROP TABLE messages;
ALTER TABLE messages_now RENAME TO messages;

CREATE INDEX messages_by_state ON messages (session, state, rank, id);
CREATE INDEX messages_of_pair ON messages (session, sender, id) WHERE failed_at IS NULL;
CREATE INDEX messages_living ON messages (expires_at_ms) WHERE failed_at IS NULL;
CREATE INDEX messages_in_flight ON messages (due_at_ms) WHERE state = 'in_flight';
CREATE INDEX messages_held ON messages (session, sender, due_at_ms) WHERE state = 'pending' AND due_at_ms > 0;

DROP INDEX remembered_by_age;

-- Sessions that are addresses, agent@node: a gateway sends on what waits there.
CREATE INDEX sessions_abroad ON sessions (id) WHERE instr(name, '@') > 0;
