"""What gold tables are computed from."""

from typing import NamedTuple

from pyspark.sql import DataFrame

from agentpost.pipeline.params import Params

__all__ = ["FleetInputs", "HourInputs"]


class HourInputs(NamedTuple):
    """The rows of the hours that are computed anew. `names` has every name by its hash: name_hash, name.

    `outboxes` has each node and epoch once.
    """

    legs: DataFrame
    deliveries: DataFrame
    tasks: DataFrame
    names: DataFrame
    outboxes: DataFrame
    params: Params


class FleetInputs(NamedTuple):
    """All of the tables that a table of the whole fleet is computed from, as they are after the batch.

    `facts` has the newest fact of each topic and key. `since_hour` is the first hour that the batch touched.
    """

    segments: DataFrame
    facts: DataFrame
    names: DataFrame
    outboxes: DataFrame
    throughput: DataFrame
    delivery_minutes: DataFrame
    delivery_findings: DataFrame
    open_deliveries: DataFrame
    task_findings: DataFrame
    backlog: DataFrame
    completeness: DataFrame
    params: Params
    since_hour: int
