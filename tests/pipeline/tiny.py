"""Tables as small as tables can be, to test the runner with; and tables as rows, to compare them."""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.run import Catalog
from agentpost.pipeline.tables import GoldInputs, GoldTable, SilverTable
from agentpost.pipeline.warehouse import Warehouse


def said_partials(bronze: DataFrame) -> DataFrame:
    """How often each event was said, and when first and last; the ones that speak of it are counted with it."""
    event = sf.coalesce("ref_event_id", "event_id").alias("event_id")
    hour = sf.coalesce("ref_hour", "event_hour").alias("hour")
    rows = bronze.select(
        hour,
        event,
        sf.lit(1).cast("bigint").alias("times"),
        sf.col("created_us").alias("first_us"),
        sf.col("created_us").alias("last_us"),
        sf.xxhash64("node", "epoch", "seq").alias("places"),
    )
    return said_merge(rows)


def said_merge(rows: DataFrame) -> DataFrame:
    return rows.groupBy("hour", "event_id").agg(
        sf.sum("times").alias("times"),
        sf.min("first_us").alias("first_us"),
        sf.max("last_us").alias("last_us"),
        sf.bit_xor("places").alias("places"),
    )


def by_hour(inputs: GoldInputs) -> DataFrame:
    return inputs.silver["said"].select("hour", "event_id", "times", "first_us", "last_us", "places")


def by_fleet(inputs: GoldInputs) -> DataFrame:
    return inputs.hour_gold["said_by_hour"].agg(
        sf.count("*").alias("events"),
        sf.sum("times").alias("times"),
        sf.max("last_us").alias("last_us"),
        sf.bit_xor("places").alias("places"),
    )


TINY = Catalog(
    silver=(SilverTable("said", said_partials, said_merge),),
    gold=(GoldTable("said_by_hour", "hour", by_hour), GoldTable("said_in_all", "fleet", by_fleet)),
)
TINY_TABLES = ("said_by_hour", "said_in_all")

Rows = dict[str, list[tuple[Any, ...]]]


def rows_of(warehouse: Warehouse, names: tuple[str, ...] = TINY_TABLES) -> Rows:
    """The rows of tables, in an order of their own, read with pyarrow."""
    version = warehouse.require()
    return {name: _sorted(warehouse.read(version, name).to_pylist()) for name in names}


def _sorted(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in sorted(row)) for row in rows), key=repr)
