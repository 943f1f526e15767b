"""Spark's plans, walked by the driver: every value as Spark has it, and what is not known is Spark's to do."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST = 2**63 - 1
ROWS = pa.table(
    {
        "n": pa.array([1, -2, None, MOST, 0, 7, -(2**62)], pa.int64()),
        "m": pa.array([3, None, None, -1, 5, 7, 2**40], pa.int64()),
        "i": pa.array([0, 1, -1, None, 2**31 - 1, 3, 40], pa.int32()),
        "d": pa.array([0.5, -1.5, None, 2.0, 1e300, 0.1, 3.999], pa.float64()),
        "t": pa.array(["a", None, "", "Owner,wait", "B", "node-1", "wait"], pa.string()),
        "u": pa.array(["a", "x", None, "y", "B", "", "z"], pa.string()),
        "b": pa.array([True, None, False, True, None, False, True], pa.bool_()),
        "l": pa.array([["p", "q"], [], None, [None, "r"], ["a"], ["b", "b"], ["c"]], pa.list_(pa.string())),
    }
)
NAMES = pa.table({"name_hash": pa.array([1, 7, 0, None], pa.int64()), "name": ["one", "seven", "zero", "nobody"]})
EXPRESSIONS = (
    "n = m",
    "n <=> m",
    "not (n < m) and b",
    "n >= m or b",
    "n in (m, i)",
    "case when n > 0 then t when b then u end",
    "if(b, n, m)",
    "least(n, m, i)",
    "greatest(n, m)",
    "coalesce(t, u, 'none')",
    "i + m",
    "i - 3",
    "d * 2 + i",
    "d / 1000",
    "m div 60",
    "n & 4",
    "n | m",
    "shiftleft(m, 3)",
    "shiftleft(1L, greatest(i, 1) - 1)",
    "shiftright(n, 40 + cast(b as int))",
    "shiftright(n, 40)",
    "bit_count(n)",
    "cast(b as int) + 1",
    "cast(i as double) / 3",
    "floor(d / 1e299)",
    "ceil(d / 1e299)",
    "concat('#', lower(hex(n)))",
    "concat_ws(',', t, u)",
    "contains(t, 'wait')",
    "length(t)",
    "xxhash64(t)",
    "xxhash64(t, u)",
    "size(l)",
    "get(l, i)",
)


def walked(spark: "SparkSession", build: "Callable[[Any], DataFrame]", *tables: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What the driver makes of these tables without Spark, and what Spark makes of them."""
    from agentpost.pipeline.few_rows import made_of
    from agentpost.pipeline.frames import local_frame

    asked: list[pa.Table] = []

    def build_once(frame: "Callable[[pa.Table], DataFrame]") -> "DataFrame":
        asked.append(ROWS)
        return build(frame)

    here = made_of(spark, tables, build_once, key=object()).rows
    assert len(asked) == 1, "Spark had to build it"
    return here, build(lambda table: local_frame(spark, table)).toArrow()


