"""The backlog, made anew from an hour on, is the one that is made of everything."""

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 24 * 60
MINUTES = pa.schema(
    [
        ("hour", pa.int32()),
        ("node", pa.string()),
        ("minute", pa.int32()),
        ("begun", pa.int64()),
        ("ended", pa.int64()),
    ]
)
Rows = list[dict[str, Any]]


def backlog_of(spark: "SparkSession", minutes: Rows, before: Rows, since_hour: int) -> Rows:
    """The rows from an hour on, and those before it as they were."""
    from agentpost.pipeline.frames import local_frame
    from agentpost.pipeline.gold.backlog import build
    from agentpost.pipeline.gold.inputs import FleetInputs
    from agentpost.pipeline.params import Params
    from agentpost.pipeline.transform import FIRST

    nothing = local_frame(spark, pa.table({"n": pa.array([], pa.int32())}))
    inputs = FleetInputs(*([nothing] * 11), params=Params(now_us=0), since_hour=since_hour)._replace(
        delivery_minutes=local_frame(spark, pa.Table.from_pylist(minutes, MINUTES)),
        backlog=local_frame(spark, pa.Table.from_pylist(before, FIRST["backlog"])),
    )
    made = build(inputs).toArrow().to_pylist()
    return [row for row in before if row["hour"] < since_hour] + made


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.req("OBS-3")
def test_a_backlog_made_bit_by_bit_is_the_one_of_all(spark: "SparkSession", seed: int) -> None:
    """Hours come, come again with other numbers, and come late: always the rows of one run over everything."""
    chance = random.Random(seed)
    minutes: Rows = []
    backlog: Rows = []
    for _ in range(8):
        hour = chance.choice((3, 20, 30, 31, 50, 75, 76, 99, 120))
        gone = [row for row in minutes if row["hour"] == hour]
        rows = some_rows(chance, hour)
        minutes = [row for row in minutes if row["hour"] != hour] + rows
        since = min((row["minute"] // 60 for row in (*gone, *rows)), default=2**31 - 1)
        backlog = backlog_of(spark, minutes, backlog, since)
        whole = backlog_of(spark, minutes, [], 0)
        assert sorted(map(repr, backlog)) == sorted(map(repr, whole))


def some_rows(chance: random.Random, hour: int) -> Rows:
    rows = [
        {
            "hour": hour,
            "node": chance.choice("abc"),
            # What waits may end days later.
            "minute": hour * 60 + chance.choice((0, 1, 5, 17, 59, 70, DAY + 3, 3 * DAY)),
            "begun": chance.randrange(3),
            "ended": chance.randrange(3),
        }
        for _ in range(chance.randrange(6))
    ]
    return [row for row in rows if row["begun"] or row["ended"]]
