"""Fleets from a seed: true to the protocol, the same every time, and with exactly the faults that they list."""

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentpost.lake.columns import segment_batch
from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.schema import FACT_TOPICS, FACTS, SEGMENT
from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import ulid_time_ms
from agentpost.protocol.timestamps import parse_ms
from agentpost.simulate.faults import ALL_RULES, chosen_rules
from agentpost.simulate.fleet import part_directory, release_part, write_fleet
from agentpost.simulate.plan import FleetPlan
from tests.simulate.plain_check import PlainCheck, truth_of

SMALL = FleetPlan(nodes=6, agents=24, events=8_000, seed=3, faults=ALL_RULES, segment_events=700)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fleet") / "lake"
    write_fleet(SMALL, place, workers=1)
    return place


def contents(lake: Path) -> dict[str, str]:
    return {
        str(path.relative_to(lake)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(lake.rglob("*"))
        if path.is_file()
    }


def now_us(lake: Path) -> int:
    return json.loads((lake / "truth.json").read_text())["nowUs"]


def rows_of(lake: Path) -> list[dict]:
    found = []
    for path in sorted(lake.glob("manifests/*/*/*.json")):
        manifest = msgspec.json.decode(path.read_bytes(), type=SegmentManifest)
        try:
            table = pq.read_table(lake / manifest.path, partitioning=None)
        except (OSError, ValueError):
            continue
        if "body" in table.column_names:
            found += [row | {"node": manifest.node_id} for row in table.to_pylist()]
    return found


def test_the_same_seed_makes_the_same_lake(lake: Path, tmp_path: Path) -> None:
    """The same plan is the same lake, byte for byte, whatever number of processes writes it."""
    write_fleet(SMALL, tmp_path / "again", workers=2)
    assert contents(tmp_path / "again") == contents(lake)


@pytest.mark.parametrize("workers", [1, 2])
def test_whoever_waits_is_told_how_far_it_is(tmp_path: Path, workers: int) -> None:
    """While a fleet is written the count of its events grows, and never beyond what there is in the end."""
    told: list[int] = []
    done = write_fleet(SMALL, tmp_path / "lake", workers=workers, at=told.append)
    assert told == sorted(told)
    assert told[-1] == done.events if workers == 1 else all(0 <= count <= done.events for count in told)


def test_another_seed_makes_another_lake(lake: Path, tmp_path: Path) -> None:
    """Another seed is another fleet: no event of one is in the other."""
    write_fleet(msgspec.structs.replace(SMALL, seed=4), tmp_path / "other", workers=1)
    here, there = ({row["event_id"] for row in rows_of(place)} for place in (lake, tmp_path / "other"))
    assert not here & there


def test_bodies_are_events_of_the_protocol_and_columns_say_the_same(lake: Path) -> None:
    """Every body decodes, and every column repeats what stands in it."""
    kinds: Counter[str] = Counter()
    for row in rows_of(lake):
        event = decode_event(row["body"])
        kinds[event.kind] += 1
        assert (event.event_id, event.seq, event.kind) == (row["event_id"], row["seq"], row["kind"])
        assert (event.source_node_id, event.source_agent_id) == (row["source_node"], row["source_agent"])
        assert (event.corr_id, event.trace.attempt) == (row["corr_id"], row["attempt"])
        assert parse_ms(event.created_at) * 1000 == row["created_us"]
        assert (event.expires_at and parse_ms(event.expires_at) * 1000) == row["expires_us"]
        assert event.trace.route_decision == row["route_decision"]
        assert event.trace.routing_policy_version == row["routing_policy"]
        assert row["event_hour"] == ulid_time_ms(event.event_id) // 3_600_000
        said = event.payload
        assert getattr(said, "ref_event_id", None) == row["ref_event_id"]
        assert getattr(said, "task_id", None) == row["task_id"]
        assert getattr(said, "ack_type", None) == row["ack_type"]
        assert getattr(said, "acked_by_node_id", None) == row["acked_by_node"]
        assert getattr(said, "reason", None) == row["reason"]
        assert getattr(said, "progress", None) == row["progress"]
        assert getattr(said, "failure_class", None) == row["failure_class"]
        assert getattr(said, "capability_id", None) == row["capability_id"]
        assert (getattr(said, "attempts", None)) == row["dead_attempts"]
        if event.kind in ("message", "task_create"):
            assert (list(said.to_agents), list(event.to_nodes)) == (row["to_agents"], row["to_nodes"])
        elif event.kind not in ("ack", "signal", "dead_letter"):
            assert ([event.to_agent_id], list(event.to_nodes)) == (row["to_agents"], row["to_nodes"])
        else:
            assert row["to_agents"] == row["to_nodes"] == []
        eta = getattr(said, "eta_at", None) or getattr(said, "revised_eta_at", None)
        assert (eta and parse_ms(eta) * 1000) == row["eta_us"]
    assert set(kinds) == {
        *("message", "ack", "reply", "signal", "dead_letter"),
        *("task_create", "task_accept", "task_update", "task_complete", "task_failed"),
    }


def test_columns_are_those_that_a_gateway_would_write(lake: Path) -> None:
    """A gateway that exports the same bodies writes the same columns, every one of them."""
    looked_at = 0
    for path in sorted(lake.glob("outbox/*/*/*.parquet")):
        try:
            table = pq.read_table(path, partitioning=None)
        except (OSError, ValueError):
            continue
        if table.schema.equals(SEGMENT):
            said = [table[name].to_pylist() for name in ("seq", "chain", "body")]
            written = pa.Table.from_batches([segment_batch(*said)])
            assert [name for name in SEGMENT.names if not written[name].equals(table[name])] == [], path
            looked_at += len(table)
    assert looked_at > SMALL.events / 2


@pytest.mark.parametrize("seed", range(5))
def test_the_truth_is_what_a_plain_check_finds(tmp_path: Path, seed: int) -> None:
    """An independent check of every rule finds exactly the faults that were put in, no more, no fewer."""
    write_fleet(msgspec.structs.replace(SMALL, seed=100 + seed), tmp_path / "lake", workers=1)
    found, truth = PlainCheck(tmp_path / "lake", now_us=now_us(tmp_path / "lake")).found, truth_of(tmp_path / "lake")
    assert {"missed": truth - found, "too many": found - truth} == {"missed": set(), "too many": set()}
    assert {dict(fault)["rule"] for fault in truth} == set(ALL_RULES) - {"late_arrival"}


def test_a_fleet_without_faults_breaks_no_rule(tmp_path: Path) -> None:
    """With --faults none nothing is wrong, and nothing is said to be."""
    write_fleet(msgspec.structs.replace(SMALL, faults=()), tmp_path / "lake", workers=1)
    assert truth_of(tmp_path / "lake") == set()
    assert PlainCheck(tmp_path / "lake", now_us=now_us(tmp_path / "lake")).found == set()


def test_parts_come_one_by_one_and_make_the_same_lake_in_any_order(tmp_path: Path) -> None:
    """A fleet in parts is released part by part; in whatever order, the lake in the end is the same."""
    plan = msgspec.structs.replace(SMALL, parts=(3.0, 2.0, 1.0))
    for name, order in (("forth", (0, 1, 2)), ("back", (2, 0, 1))):
        place = tmp_path / name
        write_fleet(plan, place, workers=1)
        assert not (place / "manifests").exists()
        assert [part_directory(place, part).exists() for part in order] == [True] * 3
        for part in order:
            assert release_part(place, part) > 0
    assert contents(tmp_path / "forth") == contents(tmp_path / "back")
    place = tmp_path / "forth"
    assert PlainCheck(place, now_us=now_us(place)).found == truth_of(place)
    assert json.loads((place / "truth.json").read_text())["late"]
    with pytest.raises(Refusal, match="no part 1 that waits"):
        release_part(place, 1)


def test_a_part_that_came_late_leaves_a_hole_until_it_is_there(tmp_path: Path) -> None:
    """While a late node's segments are missing its outbox has a gap; once they came there is none."""
    plan = msgspec.structs.replace(SMALL, parts=(1.0, 1.0, 1.0, 1.0), faults=("late_arrival",))
    write_fleet(plan, tmp_path, workers=1)
    (late,) = json.loads((tmp_path / "truth.json").read_text())["late"]
    for part in range(4):
        release_part(tmp_path, part)
    seqs = [row["seq"] for row in rows_of(tmp_path) if row["node"] == late["node"]]
    assert sorted(seqs) == list(range(1, len(seqs) + 1))
    assert late["seq"] in seqs
    assert late["part"] >= 1


def test_facts_know_every_topic(lake: Path) -> None:
    """The change logs speak of nodes, agents, cursors, capabilities, policies, sessions and absences."""
    (path,) = lake.glob("facts/*/*.parquet")
    table = pq.read_table(path, partitioning=None)
    assert table.schema.equals(FACTS)
    assert set(table["topic"].to_pylist()) == set(FACT_TOPICS)
    heads = {}
    for row in rows_of(lake):
        heads[row["node"]] = max(heads.get(row["node"], 0), row["created_us"])
    assert max(table["at_us"].to_pylist()) < now_us(lake)


def test_counts_are_as_asked(lake: Path) -> None:
    """About as many events as asked for, and as many in the lake as the truth says, holes and lost files aside."""
    truth = json.loads((lake / "truth.json").read_text())
    assert truth["events"] == pytest.approx(SMALL.events, rel=0.25)
    lost = Counter(fault["rule"] for fault in truth["faults"])
    there = len({(row["node"], row["chain"]) for row in rows_of(lake)})
    assert truth["events"] - 12 * (lost["gap"] + lost["bad_segment"]) <= there <= truth["events"] + 5 * lost["fork"]


@pytest.mark.parametrize(
    ("change", "field"),
    [({"nodes": 2}, "nodes"), ({"agents": 3}, "agents"), ({"events": 5}, "events"), ({"parts": (1.0, -1.0)}, "parts")],
)
def test_a_senseless_plan_is_refused(change: dict, field: str) -> None:
    """A plan that makes no sense is refused, with the name of the field."""
    with pytest.raises(Refusal) as refused:
        FleetPlan(**change)
    assert refused.value.field == field


def test_an_unknown_fault_is_refused() -> None:
    """A fault that nobody can simulate is refused, with a list of those that can be."""
    with pytest.raises(Refusal, match="'lost' is no fault"):
        chosen_rules("gap,lost")
    assert chosen_rules("none") == ()


def test_a_lake_is_never_written_over(lake: Path) -> None:
    """A directory that has something in it is left alone."""
    before = contents(lake)
    with pytest.raises(Refusal, match="not empty"):
        write_fleet(SMALL, lake, workers=1)
    assert contents(lake) == before
