-- What a call costs is the pages it changes. What moves between pending and in flight is now one small tree, a dequeue
-- does not touch the message itself, and an ack only what is remembered of it: the message is removed a little later,
-- with others. Dead letters have a table of their own, so the messages by their ids are the living, oldest first.

-- The line of each session (`line` is its id): what is pending, by rank. Line 0: what is in flight, by its time.
CREATE TABLE lines (
  line    INTEGER NOT NULL,
  -- pending: the rank; in flight: the ack has to come before this, in ms; -1: the head of a session's line.
  place   INTEGER NOT NULL,
  -- 0 in a head.
  message INTEGER NOT NULL,
  -- In a head: how many are pending. An enqueue tells it, and counting a million of them would not be flat.
  pending INTEGER,
  PRIMARY KEY (line, place, message)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letters (
  id         INTEGER PRIMARY KEY,
  session    INTEGER NOT NULL,
  msg_id     TEXT NOT NULL,
  rank       INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  reason     TEXT NOT NULL,
  failed_at  INTEGER NOT NULL,
  attempts   INTEGER NOT NULL,
  body       BLOB NOT NULL
) STRICT;

CREATE TABLE messages_now (
  -- The order of arrival. A number may be given again once its message is gone; whoever is there has a lower one.
  id         INTEGER PRIMARY KEY,
  session    INTEGER NOT NULL,
  msg_id     TEXT NOT NULL,
  sender     TEXT NOT NULL,
  -- MBX-8: created_at, but never less than that of an earlier message of the same sender: one order for both rules.
  rank       INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  -- Of one that waits for another try: not before this.
  retry_at_ms   INTEGER,
  body       BLOB NOT NULL
) STRICT;

-- An id is remembered: pending or in flight (until when?) as long as it has not ended, and then how it ended.
ALTER TABLE remembered ADD COLUMN in_flight_until_ms INTEGER;
UPDATE remembered SET ended = 'dead_letter'
WHERE message IN (SELECT id FROM messages WHERE state = 'dead_letter');
-- No ack comes in time after a message has expired, so the earlier of the two is its time.
UPDATE remembered
SET in_flight_until_ms = (SELECT min(due_at_ms, expires_at_ms) FROM messages WHERE id = remembered.message)
WHERE message IN (SELECT id FROM messages WHERE state = 'in_flight');

INSERT INTO lines SELECT id, -1, 0, pending FROM sessions;
INSERT INTO lines SELECT session, rank, id, NULL FROM messages WHERE state = 'pending';
INSERT INTO lines SELECT 0, min(due_at_ms, expires_at_ms), id, NULL FROM messages WHERE state = 'in_flight';
INSERT INTO dead_letters
SELECT id, session, msg_id, rank, attempt, reason, failed_at, attempts, body FROM messages WHERE state = 'dead_letter';
INSERT INTO messages_now
SELECT id, session, msg_id, sender, rank, created_at, attempt, expires_at_ms,
       CASE WHEN state = 'pending' AND due_at_ms > 0 THEN due_at_ms END, body
FROM messages WHERE state <> 'dead_letter';

ALTER TABLE sessions DROP COLUMN pending;
DROP TABLE messages;
ALTER TABLE messages_now RENAME TO messages;
CREATE INDEX messages_of_pair ON messages (session, sender, id);
CREATE INDEX messages_held ON messages (session, sender, retry_at_ms) WHERE retry_at_ms IS NOT NULL;
CREATE INDEX dead_letters_of_session ON dead_letters (session, rank, id);
