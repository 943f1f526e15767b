"""`integrity` and `observed`: every broken rule of the fleet's history, and what else is worth a look (OBS-7).

docs/pipeline.md has the precise definition of each rule.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agentpost.pipeline.gold.fleet import FleetInputs, Row, located, selected
from agentpost.pipeline.gold.task_rows import TASKS, is_late

__all__ = ["FINDINGS", "OBSERVED", "RULES", "integrity", "observed"]

_HOUR_US: Final = 3_600_000_000
FINDINGS: Final = pa.schema(
    [
        ("rule", pa.string()),
        ("node", pa.string()),
        ("epoch", pa.string()),
        ("seq", pa.int64()),
        ("event_id", pa.string()),
        ("agent_id", pa.string()),
        ("corr_id", pa.string()),
        ("at_us", pa.int64()),
        ("text", pa.string()),
    ]
)
_OF_DELIVERIES: Final = pa.schema([field for field in FINDINGS if field.name not in ("corr_id", "text")])
_OPEN: Final = pa.schema(
    [
        ("event_id", pa.string()),
        ("recipient", pa.string()),
        ("to_node", pa.string()),
        ("emitted_us", pa.int64()),
        ("accepted_us", pa.int64()),
        ("sla_due_us", pa.int64()),
        ("spoken_us", pa.int64()),
        ("by", pa.int64()),
        ("place", pa.int64()),
    ]
)
_ACTIVITY: Final = pa.schema([("node", pa.string()), ("hour", pa.int32()), ("last_us", pa.int64())])

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


def integrity(inputs: FleetInputs) -> pa.Table:
    """One row for each broken rule."""
    open_rows = inputs.hour_rows("open_deliveries", _OPEN)
    found = [
        *_of_deliveries(inputs, RULES),
        *located(_orphans(open_rows, inputs), inputs.segments),
        *located(_black_holes(open_rows, inputs), inputs.segments),
        *_regressions(inputs.segments),
    ]
    taken_in = inputs.findings.select(FINDINGS.names).cast(FINDINGS)
    return pa.concat_tables([taken_in, _table(found, RULES)])


def observed(inputs: FleetInputs) -> pa.Table:
    """One row for each thing that no rule forbids and somebody may want to know."""
    found = [
        *_of_deliveries(inputs, OBSERVED),
        *located(_missed_slas(inputs), inputs.segments),
        *located(_late_and_failed_tasks(inputs), inputs.segments),
    ]
    return _table(found, OBSERVED)


def _of_deliveries(inputs: FleetInputs, rules: Mapping[str, str]) -> list[Row]:
    named = pa.array(list(rules), pa.string())
    return selected(inputs.hour_rows("delivery_findings", _OF_DELIVERIES), pc.field("rule").isin(named))


def _orphans(open_rows: pa.Table, inputs: FleetInputs) -> Iterator[Row]:
    """What was spoken of for long enough, and never sent."""
    oldest = pc.scalar(inputs.params.now_us - inputs.params.orphan_grace_us)
    rows = selected(open_rows, pc.field("emitted_us").is_null() & (pc.field("spoken_us") < oldest))
    return _pointed(rows, "orphan_ack", "spoken_us")


def _black_holes(open_rows: pa.Table, inputs: FleetInputs) -> Iterator[Row]:
    """What a gateway that was there said nothing of: it wrote to its outbox after it, and an hour later again."""
    limit_us = inputs.params.black_hole_us
    is_old = pc.field("emitted_us") < pc.scalar(inputs.params.now_us - limit_us)
    unanswered = selected(open_rows, is_old & pc.field("accepted_us").is_null())
    activity = _activity(inputs) if unanswered else {}

    def was_there(row: Row) -> bool:
        hours, last_us = activity.get(row["to_node"], ((), 0))
        # The first hour in which it wrote something, from the hour of the event on.
        place = bisect_left(hours, row["emitted_us"] // _HOUR_US)
        return place < len(hours) and last_us >= max(hours[place] * _HOUR_US, row["emitted_us"]) + limit_us

    return _pointed(filter(was_there, unanswered), "black_hole", "emitted_us")


def _activity(inputs: FleetInputs) -> dict[str, tuple[list[int], int]]:
    """The hours in which every node wrote something, in order, and when it last did."""
    hourly = inputs.hour_rows("activity", _ACTIVITY)
    hours: defaultdict[str, list[int]] = defaultdict(list)
    last_us: dict[str, int] = {}
    for row in hourly.sort_by("hour").to_pylist():
        hours[row["node"]].append(row["hour"])
        last_us[row["node"]] = max(last_us.get(row["node"], 0), row["last_us"])
    return {node: (hours[node], last_us[node]) for node in hours}


def _regressions(segments: pa.Table) -> Iterator[Row]:
    ends = segments.group_by(["node", "epoch"]).aggregate(
        [("first_seq", "min"), ("last_seq", "max"), ("sealed_at_us", "min")]
    )
    lives = sorted(ends.to_pylist(), key=lambda row: (row["node"], row["epoch"]))
    for before, after in pairwise(lives):
        if before["node"] == after["node"] and after["first_seq_min"] <= before["last_seq_max"]:
            yield {
                "rule": "regression",
                "node": after["node"],
                "epoch": after["epoch"],
                "seq": after["first_seq_min"],
                "at_us": after["sealed_at_us_min"],
            }


def _missed_slas(inputs: FleetInputs) -> Iterator[Row]:
    is_due = pc.field("sla_due_us") < pc.scalar(inputs.params.now_us)
    rows = selected(inputs.hour_rows("open_deliveries", _OPEN), is_due & ~pc.field("emitted_us").is_null())
    return _pointed(rows, "sla_breach", "sla_due_us")


def _late_and_failed_tasks(inputs: FleetInputs) -> Iterator[Row]:
    tasks = inputs.hour_rows("task_findings", TASKS)
    for row in selected(tasks, is_late(inputs.params) & ~pc.field("create_place").is_null()):
        yield _of_task(row, "eta_missed", "eta_us", "create")
    for row in selected(tasks, ~pc.field("failed_place").is_null()):
        yield _of_task(row, "task_failed", "ended_us", "failed")


def _of_task(row: Row, rule: str, at_us: str, move: str) -> Row:
    by = {"create": "created_by_hash", "failed": "failed_by_hash"}[move]
    return {
        "rule": rule,
        "by": row[by],
        "place": row[f"{move}_place"],
        "corr_id": row["corr_id"],
        "at_us": row[at_us],
    }


def _pointed(rows: Iterable[Row], rule: str, at_us: str) -> Iterator[Row]:
    for row in rows:
        yield {
            "rule": rule,
            "by": row["by"],
            "place": row["place"],
            "event_id": row["event_id"],
            "agent_id": row["recipient"],
            "at_us": row[at_us],
        }


def _table(rows: Iterable[Row], sentences: Mapping[str, str]) -> pa.Table:
    told = [{name: row.get(name) for name in FINDINGS.names} | {"text": _sentence(row, sentences)} for row in rows]
    return pa.Table.from_pylist(told, FINDINGS)


def _sentence(row: Row, sentences: Mapping[str, str]) -> str:
    event, agent, node = (row.get(name) or "" for name in ("event_id", "agent_id", "node"))
    text = sentences[row["rule"]]
    return text.replace("{event}", event).replace("{agent}", agent).replace("{node}", node)
