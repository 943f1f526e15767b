-- ENV-7: mail that nobody comes for ends when its time is over. Hardly any has such a time, so the index is small, and
-- what is with an agent or has its outcome is not in it.
ALTER TABLE ledger ADD COLUMN expires_at_ms INTEGER;
CREATE INDEX ledger_expiring ON ledger (expires_at_ms)
WHERE expires_at_ms IS NOT NULL AND state = 'queued' AND settled_at_ms IS NULL;
