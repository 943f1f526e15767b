-- ENV-6: what could not be read is kept once for each event, is bounded for each source, and is forgotten after a while.
CREATE INDEX quarantine_by_source ON quarantine (source_node_id, id);
CREATE INDEX quarantine_by_event ON quarantine (source_node_id, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX quarantine_by_age ON quarantine (at_ms);
-- How many events of a source were dropped because there were too many.
CREATE TABLE quarantine_dropped (
  source_node_id TEXT PRIMARY KEY,
  events         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Closed incidents are forgotten after a while, the oldest first.
CREATE INDEX incidents_closed ON incidents (closed_at_ms) WHERE closed_at_ms IS NOT NULL;

-- The same for invites that were used, withdrawn or have expired, and for sessions of agents outside that have ended.
CREATE INDEX invites_ended ON invites (coalesce(consumed_at_ms, revoked_at_ms, expires_at_ms));
CREATE INDEX agent_invites_ended ON agent_invites (coalesce(consumed_at_ms, withdrawn_at_ms, expires_at_ms));
CREATE INDEX agent_sessions_ended ON agent_sessions (coalesce(ended_at_ms, expires_at_ms));
CREATE INDEX refresh_tokens_by_session ON refresh_tokens (session_id);
