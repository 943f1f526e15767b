"""Silver partials may come in any number, in any order: what they merge to is the same."""

import random
from functools import reduce
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.gold.building import HOUR, SECOND, START_US, Story, bronze

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def a_busy_day(chance: random.Random) -> Story:
    story = Story()
    for number in range(60):
        node, to = chance.sample("abc", 2)
        kind = chance.choice(["message", "task_create"])
        task = {"task_id": f"tsk_{number:026d}", "capability_id": "docs.review"} if kind == "task_create" else {}
        for attempt in range(1, chance.randint(2, 4)):
            story.send(number, node=node, to=to, kind=kind, attempt=attempt, **task)
        for ack_type in chance.sample(["accepted", "processed", "failed_terminal"], chance.randint(0, 3)):
            at_us = START_US + chance.randrange(3 * HOUR)
            story.ack(number, ack_type, node=chance.choice([to, to, node]), agent=f"agent-{to}", at_us=at_us)
        if task and chance.random() < 0.7:
            story.add(to, "task_accept", eta_us=START_US + chance.randrange(HOUR), task_id=task["task_id"])
            story.add(to, "task_update", task_id=task["task_id"], progress=chance.randrange(100), task_status="on it")
            story.add(to, "task_failed", task_id=task["task_id"], failure_class="timeout", ended_us=START_US + SECOND)
        if chance.random() < 0.2:
            story.dead(number, "expired", node=node, agent=f"agent-{to}")
    return story


def content(frame: "DataFrame") -> set[tuple[object, ...]]:
    found = [tuple(row) for row in frame.select(*sorted(frame.columns)).collect()]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.req("OBS-4")
def test_partials_merge_in_any_order_and_grouping(spark: "SparkSession", seed: int) -> None:
    """Events split into batches at random, merged in a random order and in steps, give what one batch gives."""
    from agentpost.pipeline.silver import legs
    from agentpost.pipeline.tables import SILVER, SilverTable

    chance = random.Random(seed)
    rows = a_busy_day(chance).rows
    batches: list[list[dict]] = [[] for _ in range(4)]
    for row in rows:
        chance.choice(batches).append(row)
    chance.shuffle(batches)
    distributed = SilverTable("legs", lambda events: legs.partials(legs.narrow(events)), legs.merge)
    for table in (distributed, *SILVER):
        parts = [table.partials(bronze(spark, batch)) for batch in batches if batch]
        at_once = table.merge(reduce(lambda one, other: one.unionByName(other), parts))
        in_steps = reduce(lambda one, other: table.merge(one.unionByName(other)), parts)
        whole = content(table.partials(bronze(spark, rows)))
        assert whole
        assert content(at_once) == whole, table.name
        assert content(in_steps) == whole, table.name
