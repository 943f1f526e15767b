-- How far the walk through old messages and old ids has come. Each process goes on where the last one stopped, however
-- short it lives.
CREATE TABLE walk (
  the_only INTEGER PRIMARY KEY CHECK (the_only = 1),
  message  INTEGER NOT NULL,
  session  INTEGER NOT NULL,
  msg_id   TEXT NOT NULL
) STRICT;
INSERT INTO walk VALUES (1, 0, 0, '');
