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
