"""Runtime settings that a batch relies on, set for its time on whatever session it runs."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from pyspark.sql import SparkSession

__all__ = ["batch_settings", "plans_for"]

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Node names and epochs stand in paths, and "007" is no number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Files are known by name: no job just to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.parquet.compression.codec": "zstd",
}

# Little data: one partition and no second thoughts, which cost a job for every stage; and to write code for a query and
# compile it takes longer than to walk the plan as it is.
_SMALL: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def plans_for(spark: SparkSession, *, is_small: bool) -> AbstractContextManager[None]:
    """Plans that fit how much there is, while the block runs."""
    return _with_settings(spark, _SMALL if is_small else {})


def batch_settings(spark: SparkSession) -> AbstractContextManager[None]:
    """The settings while the block runs, and what the caller had before and after."""
    return _with_settings(spark, _SETTINGS)


@contextmanager
def _with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
