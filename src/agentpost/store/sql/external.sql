-- name: create_agent_invite
INSERT INTO agent_invites (invite_id, token_hash, agent_id, scopes, origins, max_sessions, created_by, created_at_ms,
  expires_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: agent_invite_by_hash
SELECT invite_id, token_hash, agent_id, scopes, origins, max_sessions, created_by, created_at_ms, expires_at_ms,
  consumed_at_ms, session_id, withdrawn_at_ms
FROM agent_invites WHERE token_hash = ?

-- name: agent_invite
SELECT invite_id, token_hash, agent_id, scopes, origins, max_sessions, created_by, created_at_ms, expires_at_ms,
  consumed_at_ms, session_id, withdrawn_at_ms
FROM agent_invites WHERE invite_id = ?

-- name: consume_agent_invite
UPDATE agent_invites SET consumed_at_ms = ?, session_id = ? WHERE invite_id = ?

-- name: withdraw_agent_invites
UPDATE agent_invites SET withdrawn_at_ms = ?
WHERE agent_id = ? AND consumed_at_ms IS NULL AND withdrawn_at_ms IS NULL

-- name: create_agent_session
INSERT INTO agent_sessions (session_id, family_id, agent_id, invite_id, scopes, origins, key_thumbprint, created_at_ms,
  refreshed_at_ms, expires_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: agent_session
SELECT session_id, family_id, agent_id, invite_id, scopes, origins, key_thumbprint, created_at_ms, refreshed_at_ms,
  expires_at_ms, ended_at_ms, ended_by
FROM agent_sessions WHERE session_id = ?

-- name: agent_session_by_family
SELECT session_id, family_id, agent_id, invite_id, scopes, origins, key_thumbprint, created_at_ms, refreshed_at_ms,
  expires_at_ms, ended_at_ms, ended_by
FROM agent_sessions WHERE family_id = ?

-- name: agent_sessions
SELECT session_id, family_id, agent_id, invite_id, scopes, origins, key_thumbprint, created_at_ms, refreshed_at_ms,
  expires_at_ms, ended_at_ms, ended_by
FROM agent_sessions ORDER BY session_id DESC LIMIT ?

-- name: agent_sessions_of
SELECT session_id, family_id, agent_id, invite_id, scopes, origins, key_thumbprint, created_at_ms, refreshed_at_ms,
  expires_at_ms, ended_at_ms, ended_by
FROM agent_sessions WHERE agent_id = ? ORDER BY session_id DESC LIMIT ?

-- name: count_live_sessions
SELECT count(*) FROM agent_sessions WHERE agent_id = ? AND ended_at_ms IS NULL AND expires_at_ms > ?

-- name: refresh_agent_session
UPDATE agent_sessions SET refreshed_at_ms = ?, expires_at_ms = ? WHERE session_id = ?

-- name: end_agent_session
UPDATE agent_sessions SET ended_at_ms = ?, ended_by = ? WHERE session_id = ? AND ended_at_ms IS NULL

-- name: create_refresh_token
INSERT INTO refresh_tokens (token_hash, session_id, issued_at_ms, expires_at_ms) VALUES (?, ?, ?, ?)

-- name: refresh_token
SELECT token_hash, session_id, issued_at_ms, expires_at_ms, spent_at_ms, successor_hash
FROM refresh_tokens WHERE token_hash = ?

-- name: spend_refresh_token
UPDATE refresh_tokens SET spent_at_ms = ?, successor_hash = ? WHERE token_hash = ?

-- name: forget_refresh_tokens
DELETE FROM refresh_tokens WHERE expires_at_ms <= ?

-- name: token_keys
SELECT number, made_at_ms, retired_at_ms FROM token_keys ORDER BY number

-- name: retire_token_keys
UPDATE token_keys SET retired_at_ms = ? WHERE retired_at_ms IS NULL

-- name: drop_token_keys
DELETE FROM token_keys WHERE number < ?

-- name: add_token_key
INSERT INTO token_keys (number, made_at_ms) VALUES (?, ?)

-- name: audit_of_session
SELECT id, at_ms, actor, action, subject, corr_id, session_id, detail FROM audit
WHERE session_id = ? AND id > ? ORDER BY id LIMIT ?

-- name: audit_of_session_and_corr
-- A conversation is shorter than a session.
SELECT id, at_ms, actor, action, subject, corr_id, session_id, detail FROM audit INDEXED BY audit_by_corr
WHERE corr_id = ? AND session_id = ? AND id > ? ORDER BY id LIMIT ?

-- name: audit_of_corr
SELECT id, at_ms, actor, action, subject, corr_id, session_id, detail FROM audit
WHERE corr_id = ? AND id > ? ORDER BY id LIMIT ?
