"""What the hashes of silver stand for: names of nodes, agents and capabilities, and the outboxes that places are in."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import name_hash, outbox_code, outbox_of_place, seq_of_place

__all__ = ["located", "with_names"]


def located(rows: DataFrame, outboxes: DataFrame) -> DataFrame:
    """`rows` with `node`, `epoch` and `seq` for `by`, the hash of a node, and `place`.

    `outboxes` has every node and epoch once. A row whose place is in no outbox of that node goes: it was a guess.
    """
    known = outboxes.selectExpr(
        "node", "epoch", f"{name_hash('node')} as node_hash", f"{outbox_code('node', 'epoch')} as outbox_code"
    )
    is_there = sf.expr(f"`by` = node_hash and {outbox_of_place('place')} = outbox_code")
    found = rows.join(sf.broadcast(known), is_there, how="inner")
    return found.selectExpr("*", f"{seq_of_place('place')} as seq").drop("by", "place", "node_hash", "outbox_code")


def with_names(rows: DataFrame, names: DataFrame, **columns: str) -> DataFrame:
    """`rows` with names for hashes: `source="source_node"` puts the name of `source` into `source_node` in its place.

    A name that is not in the table keeps its number, in hex, so that two of them stay two.
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
