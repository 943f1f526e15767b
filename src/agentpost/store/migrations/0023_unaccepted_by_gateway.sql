-- How much each gateway has not accepted is told to senders: the index has it, and no row has to be looked at.
DROP INDEX deliveries_unaccepted;
CREATE INDEX deliveries_unaccepted ON deliveries (seq, to_node_id) WHERE state IN ('Emitted', 'RetryPending');
