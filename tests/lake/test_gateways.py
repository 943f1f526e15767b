"""The lake of running gateways: it grows by itself, holds back pruning, and says how far it is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agentpost.config import CONFIG_FILE, Settings, load_settings
from agentpost.delivery.keeping import Keeper
from agentpost.delivery.messages import SendRequest
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import Content, Wakeups
from agentpost.edges.runtimes.registry import make_runtime
from agentpost.gateway import Gateway
from agentpost.lake.place import open_lake
from agentpost.lake.segments import is_vouched_for, manifests, outboxes
from agentpost.lake.settings import LakeSettings
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import Subscriber
from agentpost.testing import START_MS, FakeClock, FixedRoom, SeededChance, a_message
from tests.edges.mailing import three_machines
from tests.edges.meshing import eventually
from tests.edges.running import agentpost, running_gateway
from tests.lake.building import an_exporter, rows_of
from tests.store.building import EPOCH, NODE, PEER, open_sqlite
from tests.store.test_mirrors import keep


def facts_in(lake: Path) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for file in sorted((lake / "facts").rglob("*.parquet")):
        for row in pq.read_table(file, partitioning=None).to_pylist():
            found[row["topic"], row["key"]] = row["value"] and json.loads(row["value"])
    return found


@pytest.mark.req("OBS-4", "PIPE-9")
def test_a_mesh_exports_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three gateways with one lake: every outbox is in it once, signed, with the facts that go with it."""
    lake = tmp_path / "lake"
    monkeypatch.setenv("AGENTPOST_LAKE", str(lake))
    with three_machines(tmp_path) as (seed, laptop, lab):
        sent = [laptop.send("builder", f"{turn}", sender="architect")["eventId"] for turn in range(5)]
        eventually(lambda: all(laptop.states(event_id) == ["Replied"] for event_id in sent))
        for machine in (laptop, seed, lab):
            done = agentpost("lake", "export", "--now", "--home", str(machine.home), "-o", "json")
            assert done.returncode == 0, done.stderr
        place = open_lake(str(lake))
        found = outboxes(place)
        # The seed has nothing to say, unless this took so long that it called a sweep.
        exported = {node_id for node_id, _ in found}
        assert exported in ({"mbp-jane", "lab-jane"}, {"mbp-jane", "lab-jane", "vps-jane"})
        facts = facts_in(lake)
        assert facts["agent", "builder"]["ownerNodeId"] == "lab-jane"
        for node_id, epoch in found:
            segments = list(manifests(place, node_id, epoch))
            assert [each.first_seq for each in segments] == [1, *(each.last_seq + 1 for each in segments[:-1])]
            for each in segments:
                assert is_vouched_for(each, facts["node", each.sealed_by]["signingPublic"])
        epochs = dict(found)
        rows = rows_of(lake, "mbp-jane", epochs["mbp-jane"]).to_pylist()
        assert [row["event_id"] for row in rows if row["kind"] == "message"] == sent
        assert {(*row["to_agents"], *row["to_nodes"]) for row in rows if row["kind"] == "message"} == {
            ("builder", "lab-jane")
        }
        shown = agentpost("lake", "status", "--home", str(laptop.home), "-o", "json")
        assert [each["lagEvents"] for each in json.loads(shown.stdout)["outboxes"] if not each.get("isMirror")] == [0]
        assert 'agentpost_lake_lag_events{node="mbp-jane"}' in _metrics(laptop.home)
        listed = agentpost("lake", "list", "--lake", str(lake), "-o", "json")
        assert {each["nodeId"] for each in json.loads(listed.stdout)} >= exported


def _metrics(home: Path) -> str:
    import httpx

    from agentpost.store.home import Home

    transport = httpx.HTTPTransport(uds=str(Home(home).operator_socket))
    with httpx.Client(transport=transport, base_url="http://gateway") as http:
        return http.get("/metrics").text


@pytest.mark.req("OBS-4")
def test_segments_are_sealed_without_being_asked(tmp_path: Path) -> None:
    """A gateway seals what is old enough by itself, and goes on after a restart where the lake ends."""
    home, lake = tmp_path / "home", tmp_path / "lake"
    home.mkdir(mode=0o700)
    (home / CONFIG_FILE).write_text(f'node = "vps-jane"\n[lake]\npath = "{lake}"\nseal_every_seconds = 0.1\n')

    def sealed() -> int:
        return sum(each.last_seq - each.first_seq + 1 for pair in outboxes(place) for each in manifests(place, *pair))

    place = open_lake(str(lake))
    for turn in range(2):
        with running_gateway(home) as gateway:
            if turn == 0:
                for agent_id in ("ada", "bob"):
                    gateway.operator.post("/ansible/agents", {"agentId": agent_id})
            for _ in range(3):
                body = {"fromAgentId": "ada", "toAgents": ["bob"], "body": "hello"}
                gateway.operator.post("/ansible/messages", body)
            # A message and its ACK.
            eventually(lambda turn=turn: sealed() == 6 * (turn + 1))


