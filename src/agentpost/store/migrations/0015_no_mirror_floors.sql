-- A source can name readers that do not exist, as many as it likes. Of a stream that is pruned to nothing nothing is kept.
DROP TABLE mirror_stream_floors;
