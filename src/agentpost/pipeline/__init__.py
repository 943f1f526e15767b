"""The data pipeline on Spark: what became of every message and task, for the whole fleet and all of its history.

Reads the lake, writes Delta tables beside it. Nothing else of agentpost imports this package, and only it knows Spark.
Public DataFrames and SQL only: it runs on a session of its own, on a cluster, over Spark Connect, or on a session of the
caller's (`agentpost.pipeline.run.run(spark, lake)`).

- `run`, `watch`, `compact`, `sql`: one batch, batches as a stream, fewer files, and a question
- `intake`, `check_job`, `checking`, `ledger`, `ranges`: what is new in the lake, and what is read of it
- `transform`, `tables`, `buckets`, `frames`, `settings`: the tables of a batch, computed and written by Spark
- `warehouse`, `delta`, `files`: snapshots, commits, and where the files are
- `silver/`: bronze rows to mergeable partials, a file a table
- `gold/`: silver to what people read, a file a table, and views over them
- `codes`, `params`: kinds, states, reasons and places of events as numbers; what the tables are computed with
- `checks`, `trace`, `events`, `report/`, `feedback`: what the tables say, read without Spark
- `source`: `spark.read.format("agentpost")`, the events of a lake in any Spark
- `session`, `java`, `training`, `progress`, `failures`: Spark, the Java under it, what it is doing, what it says when it
  fails
"""
