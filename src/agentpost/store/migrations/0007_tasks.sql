-- TASK-5: the events that concern tasks, in the order in which this gateway said or heard them, as long as their tasks are
-- kept: outbox and inbox are pruned earlier. An event of this gateway for one of its own agents is both said and heard.
CREATE TABLE task_events (
  place    INTEGER PRIMARY KEY,
  task_id  TEXT NOT NULL,
  event_id TEXT NOT NULL,
  is_own   INTEGER NOT NULL,
  at_ms    INTEGER NOT NULL,
  body     BLOB NOT NULL,
  UNIQUE (event_id, is_own)
) STRICT;
CREATE INDEX task_events_by_task ON task_events (task_id, place);

-- What those events make of each task: a projection, which `agentpost rebuild` makes anew from them.
CREATE TABLE tasks (
  task_id              TEXT PRIMARY KEY,
  is_open              INTEGER NOT NULL,
  state                TEXT NOT NULL,
  requester_agent_id   TEXT NOT NULL,
  accepted_by_agent_id TEXT,
  updated_at_ms        INTEGER NOT NULL,
  record               BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tasks_open ON tasks (task_id) WHERE is_open = 1;
CREATE INDEX tasks_over ON tasks (updated_at_ms) WHERE is_open = 0;
