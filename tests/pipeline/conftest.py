"""One Spark session for all tests of a process. `make test` runs all that need it in one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Small and quick to start: no adaptive plans, one partition after a shuffle, no code written for each query, only the
# first of the JVM's two compilers.
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# With one compiler the JVM keeps room for 48 MB of compiled code, as much as the plans of all tests take; without any
# left it ends.
JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    from agentpost.pipeline.session import open_session

    session = open_session(master="local[2]", settings=SETTINGS, java_options=JAVA_OPTIONS)
    yield session
    session.stop()
