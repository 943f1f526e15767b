"""Tables made without a job of Spark's: it tells once how, and its plan is walked over what is at hand."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from agentpost.pipeline.frames import local_frame
from agentpost.pipeline.plans import Step, Unknown, plan_of
from agentpost.pipeline.walking import walk

__all__ = ["LEFT_TO_SPARK", "Build", "Made", "Recipe", "made_of", "recipe_of"]

Build = Callable[[Callable[[pa.Table], DataFrame]], DataFrame]

# Another Spark may write its plans in another way: what then does not fit is its own work again.
LEFT_TO_SPARK: Final = (
    Unknown,
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


class Made(NamedTuple):
    """Rows, and their schema as Spark tells it."""

    rows: pa.Table
    schema: str


class Recipe(NamedTuple):
    """How a table is made, and what comes out: for pyarrow, and as Spark tells it."""

    plan: Step | None  # None if only Spark can do it
    rows: pa.Schema
    schema: str


_recipes: Final[dict[Hashable, Recipe]] = {}


def made_of(spark: SparkSession, tables: Sequence[pa.Table], build: Build, *, key: Hashable) -> Made:
    """What `build` makes of these tables, each of which it gets as a frame."""
    recipe = recipe_of(spark, tables, build, key=key)
    if recipe.plan is not None:
        try:
            return Made(walk(recipe.plan, tables, recipe.rows), recipe.schema)
        except LEFT_TO_SPARK:
            # Spark knows better, or says what is wrong.
            pass
    return Made(build(lambda table: local_frame(spark, table)).toArrow(), recipe.schema)


def recipe_of(spark: SparkSession, tables: Sequence[pa.Table], build: Build, *, key: Hashable) -> Recipe:
    """How `build` makes something of tables with these columns, each of which it gets as a frame.

    `key` stands for all else that it depends on: what is asked with the same key is asked of Spark once a process.
    """
    whole = (key, *[table.schema for table in tables])
    if whole not in _recipes:
        _recipes[whole] = _asked(build(lambda table: _nothing(spark, table.schema)))
    return _recipes[whole]


def _asked(frame: DataFrame) -> Recipe:
    try:
        plan = plan_of(frame)
    except LEFT_TO_SPARK:
        plan = None
    return Recipe(plan, to_arrow_schema(frame.schema), frame.schema.json())


@lru_cache(maxsize=64)
def _nothing(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A frame of which nothing is known but its columns: of an empty one Spark would make nothing at all."""
    return spark.createDataFrame(
        cast("Any", spark.sparkContext.emptyRDD()), from_arrow_schema(schema), verifySchema=False
    )
