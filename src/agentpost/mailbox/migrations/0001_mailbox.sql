-- A mailbox file. Sessions, senders and ids are data. Whatever grows without bound is read through an index.

CREATE TABLE sessions (
  id      INTEGER PRIMARY KEY,
  name    TEXT NOT NULL UNIQUE,
  -- How many messages are pending: an enqueue tells it, and counting a million of them would not be flat.
  pending INTEGER NOT NULL DEFAULT 0
) STRICT;

-- What is pending, in flight or dead. `id` is the order of arrival. A message that ended well is no longer here.
CREATE TABLE messages (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
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
  body       BLOB NOT NULL,
  reason     TEXT,
  failed_at  INTEGER,
  attempts   INTEGER
) STRICT;
CREATE INDEX messages_next ON messages (session, rank, id) WHERE state = 'pending';
CREATE INDEX messages_of_pair ON messages (session, sender, id) WHERE state IN ('pending', 'in_flight');
CREATE INDEX messages_held ON messages (session, sender, due_at_ms) WHERE state = 'pending' AND due_at_ms > 0;
CREATE INDEX messages_in_hand ON messages (session, rank, id) WHERE state = 'in_flight';
CREATE INDEX messages_in_flight ON messages (due_at_ms) WHERE state = 'in_flight';
CREATE INDEX messages_living ON messages (expires_at_ms) WHERE state IN ('pending', 'in_flight');
CREATE INDEX messages_dead ON messages (session, id) WHERE state = 'dead_letter';

-- MBX-3: every id that was seen, with where its message is, or how it ended.
CREATE TABLE remembered (
  session INTEGER NOT NULL,
  msg_id  TEXT NOT NULL,
  message INTEGER,
  ended   TEXT,
  seen_at_ms INTEGER NOT NULL,
  PRIMARY KEY (session, msg_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX remembered_by_age ON remembered (seen_at_ms);
