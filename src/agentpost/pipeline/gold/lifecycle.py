"""`lifecycle`: what became of every (event, recipient), with the time of every state."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import DEAD_REASONS, KINDS, ROUTES, STATES, seq_of_place, text_of, texts_of_bits
from agentpost.pipeline.gold.inputs import HourInputs
from agentpost.pipeline.gold.lifecycle_sql import state_at
from agentpost.pipeline.gold.names import with_names
from agentpost.pipeline.params import Params

__all__ = ["build", "with_state"]


def build(inputs: HourInputs) -> DataFrame:
    """One row for each delivery that was sent; `end_state` is null while it is open."""
    rows = inputs.deliveries.where("sends is not null").selectExpr(
        "hour",
        "event_id",
        "recipient",
        f"{text_of('kind', KINDS)} as kind",
        "source",
        "`to`",
        "accepted_by",
        f"{texts_of_bits('routes', ROUTES)} as route_decision",
        "emitted_us",
        "heard_us as accepted_us",
        "outcome_us as processed_us",
        "replied_us",
        "dead_us",
        "incident_us",
        # How often it was tried; the same attempt twice in an outbox is one of them, and a finding.
        "cast(bit_count(attempt_bits) as int) as attempts",
        "expires_us",
        "sla_due_us",
        "coalesce(failures, 0) > 0 as has_failed",
        f"{text_of('dead_reason', DEAD_REASONS, other='other')} as dead_reason",
        f"{text_of('end_code', STATES)} as end_state",
        # By the clocks of two gateways, accepted before it was sent: its times are not compared.
        "coalesce(heard_us < emitted_us, false) as is_skewed",
        f"{seq_of_place('send_place')} as seq",
    )
    return with_names(rows, inputs.names, source="source_node", to="to_node", accepted_by="accepted_by_node")


def with_state(lifecycle: DataFrame, completeness: DataFrame, params: Params) -> DataFrame:
    """The table as it reads at `params.now_us`: with the `state` of what is open too."""
    known = completeness.selectExpr("node as `complete node`", "complete_us as `complete us`")
    joined = lifecycle.join(sf.broadcast(known), sf.expr("to_node = `complete node`"), how="left")
    told = joined.withColumn("state", sf.expr(state_at(params, "`complete us`")))
    return told.drop("complete node", "complete us")
