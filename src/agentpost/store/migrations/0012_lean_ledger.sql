-- Every index on the ledger is written twice for each message: when it comes, and when it is settled. What the index of
-- the backlog can answer needs no other one, and what is due at once does not wait.
DROP INDEX ledger_open;
DROP INDEX ledger_waiting;
CREATE INDEX ledger_waiting ON ledger (to_agent_id, due_at_ms) WHERE state = 'queued' AND due_at_ms > 0;
