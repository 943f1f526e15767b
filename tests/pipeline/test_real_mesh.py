"""Three real gateways and the pipeline over their lake: both say the same of every delivery."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentpost.protocol.delivery import Delivery
from agentpost.protocol.lifecycle import DELIVERY, DeliveryState
from agentpost.store.sqlite import SqliteStore
from tests.edges.mailing import Machine, three_machines
from tests.edges.meshing import eventually
from tests.edges.running import agentpost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_history(machines: tuple[Machine, Machine, Machine]) -> None:
    """Mail of every fate: answered, processed, refused, to several, at home, expired, not looked at yet."""
    seed, laptop, lab = machines
    lab.add_agent("reader")
    laptop.add_counting_agent("scribe")
    for agent_id, answer in (("grump", '{"error": "never"}'), ("quiet", "{}")):
        argv = ["/bin/sh", "-c", f"cat > /dev/null; echo '{answer}'"]
        options = {"argv": argv, "output": "json"}
        seed.post("/ansible/agents", {"agentId": agent_id, "runtime": "command", "options": options})
    eventually(
        lambda: all(laptop.knows(agent) for agent in ("reader", "grump", "quiet", "builder")) and lab.knows("scribe")
    )
    ended = [laptop.send("builder", f"{turn}", sender="architect")["eventId"] for turn in range(4)]
    ended += [laptop.send("scribe", "at home", sender="architect")["eventId"]]
    ended += [laptop.send(to, "hello", sender="architect")["eventId"] for to in ("grump", "quiet")]
    ended += [lab.send("scribe", "back", sender="reader")["eventId"]]
    taken = laptop.post(
        "/ansible/messages", {"fromAgentId": "architect", "toAgents": ["builder", "reader"], "body": "to two"}
    )["eventId"]
    terminal = {state.value for state in DELIVERY.terminal}
    eventually(
        lambda: (
            all(set((laptop if event_id != ended[-1] else lab).states(event_id)) <= terminal for event_id in ended)
            and set(laptop.states(taken)) == {DeliveryState.REPLIED, DeliveryState.ACCEPTED}
        )
    )

    # A gateway that ended before it heard that its answer had arrived would know less than the lake does.
    eventually(lambda: not any(on_their_way(machine) for machine in machines))

    lab.gateway.end()
    late = laptop.send("builder", "too late", sender="architect", ttlSeconds=3)["eventId"]
    eventually(lambda: laptop.states(late) == [DeliveryState.DEAD_LETTER])


def on_their_way(machine: Machine) -> int:
    """How many deliveries of a running gateway no other gateway has accepted, as far as it has heard."""
    with closing(sqlite3.connect(f"file:{machine.home / 'agentpost.db'}?mode=ro", uri=True)) as database:
        counted = "SELECT count(*) FROM deliveries WHERE state = ?"
        return database.execute(counted, (DeliveryState.EMITTED.value,)).fetchone()[0]


def deliveries_of(machines: Iterable[Machine]) -> dict[tuple[str, str], Delivery]:
    """What the stores of the gateways, which have ended, say."""
    found: dict[tuple[str, str], Delivery] = {}
    for machine in machines:
        store = SqliteStore.open(machine.home, node_id=machine.node, epoch="unused", now_ms=0)
        for delivery in store.deliveries_in(DeliveryState, limit=10_000):
            found[delivery.event_id, delivery.to_agent_id] = delivery
        store._close()
    return found


@pytest.mark.req("OBS-6")
def test_the_pipeline_says_of_every_delivery_what_its_gateway_says(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State, attempts, gateway and outcome of every (event, recipient) are those of the sender's own store."""
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.frames import table_frame
    from agentpost.pipeline.gold.lifecycle import with_state
    from agentpost.pipeline.params import Params
    from agentpost.pipeline.run import RunOptions, run_batch
    from agentpost.pipeline.warehouse import Warehouse

    place = tmp_path / "lake"
    monkeypatch.setenv("AGENTPOST_LAKE", str(place))
    with three_machines(tmp_path) as machines:
        make_history(machines)
        for machine in machines:
            machine.gateway.end()
            exported = agentpost("lake", "export", "--now", "--home", str(machine.home), "-o", "json")
            assert exported.returncode == 0, exported.stderr
    stored = deliveries_of(machines)
    now_us = max(each.emitted_at_ms for each in stored.values()) * 1000 + 1
    lake = Files(str(place))
    warehouse = Warehouse(lake.below("pipeline"))
    run_batch(spark, lake, warehouse, RunOptions(now_us=now_us))
    version = warehouse.current()
    assert version is not None
    lifecycle = with_state(table_frame(spark, warehouse, version, "lifecycle"), Params(now_us=now_us))
    found = {(row.event_id, row.recipient): (row.state, row.attempts, row.to_node) for row in lifecycle.collect()}
    assert found == {pair: (each.state.value, each.attempts, each.to_node_id) for pair, each in stored.items()}
    assert {each.state for each in stored.values()} >= {
        DeliveryState.REPLIED,
        DeliveryState.PROCESSED,
        DeliveryState.DEAD_LETTER,
        DeliveryState.ACCEPTED,
    }
