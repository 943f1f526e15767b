-- How much each gateway has not accepted is told to senders: the index has it, and no row has to be looked at.
DROP INDEX deliveries_unaccepted;
CREATE INDEX deliveries_unaccepted ON deliveries (seq, to_node_id) WHERE state IN ('Emitted', 'RetryPending');

-- CUR-6: where a source ended when it was last read, as it signed that. If it comes back with an older database, this
-- is what proves it to the source itself.
ALTER TABLE cursors ADD COLUMN head BLOB;
ALTER TABLE cursors ADD COLUMN signature BLOB;
