"""Tables as small as tables can be, to test the runner with; and tables as rows, to compare them."""

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.hours import Catalog
from agentpost.pipeline.silver import merging
from agentpost.pipeline.tables import FleetInputs, FleetTable, GoldInputs, GoldTable, SilverTable
from agentpost.pipeline.warehouse import Warehouse

KEY = ("hour", "event_id")
COLUMNS: merging.Columns = {
    "times": ("sum", "bigint"),
    "first_us": ("min", "bigint"),
    "last_us": ("max", "bigint"),
    "places": ("sum", "bigint"),
}


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
        # Small enough that all of them can be added up.
        sf.shiftright(sf.xxhash64("node", "epoch", "seq"), 24).alias("places"),
    )
    return said_merge(rows)


def said_merge(rows: DataFrame) -> DataFrame:
    return merging.merge(rows, KEY, COLUMNS)


def said_merge_rows(rows: pa.Table) -> pa.Table:
    return merging.merge_rows(rows, KEY, COLUMNS)


def by_hour(inputs: GoldInputs) -> DataFrame:
    return inputs.silver["said"].select("hour", "event_id", "times", "first_us", "last_us", "places")


def by_fleet(inputs: FleetInputs) -> pa.Table:
    rows = inputs.hour_rows("said_by_hour", SAID_BY_HOUR).to_pylist()
    whole = {
        "events": len(rows),
        "times": sum(row["times"] for row in rows),
        "last_us": max((row["last_us"] for row in rows), default=None),
        "places": sum(row["places"] for row in rows),
    }
    return pa.Table.from_pylist([whole], SAID_IN_ALL)


SAID_BY_HOUR = pa.schema([("times", pa.int64()), ("last_us", pa.int64()), ("places", pa.int64())])
SAID_IN_ALL = pa.schema([("events", pa.int64()), *SAID_BY_HOUR])
TINY = Catalog(
    silver=(SilverTable("said", said_partials, said_merge, said_merge_rows),),
    gold=(GoldTable("said_by_hour", by_hour),),
    fleet=(FleetTable("said_in_all", SAID_IN_ALL, by_fleet),),
)
TINY_TABLES = ("said_by_hour", "said_in_all")

Rows = dict[str, list[tuple[Any, ...]]]


def rows_of(warehouse: Warehouse, names: tuple[str, ...] = TINY_TABLES) -> Rows:
    """The rows of tables, in an order of their own, read with pyarrow."""
    version = warehouse.require()
    return {name: _sorted(warehouse.read(version, name).to_pylist()) for name in names}


def _sorted(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in sorted(row)) for row in rows), key=repr)
