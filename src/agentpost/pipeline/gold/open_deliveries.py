"""`open_deliveries`: what has come to no end by what was said, so that what time makes of it needs no other row.

Incidents, black holes and orphans are a matter of now; they are found among these few, whenever one looks.
"""

from pyspark.sql import DataFrame

from agentpost.pipeline.codes import KINDS, text_of
from agentpost.pipeline.gold.delivery_minutes import WAS_AWAY
from agentpost.pipeline.gold.inputs import HourInputs
from agentpost.pipeline.gold.names import with_names

__all__ = ["build"]


def build(inputs: HourInputs) -> DataFrame:
    """One row for each delivery without an end, and for each that was spoken of and never sent (`emitted_us` null).

    `by` and `place` are where it was first sent, or first spoken of.
    """
    is_orphan = "sends is null and least(u_first_place, forged_place) is not null"
    rows = inputs.deliveries.where(f"({is_orphan}) or (sends is not null and end_code is null)").selectExpr(
        "hour",
        "event_id",
        "recipient",
        f"{text_of('kind', KINDS)} as kind",
        "source",
        "coalesce(`to`, accepted_by) as `to`",
        "emitted_us",
        "heard_us as accepted_us",
        "expires_us",
        "sla_due_us",
        f"sends is not null and not {WAS_AWAY} as is_eligible",
        "if(sends is null, coalesce(u_first_us, forged_us), null) as spoken_us",
        "case when sends is not null then source when u_first_place <= coalesce(forged_place, u_first_place)"
        " then u_first_by else forged_by end as `by`",
        "case when sends is not null then send_place else least(u_first_place, forged_place) end as place",
    )
    return with_names(rows, inputs.names, source="source_node", to="to_node")
