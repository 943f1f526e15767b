-- The Yjs room: its updates in the order in which they were merged. A compaction puts one in the place of all.
CREATE TABLE room_log (
  id   INTEGER PRIMARY KEY,
  body BLOB NOT NULL
) STRICT;
