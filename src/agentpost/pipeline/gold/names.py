"""What the hashes in silver stand for: names of nodes, agents and capabilities, and the outboxes that places are in."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import name_hash, outbox_code, outbox_of_place, seq_of_place
from agentpost.pipeline.hashes import hash_of_name

__all__ = ["all_names", "located", "outboxes", "with_names"]

_NAMING: Final = pa.array(["node", "agent", "capability"])  # topics whose keys are names


def all_names(names: pa.Table, segments: pa.Table, facts: pa.Table) -> pa.Table:
    """Every name there is: `name_hash`, `name`. `names` is the silver table of that name."""
    told = facts.filter(pc.is_in(facts["topic"], value_set=_NAMING))["key"]
    said = {name: hash_of_name(name) for column in (told, segments["node"]) for name in column.unique().to_pylist()}
    known = dict(zip(names["name"].to_pylist(), names["name_hash"].to_pylist(), strict=True))
    found = {name: number for name, number in (said | known).items() if name}
    return pa.table({"name_hash": pa.array(found.values(), pa.int64()), "name": pa.array(found, pa.string())})


def outboxes(segments: DataFrame) -> DataFrame:
    """Every outbox: `node_hash`, `outbox_code`, `node`, `epoch`."""
    return (
        segments.select("node", "epoch")
        .distinct()
        .select(
            name_hash(sf.col("node")).alias("node_hash"),
            outbox_code(sf.col("node"), sf.col("epoch")).alias("outbox_code"),
            "node",
            "epoch",
        )
    )


def located(rows: DataFrame, segments: DataFrame) -> DataFrame:
    """`rows` with `node`, `epoch` and `seq` for `by`, the hash of a node, and `place`.

    A row whose place is in no outbox of that node goes: it was a guess, and a wrong one.
    """
    is_there = (sf.col("by") == sf.col("node_hash")) & (outbox_of_place(sf.col("place")) == sf.col("outbox_code"))
    found = rows.join(sf.broadcast(outboxes(segments)), is_there, how="inner")
    return found.withColumn("seq", seq_of_place(sf.col("place"))).drop("by", "place", "node_hash", "outbox_code")


def with_names(rows: DataFrame, names: DataFrame, **columns: str) -> DataFrame:
    """`rows` with names for hashes: `source="source_node"` puts the name of `source` into `source_node` in its place.

    A name that nobody ever told keeps its number, in hex, so that two of them stay two.
    """
    joined = rows
    for hashed in columns:
        # The same lookup for all of them: Spark sends it out once.
        lookup = names.selectExpr(f"name_hash as `hash of {hashed}`", f"name as `name of {hashed}`")
        joined = joined.join(sf.broadcast(lookup), sf.expr(f"`{hashed}` = `hash of {hashed}`"), how="left")
    told = {
        hashed: f"coalesce(`name of {hashed}`, concat('#', lower(hex(`{hashed}`)))) as `{named}`"
        for hashed, named in columns.items()
    }
    return joined.selectExpr(*[told.get(each, f"`{each}`") for each in rows.columns])
