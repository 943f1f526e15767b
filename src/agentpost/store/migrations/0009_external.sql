-- Agents outside the mesh: their invites, their sessions, and the tokens that keep a session alive (EXT-2).

-- Only hashes of tokens are kept. `scopes` and `origins` are words with a space between them.
CREATE TABLE agent_invites (
  invite_id       TEXT PRIMARY KEY,
  token_hash      BLOB NOT NULL UNIQUE,
  agent_id        TEXT NOT NULL,
  scopes          TEXT NOT NULL,
  origins         TEXT NOT NULL,
  max_sessions    INTEGER,
  created_by      TEXT NOT NULL,
  created_at_ms   INTEGER NOT NULL,
  expires_at_ms   INTEGER NOT NULL,
  consumed_at_ms  INTEGER,
  session_id      TEXT,
  withdrawn_at_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_invites_open ON agent_invites (agent_id) WHERE consumed_at_ms IS NULL AND withdrawn_at_ms IS NULL;

-- EXT-3: a session is tied to one key, by its thumbprint. It lives for as long as its last refresh token.
CREATE TABLE agent_sessions (
  session_id      TEXT PRIMARY KEY,
  family_id       TEXT NOT NULL UNIQUE,
  agent_id        TEXT NOT NULL,
  invite_id       TEXT NOT NULL,
  scopes          TEXT NOT NULL,
  origins         TEXT NOT NULL,
  key_thumbprint  TEXT NOT NULL,
  created_at_ms   INTEGER NOT NULL,
  refreshed_at_ms INTEGER NOT NULL,
  expires_at_ms   INTEGER NOT NULL,
  ended_at_ms     INTEGER,
  ended_by        TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_sessions_by_agent ON agent_sessions (agent_id, session_id);

-- A family of refresh tokens: each is spent for its successor. One that is spent and has none was never to be used.
CREATE TABLE refresh_tokens (
  token_hash     BLOB PRIMARY KEY,
  session_id     TEXT NOT NULL,
  issued_at_ms   INTEGER NOT NULL,
  expires_at_ms  INTEGER NOT NULL,
  spent_at_ms    INTEGER,
  successor_hash BLOB
) STRICT, WITHOUT ROWID;
CREATE INDEX refresh_tokens_by_expiry ON refresh_tokens (expires_at_ms);

-- The keys that sign access tokens, by number. The keys themselves are derived from the node's own and stand nowhere.
CREATE TABLE token_keys (
  number        INTEGER PRIMARY KEY,
  made_at_ms    INTEGER NOT NULL,
  retired_at_ms INTEGER
) STRICT;

-- OBS-10: all that happened within a session or a conversation, in its order.
CREATE INDEX audit_by_session ON audit (session_id, id) WHERE session_id IS NOT NULL;
CREATE INDEX audit_by_corr ON audit (corr_id, id) WHERE corr_id IS NOT NULL;
