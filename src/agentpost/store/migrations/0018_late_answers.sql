-- What a receiver says after the end of a delivery changes no state, and is kept beside it. A dead letter that was sent
-- again and then answered has both, so each has its own column.
ALTER TABLE deliveries ADD COLUMN resent_as TEXT;
ALTER TABLE deliveries ADD COLUMN late TEXT;
ALTER TABLE deliveries ADD COLUMN late_at_ms INTEGER;
UPDATE deliveries SET resent_as = answered_by_event_id, answered_by_event_id = NULL WHERE state = 'DeadLetter';
