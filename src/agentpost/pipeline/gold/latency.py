"""`latency`: how long deliveries took, exact percentiles per kind, pair of nodes and hour (OBS-2)."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import KINDS, text_of
from agentpost.pipeline.gold.inputs import HourInputs
from agentpost.pipeline.gold.names import with_names

__all__ = ["build", "by_day"]

_SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def build(inputs: HourInputs) -> DataFrame:
    """One row for each hour, kind, sender's and recipient's node."""
    rows = inputs.deliveries.where("sends is not null").selectExpr(
        "hour", "kind", "source", "`to`", *_times("heard_us", "least(outcome_us, replied_us)")
    )
    found = _measured(rows, "hour", "kind", "source", "to")
    named = with_names(found, inputs.names, source="source_node", to="to_node")
    others = [f"`{name}`" for name in named.columns if name not in ("hour", "kind")]
    return named.selectExpr("hour", f"{text_of('kind', KINDS)} as kind", *others)


def by_day(lifecycle: DataFrame) -> DataFrame:
    """The same for days, from the table `lifecycle`: percentiles of hours cannot be joined, so they are taken anew."""
    times = _times("accepted_us", "least(processed_us, replied_us)")
    rows = lifecycle.selectExpr("cast(hour div 24 as int) as day", "kind", "source_node", "to_node", *times)
    return _measured(rows, "day", "kind", "source_node", "to_node")


def _times(accepted: str, answered: str) -> tuple[str, ...]:
    """Delivery is from the first send to the accept, an answer from the first send to the first outcome or reply.

    A time that is negative tells of two clocks, not of a delivery: it is counted apart.
    """
    return (
        f"if({accepted} >= emitted_us, {accepted} - emitted_us, null) as delivery_us",
        f"if({answered} >= emitted_us, {answered} - emitted_us, null) as answer_us",
        f"if({accepted} < emitted_us, 1, null) as skewed",
        f"if({accepted} is not null, 1, null) as accepted",
    )


def _measured(rows: DataFrame, *key: str) -> DataFrame:
    """The measures of each key, from all of its values in order: keys are many, and the values of one are few.

    The rows of a key meet before anything is made of them: to join lists, each would be written and read once more.
    """
    lists = (
        rows.repartition(*key)
        .groupBy(*key)
        .agg(
            sf.expr("count(*)").alias("deliveries"),
            sf.expr("count(accepted)").alias("accepted"),
            sf.expr("count(skewed)").alias("skewed"),
            sf.expr("sort_array(collect_list(delivery_us))").alias("delivery"),
            sf.expr("sort_array(collect_list(answer_us))").alias("answer"),
        )
    )
    return lists.selectExpr(
        *[f"`{name}`" for name in key],
        "deliveries",
        "accepted",
        "skewed",
        *[f"{_share('delivery', share)} as delivery_{name}_ms" for name, share in _SHARES],
        f"{_ms('delivery', 'size(delivery) - 1')} as delivery_max_ms",
        "cast(size(answer) as bigint) as answered",
        *[f"{_share('answer', share)} as answer_{name}_ms" for name, share in _SHARES],
    )


def _share(values: str, share: float) -> str:
    """The value that so much of all is not above, between two of them if it is none; null if there are none."""
    place = f"((size({values}) - 1) * {share}D)"
    low = f"cast(floor({place}) as int)"
    lower, higher = _ms(values, low), _ms(values, f"cast(ceil({place}) as int)")
    return f"({lower} + ({place} - {low}) * ({higher} - {lower}))"


def _ms(values: str, nth: str) -> str:
    return f"(get({values}, {nth}) / 1000)"
