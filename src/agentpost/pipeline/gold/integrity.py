"""`integrity` and `observed`: every broken rule of the fleet's history, and what else is worth a look (OBS-7).

docs/pipeline.md has the precise definition of each rule.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import located
from agentpost.pipeline.gold.tasks import is_late

__all__ = ["OBSERVED", "RULES", "integrity", "observed"]

_HOUR_US: Final = 3_600_000_000
_FIELDS: Final = ("rule", "node", "epoch", "seq", "event_id", "agent_id", "corr_id", "at_us", "text")

# A sentence for each; {agent}, {event} and {node} are filled in.
RULES: Final = {
    "gap": "",
    "fork": "",
    "chain_break": "",
    "bad_signature": "",
    "bad_segment": "",
    "foreign_source": "",
    "clock_off": "",
    "regression": "a later life of {node} begins at or below the last seq of the one before",
    "duplicate": "{event} stands twice in the outbox of {node}, with the same attempt",
    "orphan_ack": "{node} speaks of {event} for {agent}, which no outbox ever sent",
    "wrong_acker": "{node} was not asked, and answers {event} for {agent}",
    "accept_before_emit": "{node} accepted {event} for {agent} before it was sent",
    "unaccepted_outcome": "{node} has an outcome of {event} for {agent} that it had not accepted",
    "double_injection": "{event} was accepted twice for {agent}",
    "black_hole": "{event} for {agent}: its gateway was there, and nothing was ever said of it",
}
OBSERVED: Final = {
    "sla_breach": "{event} was accepted for {agent}, and had no outcome in time",
    "expired": "{event} expired before {agent} had it",
    "dead_letter": "{event} could not be delivered to {agent}",
    "eta_missed": "a task of {node} was not done by its ETA",
    "task_failed": "a task failed at {node}",
}


def integrity(inputs: GoldInputs) -> DataFrame:
    """One row for each broken rule."""
    taken_in = inputs.findings.select(*_FIELDS)
    by_delivery = inputs.hour_gold["delivery_findings"].where(sf.col("rule").isin(*RULES))
    parts = [
        _finding(by_delivery, RULES),
        _finding(_orphans(inputs), RULES),
        _finding(_black_holes(inputs), RULES),
        _finding(_regressions(inputs.segments), RULES),
    ]
    for part in parts:
        taken_in = taken_in.unionByName(part)
    return taken_in


def observed(inputs: GoldInputs) -> DataFrame:
    """One row for each thing that no rule forbids and somebody may want to know."""
    rows = _finding(inputs.hour_gold["delivery_findings"].where(sf.col("rule").isin(*OBSERVED)), OBSERVED)
    for part in (_missed_slas(inputs), _late_tasks(inputs), _failed_tasks(inputs)):
        rows = rows.unionByName(_finding(part, OBSERVED))
    return rows


def _orphans(inputs: GoldInputs) -> DataFrame:
    """What was spoken of for long enough, and never sent."""
    oldest = inputs.params.now_us - inputs.params.orphan_grace_us
    rows = inputs.hour_gold["open_deliveries"].where(
        sf.col("emitted_us").isNull() & (sf.col("spoken_us") < sf.lit(oldest))
    )
    return _pointed(rows, "orphan_ack", sf.col("spoken_us"), inputs.segments)


def _black_holes(inputs: GoldInputs) -> DataFrame:
    """What a gateway that was there said nothing of: it wrote to its outbox after it, and an hour later again."""
    limit = sf.lit(inputs.params.black_hole_us)
    unanswered = inputs.hour_gold["open_deliveries"].where(
        sf.col("emitted_us").isNotNull()
        & sf.col("accepted_us").isNull()
        & (sf.col("emitted_us") + limit < sf.lit(inputs.params.now_us))
    )
    active = (
        inputs.hour_gold["throughput"]
        .groupBy(sf.col("node").alias("_node"))
        .agg(sf.array_sort(sf.collect_set("hour")).alias("_hours"), sf.max("last_us").alias("_last_us"))
    )
    emitted_hour = sf.expr(f"emitted_us div {_HOUR_US}")
    # The first hour in which it wrote something, from the hour of the event on.
    seen_hour = sf.array_min(sf.filter("_hours", lambda hour: hour >= emitted_hour))
    seen_us = sf.greatest(seen_hour.cast("bigint") * sf.lit(_HOUR_US), sf.col("emitted_us"))
    rows = unanswered.join(active, sf.col("to_node") == sf.col("_node"), how="inner").where(
        sf.col("_last_us") >= seen_us + limit
    )
    return _pointed(rows, "black_hole", sf.col("emitted_us"), inputs.segments)


def _regressions(segments: DataFrame) -> DataFrame:
    ends = segments.groupBy("node", "epoch").agg(
        sf.min("first_seq").alias("seq"), sf.max("last_seq").alias("last_seq"), sf.min("sealed_at_us").alias("at_us")
    )
    before = sf.lag("last_seq").over(Window.partitionBy("node").orderBy("epoch"))
    return (
        ends.withColumn("_before", before)
        .where(sf.col("seq") <= sf.col("_before"))
        .select(
            sf.lit("regression").alias("rule"),
            "node",
            "epoch",
            "seq",
            _nothing("event_id"),
            _nothing("agent_id"),
            "at_us",
        )
    )


def _missed_slas(inputs: GoldInputs) -> DataFrame:
    rows = inputs.hour_gold["open_deliveries"].where(sf.col("sla_due_us") < sf.lit(inputs.params.now_us))
    return _pointed(rows.where(sf.col("emitted_us").isNotNull()), "sla_breach", sf.col("sla_due_us"), inputs.segments)


def _late_tasks(inputs: GoldInputs) -> DataFrame:
    rows = inputs.hour_gold["tasks"].where(is_late(inputs.params) & sf.col("create_place").isNotNull())
    return _task(rows, "eta_missed", sf.col("eta_us"), "created_by_hash", "create_place", inputs.segments)


def _failed_tasks(inputs: GoldInputs) -> DataFrame:
    rows = inputs.hour_gold["tasks"].where(sf.col("failed_place").isNotNull())
    return _task(rows, "task_failed", sf.col("ended_us"), "failed_by_hash", "failed_place", inputs.segments)


def _task(rows: DataFrame, rule: str, at_us: Column, by: str, place: str, segments: DataFrame) -> DataFrame:
    found = rows.select(
        sf.lit(rule).alias("rule"),
        sf.col(by).alias("by"),
        sf.col(place).alias("place"),
        _nothing("event_id"),
        _nothing("agent_id"),
        "corr_id",
        at_us.alias("at_us"),
    )
    return located(found, segments)


def _pointed(rows: DataFrame, rule: str, at_us: Column, segments: DataFrame) -> DataFrame:
    found = rows.select(
        sf.lit(rule).alias("rule"),
        "by",
        "place",
        "event_id",
        sf.col("recipient").alias("agent_id"),
        at_us.alias("at_us"),
    )
    return located(found, segments)


def _finding(rows: DataFrame, sentences: dict[str, str]) -> DataFrame:
    corr = sf.col("corr_id") if "corr_id" in rows.columns else sf.lit(None)
    return rows.withColumn("corr_id", corr.cast("string")).withColumn("text", _sentence(sentences)).select(*_FIELDS)


def _sentence(sentences: dict[str, str]) -> Column:
    text = sf.lit("")
    for rule, sentence in sentences.items():
        text = sf.when(sf.col("rule") == rule, sf.lit(sentence)).otherwise(text)
    for name, column in (("{event}", "event_id"), ("{agent}", "agent_id"), ("{node}", "node")):
        text = sf.replace(text, sf.lit(name), sf.coalesce(column, sf.lit("")))
    return text


def _nothing(name: str) -> Column:
    return sf.lit(None).cast("string").alias(name)
