"""The data pipeline on Spark: what became of every message and task of the fleet. The only place that knows PySpark."""
