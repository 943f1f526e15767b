"""Tables of few rows, made by the driver: Spark tells once how, and its plan is walked over what is at hand."""

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

__all__ = ["Made", "made_of"]

Build = Callable[[Callable[[pa.Table], DataFrame]], DataFrame]


class Made(NamedTuple):
    """Rows, and their schema as Spark tells it."""

    rows: pa.Table
    schema: str


class _Answer(NamedTuple):
    plan: Step | None  # None if only Spark can do it
    rows: pa.Schema
    schema: str


_answers: Final[dict[Hashable, _Answer]] = {}
# Another Spark may write its plans in another way: what then does not fit is its own work again.
_LEFT_TO_SPARK: Final = (
    Unknown,
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def made_of(spark: SparkSession, tables: Sequence[pa.Table], build: Build, *, key: Hashable) -> Made:
    """What `build` makes of these tables, each of which it gets as a frame.

    `key` stands for all else that it depends on: what is asked with the same key is asked of Spark once a process.
    """
    whole = (key, *[table.schema for table in tables])
    if whole not in _answers:
        _answers[whole] = _asked(build(lambda table: _nothing(spark, table.schema)))
    answer = _answers[whole]
    if answer.plan is not None:
        try:
            return Made(walk(answer.plan, tables, answer.rows), answer.schema)
        except _LEFT_TO_SPARK:
            # Spark knows better, or says what is wrong.
            pass
    return Made(build(lambda table: local_frame(spark, table)).toArrow(), answer.schema)


def _asked(frame: DataFrame) -> _Answer:
    try:
        plan = plan_of(frame)
    except _LEFT_TO_SPARK:
        plan = None
    return _Answer(plan, to_arrow_schema(frame.schema), frame.schema.json())


@lru_cache(maxsize=64)
def _nothing(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A frame of which nothing is known but its columns: of an empty one Spark would make nothing at all."""
    return spark.createDataFrame(
        cast("Any", spark.sparkContext.emptyRDD()), from_arrow_schema(schema), verifySchema=False
    )
