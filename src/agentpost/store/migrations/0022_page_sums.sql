-- The sums of the pages of this file stand in a file beside it, which has the same generation if it belongs to this one.
CREATE TABLE page_sums (
  only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
  generation INTEGER NOT NULL
) STRICT;
INSERT INTO page_sums VALUES (1, 0);
