"""`reviews`: what a capability's owner should look into, one item for each cause (CAP-6)."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import DEAD_REASONS
from agentpost.pipeline.gold.fleet import FleetInputs, newest, selected
from agentpost.pipeline.gold.inputs import GoldInputs
from agentpost.pipeline.gold.names import with_names
from agentpost.pipeline.gold.task_rows import TASKS, is_late

__all__ = ["REVIEWS", "build", "routing_misses"]

_SAMPLES: Final = 5
_KEY_LETTERS: Final = 26
_PUBLISHED: Final = ("active", "published")
_MISSES: Final = pa.schema([("event_id", pa.string()), ("capability_id", pa.string()), ("at_us", pa.int64())])
REVIEWS: Final = pa.schema(
    [
        ("review_key", pa.string()),
        ("trigger", pa.string()),
        ("capability_id", pa.string()),
        ("delegation_skill_version", pa.string()),
        ("failure_class", pa.string()),
        ("executor_skill_version", pa.string()),
        ("count", pa.int64()),
        ("sample_corr_ids", pa.list_(pa.field("element", pa.string(), nullable=False))),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
    ]
)


class _Cause(NamedTuple):
    trigger: str
    capability_id: str
    delegation_skill_version: str | None
    failure_class: str | None

    @property
    def key(self) -> str:
        """The same in every run: a gateway that has the item knows it."""
        return sha256("|".join(each or "" for each in self).encode()).hexdigest()[:_KEY_LETTERS]


def routing_misses(inputs: GoldInputs) -> DataFrame:
    """The hour table `routing_misses`: tasks for a capability that no gateway could be found for."""
    is_miss = (sf.col("dead_reason") == DEAD_REASONS["no_route"]) & sf.col("capability").isNotNull()
    rows = (
        inputs.silver["deliveries"]
        .where(is_miss)
        .select("hour", "event_id", "capability", sf.col("dead_us").alias("at_us"))
    )
    return with_names(rows, inputs.names, capability="capability_id")


def build(inputs: FleetInputs) -> pa.Table:
    """One row for each cause: trigger, capability, version of the delegating skill and class of the failure."""
    known = {key: _fields(value) for key, _, value in newest(inputs.facts, "capability")}
    published = {key for key, fields in known.items() if fields.get("status") in _PUBLISHED}
    found: defaultdict[_Cause, list[tuple[str, int | None]]] = defaultdict(list)
    for cause, corr_id, at_us in (*_of_tasks(inputs), *_misses(inputs, published)):
        found[cause].append((corr_id, at_us))
    rows = [
        {
            "review_key": cause.key,
            **cause._asdict(),
            "executor_skill_version": known.get(cause.capability_id, {}).get("executorSkillVersion"),
            "count": len(cases),
            "sample_corr_ids": sorted({corr_id for corr_id, _ in cases})[:_SAMPLES],
            "first_us": min((at_us for _, at_us in cases if at_us is not None), default=None),
            "last_us": max((at_us for _, at_us in cases if at_us is not None), default=None),
        }
        for cause, cases in found.items()
        if cause.trigger != "routing_miss" or len(cases) >= inputs.params.routing_misses
    ]
    return pa.Table.from_pylist(rows, REVIEWS)


def _of_tasks(inputs: FleetInputs) -> Iterator[tuple[_Cause, str, int | None]]:
    tasks = inputs.hour_rows("task_findings", TASKS)
    has_capability = ~pc.field("capability_id").is_null()
    for row in selected(tasks, has_capability & is_late(inputs.params)):
        # Being late is one cause, whatever the task came to.
        cause = _Cause("eta_missed", row["capability_id"], row["delegation_skill_version"], None)
        yield cause, row["corr_id"], row["eta_us"]
    for row in selected(tasks, has_capability & pc.field("outcome").isin(pa.array(["failed"]))):
        failure = row["failure_class"]
        trigger = "contract_mismatch" if "contract" in (failure or "") else "task_failed"
        cause = _Cause(trigger, row["capability_id"], row["delegation_skill_version"], failure)
        yield cause, row["corr_id"], row["ended_us"]


def _misses(inputs: FleetInputs, published: set[str]) -> Iterator[tuple[_Cause, str, int | None]]:
    """Only those of capabilities that are published: nobody is expected to route the others."""
    wanted = pc.field("capability_id").isin(pa.array(sorted(published), pa.string()))
    for row in selected(inputs.hour_rows("routing_misses", _MISSES), wanted):
        # ENV-3: an event that starts a conversation gives it its own ULID.
        corr_id = "corr_" + row["event_id"].removeprefix("evt_")[:_KEY_LETTERS]
        yield _Cause("routing_miss", row["capability_id"], None, "no_route"), corr_id, row["at_us"]


def _fields(text: str) -> dict[str, Any]:
    """The texts of a JSON object; nothing for what is none."""
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}
    pairs = cast("dict[str, Any]", value).items() if isinstance(value, dict) else ()
    return {name: each for name, each in pairs if isinstance(each, str)}
