"""What goes wrong below the pipeline is told in one sentence, with what to do."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentpost.pipeline.failures import cause_of, in_our_words
from agentpost.protocol.errors import Code, Refusal
from tests.pipeline.lakes import START_MS, Outbox
from tests.pipeline.makers import MAKERS, made_by
from tests.pipeline.test_run import month_of_mail, run, tables, warehouse_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED_WORKER = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Traceback (most recent call last):
  File "worker.py", line 7, in main
    process()
OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""
FAILED_JAVA = """An error occurred while calling o77.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.jobAbortedError(QueryExecutionErrors.scala:1)
Caused by: java.io.IOException: Could not read footer for file: part-0.parquet
\t... 12 more
Caused by: java.lang.RuntimeException: part-0.parquet is not a Parquet file
"""


def test_of_a_long_failure_the_last_cause_is_told() -> None:
    assert cause_of(FAILED_WORKER).startswith("OSError: [Errno 28]")
    assert cause_of(FAILED_JAVA) == "java.lang.RuntimeException: part-0.parquet is not a Parquet file"
    assert cause_of("the JVM is gone\nand more") == "the JVM is gone"


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), Code.STORAGE_FULL),
        (OSError(errno.EIO, os.strerror(errno.EIO)), Code.STORAGE_FAILED),
    ],
)
def test_a_disk_that_fails_is_a_refusal(problem: OSError, code: Code) -> None:
    with pytest.raises(Refusal) as caught, in_our_words():
        raise problem
    assert caught.value.code is code


def test_a_spark_that_fails_is_a_refusal(spark: "SparkSession") -> None:
    """Neither the stack of Java nor that of Python reaches a person."""
    with pytest.raises(Refusal) as caught, in_our_words():
        spark.sparkContext.parallelize([1]).map(lambda number: number / 0).collect()
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == "Spark failed: ZeroDivisionError: division by zero"


def test_who_reads_no_further_is_no_failure() -> None:
    with pytest.raises(BrokenPipeError), in_our_words():
        raise BrokenPipeError


@pytest.mark.parametrize("maker", [maker for maker in MAKERS if maker != "spark"])
def test_a_damaged_table_is_named_and_can_be_built_anew(tmp_path: Path, spark: "SparkSession", maker: str) -> None:
    """A run that needs it is refused and changes nothing; one that builds everything anew does not need it."""
    lake = tmp_path / "lake"
    month_of_mail(lake)
    run(spark, lake)
    undamaged = tables(lake)
    warehouse = warehouse_of(lake)
    version = warehouse.require()
    damaged = next(file.path for name, files in version.tables.items() for file in files if name == "silver_said")
    path = Path(warehouse.files.at(damaged))
    path.write_bytes(path.read_bytes()[:-20])
    more = Outbox(lake, "node-a", epoch="second")
    more.seal(more.messages(5, at_ms=START_MS))
    with made_by(maker), pytest.raises(Refusal) as caught:
        run(spark, lake)
    assert caught.value.code is Code.STORAGE_CORRUPT
    assert str(path) in caught.value.message
    assert "--full" in caught.value.hint
    assert warehouse.require() == version
    with made_by(maker):
        run(spark, lake, full=True)
    assert warehouse.require().number > version.number
    assert tables(lake) != undamaged
