"""`tasks`: what became of every task: promise, progress, outcome, lateness."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import seq_of_place
from agentpost.pipeline.gold.inputs import HourInputs
from agentpost.pipeline.gold.names import located, with_names
from agentpost.pipeline.params import Params

__all__ = ["build", "late_at", "task_findings", "with_lateness"]


def build(inputs: HourInputs) -> DataFrame:
    """One row for each task. `outcome` is null while it is open; `lateness_us` is negative for what came early.

    A task that was canceled has no promise to keep, nor has one that failed: its ETA was for completing it.
    """
    rows = inputs.tasks.selectExpr("*", "if(canceled_us is null, least(completed_us, failed_us), null) as done_us")
    ended = "coalesce(canceled_us, done_us)"
    found = rows.selectExpr(
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
        "cast(coalesce(updates, 0) as int) as updates",
        "progress",
        f"{ended} as ended_us",
        f"case when {ended} is null then null when done_us is null then 'canceled'"
        f" when completed_us = {ended} then 'completed' else 'failed' end as outcome",
        "failure_class",
        "done_us - eta_us as lateness_us",
        f"if(completed_us = done_us, done_us <= eta_us + {inputs.params.eta_grace_us}L, null) as is_eta_kept",
        "done_us > deadline_us as is_deadline_missed",
        f"{seq_of_place('create_place')} as seq",
    )
    return with_names(
        found,
        inputs.names,
        created_by="node",
        requester="requester_agent",
        assignee="assignee_agent",
        capability="capability_id",
        skill_version="delegation_skill_version",
        task_type="task_type",
        failure_class="failure_class",
    )


def task_findings(inputs: HourInputs) -> DataFrame:
    """The hour table `task_findings`: tasks that failed or came late, and open ones that may yet.

    One row for each with where it was created, and one with where it failed.
    """
    ended = "coalesce(canceled_us, least(completed_us, failed_us))"
    outcome = f"case when {ended} is null then 'open' when canceled_us is not null then 'canceled' when completed_us = {ended} then 'completed' else 'failed' end"
    rows = inputs.tasks.selectExpr(
        "hour",
        "task_id",
        "corr_id",
        "capability",
        "skill_version",
        "failure_class",
        f"{outcome} as outcome",
        "eta_us",
        f"{ended} as ended_us",
        f"{ended} > eta_us + {inputs.params.eta_grace_us}L as came_late",
        f"{ended} is null and eta_us is not null as may_be_late",
        "coalesce(accepted_by, created_by) as worker",
        "created_by",
        "create_place",
        "failed_by",
        "failed_place",
    )
    common = (
        "hour",
        "task_id",
        "corr_id",
        "capability",
        "skill_version",
        "failure_class",
        "outcome",
        "eta_us",
        "ended_us",
        "worker",
    )
    late = rows.where("(came_late or may_be_late) and create_place is not null").selectExpr(
        *common, "'eta_missed' as rule", "created_by as `by`", "create_place as place"
    )
    failed = rows.where("failed_place is not null").selectExpr(
        *common, "'task_failed' as rule", "failed_by as `by`", "failed_place as place"
    )
    told = located(late.unionByName(failed), inputs.outboxes)
    return with_names(
        told,
        inputs.names,
        capability="capability_id",
        skill_version="delegation_skill_version",
        failure_class="failure_class",
        worker="worker_node",
    )


def late_at(params: Params) -> str:
    """Whether a task ended, or is still open, after its ETA and the grace (TASK-8)."""
    return f"coalesce(ended_us, {params.now_us}L) > eta_us + {params.eta_grace_us}L"


def with_lateness(tasks: DataFrame, params: Params) -> DataFrame:
    """The table as it reads at `params.now_us`: `is_late` for what is open too."""
    return tasks.withColumn("is_late", sf.expr(f"coalesce({late_at(params)}, false)"))
