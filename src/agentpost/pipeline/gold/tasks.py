"""`tasks`: what became of every task: promise, progress, outcome, lateness."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import seq_of_place
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names
from agentpost.pipeline.gold.task_rows import TASKS
from agentpost.pipeline.params import Params

__all__ = ["build", "is_late", "task_findings", "with_lateness"]


def build(inputs: GoldInputs) -> DataFrame:
    """One row for each task. `outcome` is null while it is open; `lateness_us` is negative for what came early.

    A task that was canceled has no promise to keep. Its requester's gateway decided that, so what its worker says
    besides does not count, however it is dated.
    """
    done = sf.when(sf.col("canceled_us").isNull(), sf.least("completed_us", "failed_us"))
    ended = sf.coalesce("canceled_us", done)
    rows = inputs.silver["tasks"].select(
        "hour",
        "task_id",
        "corr_id",
        "created_by",
        "requester",
        "assignee",
        "capability",
        "skill_version",
        "task_type",
        "created_us",
        "accepted_us",
        "first_eta_us",
        "eta_us",
        "deadline_us",
        sf.coalesce("updates", sf.lit(0)).cast("int").alias("updates"),
        "progress",
        ended.alias("ended_us"),
        sf.when(ended.isNull(), sf.lit(None))
        .when(done.isNull(), sf.lit("canceled"))
        .when(sf.col("completed_us") == ended, sf.lit("completed"))
        .otherwise(sf.lit("failed"))
        .alias("outcome"),
        "failure_class",
        (done - sf.col("eta_us")).alias("lateness_us"),
        (done <= sf.col("eta_us") + sf.lit(inputs.params.eta_grace_us)).alias("is_eta_kept"),
        (done > sf.col("deadline_us")).alias("is_deadline_missed"),
        seq_of_place(sf.col("create_place")).alias("seq"),
        "create_place",
        "failed_place",
        "failed_by",
    )
    named = rows.withColumn("created_by_hash", sf.col("created_by")).withColumn("failed_by_hash", sf.col("failed_by"))
    return with_names(
        named.drop("failed_by"),
        inputs.names,
        created_by="node",
        requester="requester_agent",
        assignee="assignee_agent",
        capability="capability_id",
        skill_version="delegation_skill_version",
        task_type="task_type",
        failure_class="failure_class",
    )


def task_findings(inputs: GoldInputs) -> DataFrame:
    """The hour table `task_findings`: tasks that failed or came late, and open ones that may yet.

    What the tables of the fleet look at, whatever time it is.
    """
    may_be_late = sf.col("ended_us").isNull() & sf.col("eta_us").isNotNull()
    came_late = sf.col("ended_us") > sf.col("eta_us") + sf.lit(inputs.params.eta_grace_us)
    has_failed = sf.col("failed_place").isNotNull() | (sf.col("outcome") == "failed")
    return build(inputs).where(may_be_late | came_late | has_failed).select("hour", *TASKS.names)


def is_late(params: Params) -> Column:
    """Whether a task ended, or is still open, after its ETA and the grace (TASK-8)."""
    return sf.coalesce("ended_us", sf.lit(params.now_us)) > sf.col("eta_us") + sf.lit(params.eta_grace_us)


def with_lateness(tasks: DataFrame, params: Params) -> DataFrame:
    """The table as it reads at `params.now_us`: `is_late` for what is open too."""
    hidden = ("create_place", "failed_place", "created_by_hash", "failed_by_hash")
    return tasks.withColumn("is_late", sf.coalesce(is_late(params), sf.lit(False))).drop(*hidden)
