"""Writes the class archive of Spark's Java: a process of its own, started by the first command that found none.

    python -m agentpost.pipeline.training

It does once, with two rows, what a run does, so that the archive has the classes of a run. Nobody waits for it, and
whoever comes before it is done only starts more slowly.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentpost.pipeline.java import Archive, class_archive, find_java, is_being_written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["start_training", "train"]


def start_training(archive: Archive) -> None:
    """Have the archive written by a process that outlives this one, unless there is one at work."""
    if archive.draft is None or is_being_written(archive):
        return
    subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.DEVNULL,
        # What it says nobody reads; and whoever reads what this process says must not wait for that one to end.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def train() -> None:
    """Write the archive, unless there is one or another process writes it."""
    import pyspark

    from agentpost.pipeline.session import open_session, stop_session

    archive = class_archive(find_java(), Path(pyspark.__file__).parent)
    if archive.draft is None or is_being_written(archive):
        return
    os.nice(10)
    # The draft is there from now on, so that others see that it is being written.
    archive.draft.touch()
    spark = open_session(master="local[2]", train=True, brief=True)
    try:
        _work(spark)
    finally:
        stop_session(spark)


def _work(spark: "SparkSession") -> None:
    import pyarrow as pa

    from agentpost.lake.schema import FACTS, SEGMENT
    from agentpost.pipeline.frames import bronze_schema, local_frame
    from agentpost.pipeline.gold.names import all_names
    from agentpost.pipeline.intake import SEGMENTS
    from agentpost.pipeline.tables import GOLD, SILVER, GoldInputs, Params

    sample = {field.name: _sample(field.type) for field in SEGMENT} | {"node": "n", "epoch": "e"}
    fields = [*SEGMENT, pa.field("node", pa.string()), pa.field("epoch", pa.string())]
    rows = pa.Table.from_pylist([{**sample, "kind": kind} for kind in ("task_create", "ack")], pa.schema(fields))
    with tempfile.TemporaryDirectory(prefix="agentpost-training-") as place:
        local_frame(spark, rows).write.parquet(f"file://{place}/events")
        events = spark.read.schema(bronze_schema()).parquet(f"file://{place}/events").coalesce(1)
        silver: dict[str, DataFrame] = {}
        for table in SILVER:
            partials = table.partials(events)
            partials.write.parquet(f"file://{place}/{table.name}")
            # Gold is never planned on top of events: Spark would reason about that for minutes.
            silver[table.name] = spark.read.schema(partials.schema).parquet(f"file://{place}/{table.name}")
        segments = SEGMENTS.empty_table()
        names = all_names(silver["names"].toArrow(), segments, FACTS.empty_table())
        inputs = GoldInputs(silver, local_frame(spark, segments), local_frame(spark, names), Params(now_us=1))
        for table in GOLD:
            table.build(inputs).toArrow()


def _sample(kind: Any) -> Any:
    """Any value of a type."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return ["a"]
    if pa.types.is_string(kind):
        return "a"
    if pa.types.is_boolean(kind):
        return True
    return bytes(32) if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind) else 1


if __name__ == "__main__":
    train()
