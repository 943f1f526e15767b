-- A sum over each row that has no hash chain, so that `agentpost store check` can tell damage. Rows of before have none.
ALTER TABLE inbox ADD COLUMN sum INTEGER;
ALTER TABLE task_events ADD COLUMN sum INTEGER;
