"""The data pipeline on Spark: what became of every message and task, for the whole fleet and all of its history.

Reads the lake, writes tables beside it. Nothing else of agentpost imports this package, and only it knows Spark.

- `tables`: what there is: every silver and gold table, and the parameters they are computed with
- `codes`: kinds, states, reasons and places of events as numbers, the only thing that the hot aggregates touch
- `silver/`: bronze rows to mergeable partials, a file a table
- `gold/`: merged silver to what people read, a file a table
- `lifecycle_sql`: the state of a delivery as one expression
"""
