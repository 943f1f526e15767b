"""The lake: outboxes as sealed Parquet segments, for the pipeline and for the day a disk is lost.

Knows pyarrow, and no JVM: a gateway writes segments, `agentpost.pipeline` reads them.
"""
