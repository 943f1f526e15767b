-- What the work above delivery keeps for itself: manifests, skill settings, review causes, the state of a migration.
-- A note is small and has a key; what it says is known to its collection alone.
CREATE TABLE notes (
  collection TEXT NOT NULL,
  key        TEXT NOT NULL,
  value      BLOB NOT NULL,
  at_ms      INTEGER NOT NULL,
  PRIMARY KEY (collection, key)
) STRICT, WITHOUT ROWID;
