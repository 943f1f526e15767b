"""The migration from a legacy document: every entry once, phase by phase, with traffic running."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycrdt import Map, YMessageType, create_sync_message, create_update_message, handle_sync_message
from websockets.asyncio.server import ServerConnection, serve

from agentpost.delivery.ports import Content
from agentpost.delivery.publish import SendRequest
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.tasks import TaskState
from agentpost.testing import START_MS, FakeClock
from agentpost.work.migration.bridge import Bridge
from agentpost.work.migration.document import LegacyDocument
from agentpost.work.migration.entries import LegacyMap, read_entry
from agentpost.work.migration.phases import FALLBACK_AFTER_MS, Phase, check_move
from tests.edges.meshing import eventually
from tests.edges.running import served_gateway
from tests.work.meshing import Mesh, Node


def an_entry(entry_id: str, sender: str, to: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": entry_id,
        "from": sender,
        "to": to,
        "content": f"says {entry_id}",
        "timestamp": START_MS,
        "readBy": [],
    } | more


@pytest.mark.req("OPS-9")
@pytest.mark.parametrize(
    ("value", "to_agents", "at_ms"),
    [
        (an_entry("m", "a", "b"), ("b",), START_MS),
        (an_entry("m", "a", ["b", "c", "b"]), ("b", "c"), START_MS),
        (an_entry("m", "a", None), ("all",), START_MS),
        (an_entry("m", "a", ["b", "all"]), ("all",), START_MS),
        (an_entry("m", "a", {"b": True, "c": False}), ("b",), START_MS),
        (an_entry("m", "a", "b", timestamp=START_MS // 1000), ("b",), START_MS),
        (an_entry("m", "a", "b", timestamp="2026-02-25T16:22:10.000Z"), ("b",), START_MS),
        (an_entry("m", "a", "b", content={"text": "x"}), ("b",), START_MS),
    ],
)
def test_entries_are_read_as_they_were_written(value: Any, to_agents: tuple[str, ...], at_ms: int) -> None:
    """A name or a list, seconds or milliseconds, text or an object: all of it was written, and all of it is read."""
    entry = read_entry(LegacyMap.MESSAGES, "m", value)
    assert (entry.to_agents, entry.created_at_ms) == (to_agents, at_ms)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["id", "from", "to", "content", "timestamp", "readBy", "status"]), _VALUES))
def test_no_entry_makes_the_reader_stumble(value: dict[str, Any]) -> None:
    """Whatever stands in a legacy map is an entry or a refusal that says why not."""
    with contextlib.suppress(Refusal):
        read_entry(LegacyMap.TASKS, "key", value)


@pytest.mark.req("OPS-9")
def test_phases_go_one_step_forward_or_back_but_not_from_the_last() -> None:
    """Of all moves between phases exactly these are open."""
    order = list(Phase)
    for present in order:
        for wanted in order:
            step = order.index(wanted) - order.index(present)
            is_open = step == 0 or (present is not Phase.CLEANED and step <= 1)
            if is_open:
                check_move(present, wanted)
            else:
                with pytest.raises(Refusal) as caught:
                    check_move(present, wanted)
                assert caught.value.code is Code.INVALID_TRANSITION


class Legacy:
    """The old world: one document that all gateways and old programs share, over nothing but updates."""

    def __init__(self, mesh: Mesh, tmp_path: Path) -> None:
        self.mesh = mesh
        self.old = LegacyDocument()
        self.bridges = {
            node_id: Bridge(engine=node.engine, tasks=node.tasks, archive=tmp_path / f"{node_id}.yjs")
            for node_id, node in mesh.nodes.items()
        }

    def share(self) -> None:
        documents = [self.old, *(bridge.document for bridge in self.bridges.values())]
        for _ in range(2):
            for one in documents:
                for other in documents:
                    if one is not other:
                        other.receive(one.update())

    def write(self, entry_id: str, sender: str, to: Any, *, task: bool = False, **more: Any) -> None:
        now_ms = self.mesh.clock.now_ms()
        name = LegacyMap.TASKS if task else LegacyMap.MESSAGES
        self.old.put(name, entry_id, an_entry(entry_id, sender, to, timestamp=now_ms, **more))

    async def work(self) -> None:
        """Let everything come to rest, in both worlds."""
        for _ in range(2):
            self.share()
            for bridge in self.bridges.values():
                await bridge.step()
            await self.mesh.rest()
        self.share()

    async def enter(self, phase: Phase) -> None:
        self.share()
        for bridge in self.bridges.values():
            await bridge.move(phase)
        self.share()


@pytest.fixture
async def legacy(mesh: Mesh, tmp_path: Path) -> Legacy:
    """Three gateways with an agent each, and the document that they come from."""
    for node_id, agent_id in (("node-a", "ada"), ("node-b", "bob"), ("node-c", "cid")):
        await mesh.nodes[node_id].host(agent_id)
    return Legacy(mesh, tmp_path)


def bodies(node: Node, agent_id: str) -> list[str]:
    return sorted(
        content.body or ""
        for content in (node.engine.sealer.open(event) for event in node.inbox(agent_id))
        if content.body is not None
    )


@pytest.mark.req("OPS-9")
async def test_all_four_phases_with_traffic_lose_nothing_and_double_nothing(legacy: Legacy, mesh: Mesh) -> None:
    """In every phase an old program, an old client of an agent and the agents themselves write; at the end each
    recipient has each message once, and the document had what the phase says."""
    expected: dict[str, list[str]] = {"ada": [], "bob": [], "cid": []}
    number = 0

    async def traffic(*, is_shared: bool) -> None:
        nonlocal number
        number += 1
        legacy.write(f"old-{number}", "oldie", ["ada", "bob"])  # a program that no gateway has
        legacy.write(f"client-{number}", "ada", "bob")  # an old client of an agent that is in the mesh
        legacy.write(f"read-{number}", "oldie", "cid", readBy=["cid"])  # one that was read there
        legacy.write(f"everybody-{number}", "cid", "all")
        request = SendRequest(
            source_agent_id="ada", to_agents=("bob", "cid"), content=Content(body=f"says new-{number}")
        )
        receipt = await mesh.nodes["node-a"].engine.publisher.send(request)
        for agent_id, names in (
            ("ada", ("old", "everybody")),
            ("bob", ("old", "client", "everybody", "new")),
            ("cid", ("new",)),
        ):
            expected[agent_id] += [f"says {name}-{number}" for name in names]
        await legacy.work()
        mesh.clock.advance(FALLBACK_AFTER_MS)
        await legacy.work()
        assert legacy.old.has(LegacyMap.MESSAGES, receipt.event_id) is is_shared

    def check() -> None:
        for node_id, agent_id in (("node-a", "ada"), ("node-b", "bob"), ("node-c", "cid")):
            assert bodies(mesh.nodes[node_id], agent_id) == sorted(expected[agent_id])

    walk = (
        Phase.DUAL_WRITE,
        Phase.PIPES_FIRST,
        Phase.DUAL_WRITE,  # and back
        Phase.PIPES_FIRST,
        Phase.SHARED_OFF,
        Phase.PIPES_FIRST,  # and back
        Phase.SHARED_OFF,
    )
    for phase in walk:
        await legacy.enter(phase)
        await traffic(is_shared=phase is not Phase.SHARED_OFF)
        check()
    count = len(legacy.old.keys())
    await legacy.enter(Phase.CLEANED)
    assert legacy.old.keys() == []
    archive = LegacyDocument((legacy.bridges["node-a"]._archive).read_bytes())  # pyright: ignore[reportPrivateUsage]
    assert len(archive.keys()) == count
    await legacy.work()
    check()
    with pytest.raises(Refusal):
        await legacy.bridges["node-a"].move(Phase.SHARED_OFF)


@pytest.mark.req("OPS-9")
async def test_a_file_is_imported_once_however_often(legacy: Legacy, mesh: Mesh) -> None:
    """Unread messages reach their recipients, open tasks become tasks, and what cannot be read is told."""
    legacy.write("m1", "oldie", "ada")
    legacy.write("m2", "ada", "bob")
    legacy.write("m3", "bob", "ada")
    legacy.write("m4", "oldie", "ghost")
    legacy.write("t1", "ada", "bob", task=True, status="pending")
    legacy.write("t2", "ada", "bob", task=True, status="completed")
    legacy.old.put(LegacyMap.MESSAGES, "broken", {"content": "from nobody"})
    nested: Map[Any] = Map({"id": "m5", "from": "oldie", "to": "ada", "content": "says m5", "timestamp": START_MS})
    legacy.old.doc.get("messages", type=Map)["m5"] = nested
    file = legacy.old.update()
    first = [await bridge.take(LegacyDocument(file)) for bridge in legacy.bridges.values()]
    assert [(each.taken, each.waiting) for each in first] == [(4, 1), (1, 1), (0, 1)]
    assert all("from" in each.unreadable[0] for each in first)
    again = [await bridge.take(LegacyDocument(file)) for bridge in legacy.bridges.values()]
    assert [each.taken for each in again] == [0, 0, 0]
    await mesh.rest()
    assert bodies(mesh.nodes["node-a"], "ada") == ["says m1", "says m3", "says m5"]
    assert bodies(mesh.nodes["node-b"], "bob") == ["says m2"]
    (task,) = mesh.nodes["node-b"].tasks.list(agent_id="bob")
    assert (task.task.state, task.title) == (TaskState.CREATED, "says t1")


@pytest.mark.req("OPS-9")
async def test_entries_for_nobody_hold_up_the_last_step(legacy: Legacy, mesh: Mesh) -> None:
    """The document is not emptied while it has something for an agent that nobody hosts, unless that is meant."""
    legacy.write("m1", "oldie", "ghost")
    bridge = legacy.bridges["node-a"]
    for phase in (Phase.DUAL_WRITE, Phase.PIPES_FIRST, Phase.SHARED_OFF):
        await legacy.enter(phase)
    with pytest.raises(Refusal) as caught:
        await bridge.move(Phase.CLEANED)
    assert caught.value.code is Code.CONFLICT
    assert bridge.state.phase is Phase.SHARED_OFF
    await mesh.nodes["node-a"].host("ghost")
    await legacy.enter(Phase.CLEANED)
    assert bodies(mesh.nodes["node-a"], "ghost") == ["says m1"]


@contextlib.contextmanager
def a_legacy_server(document: LegacyDocument) -> Iterator[str]:
    """A room as such servers are: y-protocols sync over a WebSocket, and every update to everybody else."""
    ready: list[str] = []
    is_up = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        clients: set[ServerConnection] = set()

        async def talk(client: ServerConnection) -> None:
            clients.add(client)
            await client.send(create_sync_message(document.doc))
            async for frame in client:
                assert isinstance(frame, bytes)
                if frame[0] == YMessageType.SYNC:
                    answer = handle_sync_message(frame[1:], document.doc)
                    if answer is not None:
                        await client.send(answer)
                    for other in clients - {client}:
                        await other.send(create_update_message(document.update()))

        async with serve(talk, "127.0.0.1", 0) as server:
            ready.append(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/ansible")
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert is_up.wait(30)
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@pytest.mark.req("OPS-9")
def test_a_live_room_is_bridged(tmp_path: Path) -> None:
    """A gateway takes over what stands in a live legacy room, and what its agents send appears there."""
    document = LegacyDocument()
    document.put(LegacyMap.MESSAGES, "m1", an_entry("m1", "oldie", "ada"))
    with (
        a_legacy_server(document) as url,
        served_gateway(tmp_path / "home", clock=FakeClock()) as served,
    ):
        for agent_id in ("ada", "bob"):
            served.operator.post("/ansible/agents", {"agentId": agent_id})
        with pytest.raises(Refusal) as caught:
            served.operator.post("/ansible/migration/phase", {"phase": "dual_write"})
        assert caught.value.field == "room"
        served.operator.post("/ansible/migration/phase", {"phase": "dual_write", "room": url})
        eventually(lambda: len(served.operator.get("/ansible/agents/ada/inbox")) == 1)
        sent = served.operator.post("/ansible/messages", {"fromAgentId": "ada", "toAgents": ["bob"], "body": "hello"})
        eventually(lambda: document.has(LegacyMap.MESSAGES, sent["eventId"]))
        status = served.operator.get("/ansible/migration")
        assert (status["phase"], status["connected"], status["takenOver"]) == ("dual_write", True, 1)
        file = tmp_path / "legacy.yjs"
        file.write_bytes(document.update())
        again = served.operator.post("/ansible/migration/import", {"file": str(file)})
        assert again["taken"] == 0
