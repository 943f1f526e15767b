-- What an agent asked for, the last changed first: how A2A lists the tasks of a peer, page by page.
CREATE INDEX tasks_by_requester ON tasks (requester_agent_id, updated_at_ms DESC, task_id DESC);
