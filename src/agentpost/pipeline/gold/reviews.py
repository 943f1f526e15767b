"""`reviews`: what a capability's owner should look into, one item for each cause (CAP-6)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import DEAD_REASONS
from agentpost.pipeline.gold.facts import newest
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names
from agentpost.pipeline.gold.tasks import is_late

__all__ = ["build", "routing_misses"]

_SAMPLES: Final = 5
_CAPABILITY: Final = "version string, ownerAgentId string, status string, executorSkillVersion string"
_CAUSE: Final = ("trigger", "capability_id", "delegation_skill_version", "failure_class")


def routing_misses(inputs: GoldInputs) -> DataFrame:
    """The hour table `routing_misses`: tasks for a capability that no gateway could be found for."""
    is_miss = (sf.col("dead_reason") == DEAD_REASONS["no_route"]) & sf.col("capability").isNotNull()
    rows = (
        inputs.silver["deliveries"]
        .where(is_miss)
        .select("hour", "event_id", "capability", sf.col("dead_us").alias("at_us"))
    )
    return with_names(rows, inputs.names, capability="capability_id")


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each cause: trigger, capability, version of the delegating skill and class of the failure."""
    tasks = inputs.hour_gold["tasks"].where(sf.col("capability_id").isNotNull())
    is_failed = sf.col("outcome") == "failed"
    is_mismatch = is_failed & sf.col("failure_class").contains("contract")
    # Being late is one cause, whatever the task came to.
    late = tasks.where(is_late(inputs.params)).withColumn("failure_class", sf.lit(None).cast("string"))
    causes = (
        _cause(late, "eta_missed", sf.col("eta_us"))
        .unionByName(_cause(tasks.where(is_failed & ~is_mismatch), "task_failed", sf.col("ended_us")))
        .unionByName(_cause(tasks.where(is_mismatch), "contract_mismatch", sf.col("ended_us")))
        .unionByName(_misses(inputs))
    )
    found = causes.groupBy(*_CAUSE).agg(
        sf.count("*").alias("count"),
        sf.slice(sf.array_sort(sf.collect_set("corr_id")), 1, _SAMPLES).alias("sample_corr_ids"),
        sf.min("at_us").alias("first_us"),
        sf.max("at_us").alias("last_us"),
    )
    repeated = found.where((sf.col("trigger") != "routing_miss") | (sf.col("count") >= inputs.params.routing_misses))
    known = newest(inputs.facts, "capability", _CAPABILITY)
    skills = known.select(
        sf.col("key").alias("_capability"), sf.col("executorSkillVersion").alias("executor_skill_version")
    )
    return repeated.join(skills, sf.col("capability_id") == sf.col("_capability"), how="left").select(
        # The same cause has the same key in every run: a gateway that has the item knows it.
        sf.substring(sf.sha2(sf.concat_ws("|", *[sf.coalesce(each, sf.lit("")) for each in _CAUSE]), 256), 1, 26).alias(
            "review_key"
        ),
        *_CAUSE,
        "executor_skill_version",
        "count",
        "sample_corr_ids",
        "first_us",
        "last_us",
    )


def _cause(tasks: DataFrame, trigger: str, at_us: Column) -> DataFrame:
    return tasks.select(
        sf.lit(trigger).alias("trigger"),
        "capability_id",
        "delegation_skill_version",
        "failure_class",
        "corr_id",
        at_us.alias("at_us"),
    )


def _misses(inputs: GoldInputs) -> DataFrame:
    """Only those of capabilities that are published: nobody is expected to route the others."""
    known = newest(inputs.facts, "capability", _CAPABILITY).where(sf.col("status").isin("active", "published"))
    rows = inputs.hour_gold["routing_misses"].join(known, sf.col("capability_id") == sf.col("key"), how="left_semi")
    return rows.select(
        sf.lit("routing_miss").alias("trigger"),
        "capability_id",
        sf.lit(None).cast("string").alias("delegation_skill_version"),
        sf.lit("no_route").alias("failure_class"),
        # ENV-3: an event that starts a conversation gives it its own ULID.
        sf.concat(sf.lit("corr_"), sf.substring("event_id", 5, 26)).alias("corr_id"),
        "at_us",
    )
