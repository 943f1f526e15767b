"""`open_deliveries`: what has come to no end by what was said, so that what time makes of it needs no other row.

Incidents, black holes and orphans are a matter of `now`; they are found among these few, whenever one looks.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import KINDS, text_of
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names
from agentpost.pipeline.lifecycle_sql import end_state, is_accepted, sla_due_us

__all__ = ["build"]


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each delivery without an end, and for each that was spoken of and never sent (`emitted_us` null).

    `by` and `place` are where it was first sent, or first spoken of.
    """
    was_sent = sf.col("sends").isNotNull()
    spoken = sf.least("accept_place", "outcome_place", "reply_place", "forged_place")
    by = (
        sf.when(sf.col("accept_place") == spoken, sf.col("accepted_by_min"))
        .when(sf.col("forged_place") == spoken, sf.col("forged_by"))
        .otherwise(sf.col("outcome_by_min"))
    )
    is_orphan = ~was_sent & spoken.isNotNull()
    rows = inputs.silver["deliveries"].where(is_orphan | (was_sent & end_state(inputs.params).isNull()))
    found = rows.select(
        "hour",
        "event_id",
        "recipient",
        text_of(sf.col("kind"), KINDS).alias("kind"),
        "source",
        sf.col("to_max").alias("to"),
        "emitted_us",
        sf.when(is_accepted(), sf.col("accepted_us")).alias("accepted_us"),
        "expires_us",
        sla_due_us(inputs.params).alias("sla_due_us"),
        sf.least("accepted_us", "outcome_us", "replied_us").alias("spoken_us"),
        sf.when(was_sent, sf.col("source")).otherwise(by).alias("by"),
        sf.when(was_sent, sf.col("send_place")).otherwise(spoken).alias("place"),
    )
    return with_names(found, inputs.names, source="source_node", to="to_node")
