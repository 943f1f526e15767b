-- OPS-5: what is urgent is shown first, however much older mail is unread. Little is, so the index is small; what was
-- read or has its outcome is not in it.
ALTER TABLE ledger ADD COLUMN is_urgent INTEGER;
CREATE INDEX ledger_urgent ON ledger (to_agent_id, inbox_seq)
WHERE is_urgent IS NOT NULL AND settled_at_ms IS NULL AND read_at_ms IS NULL;