def test_an_export_needs_no_running_gateway(tmp_path: Path) -> None:
    """A home whose gateway is down is exported by the command itself; without a lake it says what to do."""
    home, lake = tmp_path / "home", tmp_path / "lake"
    with running_gateway(home) as gateway:
        gateway.operator.post("/ansible/agents", {"agentId": "ada"})
        gateway.operator.post("/ansible/messages", {"fromAgentId": "ada", "toAgents": ["ada"], "body": "note"})
        none = agentpost("lake", "export", "--now", "--home", str(home))
        assert (none.returncode, "has no lake" in none.stderr) == (1, True)
        gateway.end()
    done = agentpost("lake", "export", "--now", "--home", str(home), "--lake", str(lake), "-o", "json")
    assert done.returncode == 0, done.stderr
    assert [each["nodeId"] for each in json.loads(done.stdout)["segments"]] == ["vps-jane"]
    assert facts_in(lake)["node", "vps-jane"]["status"] == "active"


def test_a_lake_that_cannot_be_reached_is_an_incident(tmp_path: Path) -> None:
    """Mail goes on without the lake; somebody is told, and told when it is back."""
    lake = tmp_path / "lake"
    lake.write_text("a file where a directory should be")
    with running_gateway(tmp_path / "home", "--lake", str(lake)) as gateway:
        gateway.operator.post("/ansible/agents", {"agentId": "ada"})
        gateway.operator.post("/ansible/messages", {"fromAgentId": "ada", "toAgents": ["ada"], "body": "note"})

        def kinds() -> list[str]:
            return [each["kind"] for each in gateway.operator.get("/ansible/incidents")]

        eventually(lambda: kinds() == ["lake_export"])
        assert agentpost("lake", "status", "--home", str(tmp_path / "home")).returncode == 1
        lake.unlink()
        eventually(lambda: kinds() == [])


@pytest.mark.req("PIPE-7")
async def test_nothing_is_pruned_before_it_is_in_the_lake(tmp_path: Path) -> None:
    """Compaction stops at what the lake has, of the own outbox and of mirrors, and goes on when it has more."""
    store = open_sqlite(tmp_path / "home")
    try:
        await store.append([a_message(number) for number in range(1, 21)])
        await keep(store, 3, 5)
        await store.note_subscriber(
            Subscriber(
                consumer_node_id=PEER,
                epoch=EPOCH,
                last_seq=20,
                updated_at_ms=START_MS,
                lease_expires_at_ms=START_MS + 10_000,
            )
        )
        policy = DeliveryPolicy(retention_events=0, mirror_retention_events=0)
        keeper = Keeper(store=store, room=FixedRoom(FakeClock()), clock=FakeClock(), wakeups=Wakeups(), policy=policy)
        exporter = an_exporter(tmp_path / "lake", tmp_path / "home", seal_events=8)
        keeper.hold(exporter.exported_seq)
        kept = await keeper.keep()
        assert (kept.outbox_events, kept.mirrored) == (0, 0)
        exporter.export()
        assert exporter.exported_seq(NODE, EPOCH) == 20
        kept = await keeper.keep()
        assert (kept.outbox_events, kept.mirrored) == (20, 0)
        exporter.export(now=True)
        assert (await keeper.keep()).mirrored == 5
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[lake]\nseal_events = 5\n", "path"),
        ('[lake]\npath = "x"\nsurprise = 5\n', "lake.surprise"),
        ('[lake]\npath = "x"\nseal_events = 0\n', "sealEvents"),
        ('lake = "x"\n', "table"),
    ],
)
def test_a_lake_that_makes_no_sense_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    """The table [lake] is checked like everything else in the file, and the refusal names what is wrong."""
    (tmp_path / CONFIG_FILE).write_text('node = "vps-jane"\n' + text)
    with pytest.raises(Refusal) as caught:
        load_settings(home=tmp_path, flags={}, environment={})
    assert caught.value.code is Code.INVALID_FIELD
    assert named in caught.value.message


