"""The driver's hashes are Spark's."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_names_and_outboxes_have_the_hashes_that_spark_gives_them(spark: "SparkSession") -> None:
    """For texts of all lengths up to several blocks, and of more than ASCII, both give the same number."""
    from pyspark.sql import functions as sf

    from agentpost.pipeline.codes import name_hash, outbox_code
    from agentpost.pipeline.hashes import hash_of_name, hash_of_outbox

    texts = [("nöde-µ%07🦉" * 12)[:length] for length in range(100)]
    rows = [(text, text[::-1]) for text in texts]
    frame = spark.createDataFrame(rows, "node string, epoch string")
    found = frame.select(name_hash(sf.col("node")), outbox_code(sf.col("node"), sf.col("epoch"))).collect()
    assert [tuple(row) for row in found] == [(hash_of_name(node), hash_of_outbox(node, epoch)) for node, epoch in rows]
