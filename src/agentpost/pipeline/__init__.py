"""The data pipeline on Spark: what became of every message and task, for the whole fleet and all of its history.

Reads the lake, writes tables beside it. Nothing else of agentpost imports this package, and only it knows Spark.

- `run`, `watch`, `compact`, `sql`: one batch, again and again, with fewer files, and a question
- `hours`: the tables of hours: silver by Spark, if it is much, and gold by its workers
- `workers`, `hour_workers`: what they do: the check of many segments, and gold of many hours
- `few_rows`, `plans`, `walking`, `kernels`: Spark tells how a table is made, and whoever has the rows does it
- `intake`, `checking`, `sequence`: what is new in the lake, whether it may be believed, whether outboxes are whole
- `warehouse`, `files`, `ranges`: versions of tables, the files they name, the hours in them that count
- `frames`, `writing`: files as DataFrames, and back
- `session`, `java`, `progress`, `failures`: Spark, the Java under it, what it is doing, and what it says when it fails
- `tables`: what there is: every silver and gold table, and the parameters they are computed with
- `codes`, `places`: kinds, states, reasons and places of events as numbers, all that the hot aggregates touch
- `hashes`: the same hashes for what the driver has
- `silver/`: bronze rows to mergeable partials, a file a table
- `gold/`: merged silver to what people read, a file a table; `gold/fleet` is what tables of the whole fleet are made of
- `lifecycle_sql`: the state of a delivery as one expression
"""