def test_where_the_lake_is(tmp_path: Path) -> None:
    """Flag, then environment, then the file; a path in the file starts at the home, a URL is as it is."""
    (tmp_path / CONFIG_FILE).write_text('node = "vps-jane"\n[lake]\npath = "lake"\nsealEvents = 7\n')

    def found(**said: str) -> LakeSettings | None:
        environment = {"AGENTPOST_LAKE": said["environment"]} if "environment" in said else {}
        return load_settings(home=tmp_path, flags={"lake": said.get("flag")}, environment=environment).lake

    assert found() == LakeSettings(path=str(tmp_path / "lake"), seal_events=7)
    assert found(environment="/data", flag="s3://bucket/lake") == LakeSettings(path="s3://bucket/lake", seal_events=7)
    assert found(environment="/data") == LakeSettings(path="/data", seal_events=7)
    (tmp_path / CONFIG_FILE).write_text('node = "vps-jane"\n')
    assert found() is None


def test_a_gateway_without_a_lake_loads_no_pyarrow() -> None:
    """pyarrow is loaded by those who have a lake, and by nobody else."""
    import subprocess
    import sys

    code = (
        "import sys, agentpost.edges.http.server, agentpost.gateway; from agentpost.edges.cli.app import make_app;"
        "make_app(); print('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@asynccontextmanager
async def a_gateway(home: Path, lake: Path) -> AsyncIterator[Gateway]:
    """A whole gateway, by itself, that keeps nothing longer than it must."""
    settings = Settings(
        home=home,
        node_id="vps-jane",
        tier=NodeTier.BACKBONE,
        lake=LakeSettings(path=str(lake)),
        delivery=DeliveryPolicy(retention_events=0),
    )
    gateway = Gateway(settings, clock=FakeClock(), chance=SeededChance(1))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


async def say(gateway: Gateway, count: int, *, first: int) -> int:
    """Append events that name no other gateway; gives where the outbox ends then."""
    node_id = gateway.store.node_id
    await gateway.store.append([a_message(number, source_node_id=node_id) for number in range(first, first + count)])
    return gateway.store.head().seq


def floor_of(gateway: Gateway) -> int:
    return gateway.store.read_outbox(0, limit=1).floor_seq


@pytest.mark.req("PIPE-7", "OBS-4")
async def test_a_gateway_prunes_behind_its_export_round_after_round(tmp_path: Path) -> None:
    """Export, prune, export, prune: each round ends where the lake does, and never beyond."""
    async with a_gateway(tmp_path / "home", tmp_path / "lake") as gateway:
        assert gateway.lake is not None
        through = 0
        for turn in range(3):
            last_seq = await say(gateway, 15, first=100 * (turn + 1))
            await gateway.engine.keeper.keep()
            assert floor_of(gateway) == through
            await gateway.lake.export(now=True)
            through = gateway.lake.held_after("vps-jane", gateway.store.epoch)
            assert through == last_seq
            # What is said after the export is not in the lake yet.
            await say(gateway, 5, first=100 * (turn + 1) + 50)
            await gateway.engine.keeper.keep()
            assert floor_of(gateway) == through


@pytest.mark.req("PIPE-7", "OBS-4")
async def test_a_gateway_whose_lake_is_away_prunes_nothing_of_its_outbox(tmp_path: Path) -> None:
    """With a retention of nothing at all, what the lake cannot take stays, also over a restart."""
    (tmp_path / "lake").write_text("no directory")
    for turn in range(2):
        async with a_gateway(tmp_path / "home", tmp_path / "lake") as gateway:
            assert gateway.lake is not None
            await say(gateway, 15, first=100 * (turn + 1))
            with contextlib.suppress(Refusal):
                await gateway.lake.export(now=True)
            await gateway.engine.keeper.keep()
            assert floor_of(gateway) == 0
            assert gateway.store.head().seq == 15 * (turn + 1)


@pytest.mark.req("PIPE-7")
async def test_a_gateway_by_itself_prunes_its_outbox(tmp_path: Path) -> None:
    """Agents of one machine write to each other; what they have read goes, without a peer that says so."""
    settings = Settings(home=tmp_path / "home", node_id="vps-jane", delivery=DeliveryPolicy(retention_events=0))
    clock = FakeClock()
    gateway = Gateway(settings, clock=clock, chance=SeededChance(1), runtimes=make_runtime)
    await gateway.start()
    try:
        for agent_id in ("ada", "bob"):
            await gateway.engine.agents.add(agent_id, "pull")
        for number in range(6):
            await gateway.engine.publisher.send(
                SendRequest(source_agent_id="ada", to_agents=("bob",), content=Content(body=f"{number}"))
            )
        # The deliveries are accepted a moment later, when the gateway has read its own answers.
        async with asyncio.timeout(30):
            while floor_of(gateway) < 6:
                await gateway.engine.keeper.keep()
                await asyncio.sleep(0.01)
        assert gateway.store.backlog_size("bob") == 6
    finally:
        await gateway.stop()