def in_order(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_expressions_mean_what_spark_means_by_them(spark: "SparkSession") -> None:
    """Nulls, negative and large numbers, empty texts and lists come out the same, and so do the types."""
    here, there = walked(spark, lambda frame: frame(ROWS).selectExpr(*EXPRESSIONS), ROWS)
    assert here.schema == there.schema
    for name in there.column_names:
        assert here[name].to_pylist() == there[name].to_pylist(), name


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda frame: frame(ROWS).where("n > 0 or b"), id="filter"),
        pytest.param(
            lambda frame: frame(ROWS).selectExpr("t", "posexplode(l) as (p, e)").selectExpr("e", "p", "t"),
            id="posexplode",
        ),
        pytest.param(
            lambda frame: frame(ROWS).selectExpr("n", "explode(array(t, u)) as e").selectExpr("e", "n"), id="explode"
        ),
        pytest.param(lambda frame: frame(ROWS).select("t").union(frame(ROWS).select("u")).distinct(), id="union"),
        pytest.param(lambda frame: frame(ROWS).select("l").distinct(), id="lists"),
        pytest.param(
            lambda frame: frame(ROWS).join(frame(NAMES), _column("n = name_hash"), how="left"),
            id="left join",
        ),
        pytest.param(
            lambda frame: frame(ROWS).join(frame(NAMES), _column("n = name_hash"), how="inner"),
            id="inner join",
        ),
        pytest.param(
            lambda frame: (
                frame(ROWS).groupBy("b").agg(*map(_column, ("sum(i)", "min(n)", "max(t)", "count(u)", "count(1)")))
            ),
            id="sums",
        ),
        pytest.param(
            lambda frame: (
                frame(ROWS)
                .groupBy("b")
                .agg(
                    *map(
                        _column,
                        (
                            "sum(i) filter (where n > 0)",
                            "min(t) filter (where i is null)",
                            "count(1) filter (where u is not null)",
                            "bit_or(m) filter (where n > 0)",
                        ),
                    )
                )
            ),
            id="sums of some rows",
        ),
        pytest.param(
            lambda frame: (
                frame(ROWS)
                .groupBy("b")
                .agg(_column("bit_or(m) as bits"), _column("sort_array(collect_list(m)) as all"))
            ),
            id="lists of a group",
        ),
        pytest.param(
            lambda frame: (
                frame(ROWS)
                .selectExpr(
                    "n", "array(case when b then struct(t, m) end, case when n > 0 then struct(u as t, m) end) as l"
                )
                .selectExpr("n", "inline(filter(l, x -> x is not null)) as (t, m)")
                .selectExpr("m", "t", "n")
            ),
            id="inline",
        ),
    ],
)
def test_steps_give_the_rows_that_spark_gives(spark: "SparkSession", build: "Callable[[Any], DataFrame]") -> None:
    """Filters, joins, unions, groups and lists that become rows."""
    here, there = walked(spark, build, ROWS, NAMES)
    assert here.schema == there.schema
    assert in_order(here) == in_order(there)


def _column(text: str) -> Any:
    from pyspark.sql import functions as sf

    return sf.expr(text)


@pytest.mark.parametrize(
    "text", ["sqrt(d)", "upper(t)", "cast(n as string)", "d / i", "d = i", "d > 1", "shiftleft(1L, i - 1)"]
)
def test_what_is_not_known_is_left_to_spark(spark: "SparkSession", text: str) -> None:
    """A function that nobody walked before, or a division by zero in a row that Spark does not look at."""
    from agentpost.pipeline.few_rows import made_of
    from agentpost.pipeline.frames import local_frame

    def build(frame: "Callable[[pa.Table], DataFrame]") -> "DataFrame":
        return (
            frame(ROWS).where("i > 0").selectExpr(f"{text} as found") if "i" in text else frame(ROWS).selectExpr(text)
        )

    made = made_of(spark, [ROWS], build, key=object())
    assert in_order(made.rows) == in_order(build(lambda table: local_frame(spark, table)).toArrow())


def test_what_a_generator_gives_is_left_to_spark(spark: "SparkSession") -> None:
    """Without a step after it, Spark does not tell which columns stay."""
    from agentpost.pipeline.few_rows import made_of

    made = made_of(spark, [ROWS], lambda frame: frame(ROWS).selectExpr("t", "explode(l) as e"), key=object())
    assert in_order(made.rows.slice(0, 2)) == ["{'t': 'a', 'e': 'p'}", "{'t': 'a', 'e': 'q'}"]


def test_an_overflow_is_an_error_as_it_is_in_spark(spark: "SparkSession") -> None:
    """No sum that is too large for its type comes out as another number."""
    from agentpost.pipeline.few_rows import made_of

    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        made_of(spark, [ROWS], lambda frame: frame(ROWS).selectExpr("n + 1"), key=object())
