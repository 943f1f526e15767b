"""`lifecycle`: what became of every (event, recipient), with the time of every state."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import DEAD_REASONS, KINDS, ROUTES, STATES, seq_of_place, text_of, texts_of_bits
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names
from agentpost.pipeline.lifecycle_sql import end_state, is_accepted, sla_due_us, state_at
from agentpost.pipeline.params import Params

__all__ = ["build", "with_state"]


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each delivery that was sent; `end_state` is null while it is open."""
    rows = (
        inputs.silver["deliveries"]
        .where(sf.col("sends").isNotNull())
        # By itself: as a part of what names it, it would be found out anew for each state that there is.
        .withColumn("end", end_state(inputs.params))
        .select(
            "hour",
            "event_id",
            "recipient",
            text_of(sf.col("kind"), KINDS).alias("kind"),
            "source",
            sf.col("to_max").alias("to"),
            sf.col("accepted_by_max").alias("accepted_by"),
            texts_of_bits(sf.col("routes"), ROUTES).alias("route_decision"),
            "emitted_us",
            sf.when(is_accepted(), sf.coalesce("accepted_us", "outcome_us", "replied_us")).alias("accepted_us"),
            sf.col("outcome_us").alias("processed_us"),
            "replied_us",
            "dead_us",
            "incident_us",
            sf.col("sends").cast("int").alias("attempts"),
            "expires_us",
            sla_due_us(inputs.params).alias("sla_due_us"),
            (sf.coalesce("failures", sf.lit(0)) > 0).alias("has_failed"),
            text_of(sf.col("dead_reason"), DEAD_REASONS, other="other").alias("dead_reason"),
            text_of(sf.col("end"), STATES).alias("end_state"),
            seq_of_place(sf.col("send_place")).alias("seq"),
        )
    )
    return with_names(rows, inputs.names, source="source_node", to="to_node", accepted_by="accepted_by_node")


def with_state(lifecycle: DataFrame, params: Params) -> DataFrame:
    """The table as it reads at `params.now_us`: with the `state` of what is open too."""
    return lifecycle.withColumn("state", state_at(params))
