"""The agents of a gateway: kept, published, changed, and never taken from another node."""

import asyncio

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentpost.delivery.agents import LocalAgents
from agentpost.delivery.secrets import AgentSecrets
from agentpost.edges.runtimes import make_runtime
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import AgentStatus, Failover
from agentpost.room.directory import RoomDirectory
from agentpost.room.document import Room
from agentpost.store.values import LocalAgent
from agentpost.testing import START_MS, FakeClock, MemoryStore, SeededChance
from tests.room.building import EDGE, SEED, a_populated_room, bring
from tests.store.building import EPOCH, refused


class Directory(RoomDirectory):
    """The list in the room, which refuses what the test says it does."""

    def __init__(self, home: "Home") -> None:
        super().__init__(home.room)
        self._home = home

    def publish(self, agent_id: str, status: AgentStatus) -> None:
        if self._home.refuse_publishing is not None:
            raise self._home.refuse_publishing
        super().publish(agent_id, status)


class Home:
    """The store and the room of the seed, which hosts agents."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(node_id=SEED, epoch=EPOCH)
        self.room: Room = a_populated_room(clock=self.clock)
        self.changes = 0
        self.changed = asyncio.Event()
        self.refuse_publishing: Refusal | None = None
        self.agents = LocalAgents(
            store=self.store,
            directory=Directory(self),
            clock=self.clock,
            check=self._check,
            on_change=self._on_change,
        )

    def _check(self, agent: LocalAgent) -> None:
        if agent.runtime == "teleport":
            raise Refusal(Code.INVALID_FIELD, "there is no runtime 'teleport'", field="runtime")

    def _on_change(self) -> None:
        self.changes += 1
        self.changed.set()

    def owner_of(self, agent_id: str) -> str | None:
        agent = self.room.snapshot().agents.get(agent_id)
        return None if agent is None else agent.owner_node_id


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.mark.req("ROUTE-1")
async def test_an_agent_that_is_added_can_be_found_by_all(home: Home) -> None:
    """The room says who owns the agent, and the dispatcher hears of it."""
    added = await home.agents.add("ada", "command", {"argv": ["ada"]})
    assert added == home.agents.get("ada")
    assert home.owner_of("ada") == SEED
    assert home.room.snapshot().agents["ada"].status is AgentStatus.ACTIVE
    assert home.changes == 1
    assert [agent.agent_id for agent in home.agents.list()] == ["ada"]


async def test_an_agent_that_is_added_again_is_changed(home: Home) -> None:
    """How an agent is engaged can change; since when it is here cannot, and a pause stays."""
    await home.agents.add("ada", "pull")
    await home.agents.pause("ada")
    home.clock.advance(1_000)
    changed = await home.agents.add("ada", "webhook", {"url": "http://host/"})
    assert (changed.runtime, changed.created_at_ms, changed.is_paused) == ("webhook", START_MS, True)


async def test_an_agent_of_another_node_is_refused(home: Home) -> None:
    """Whoever adds it is told whose it is, and nothing changes."""
    with refused(Code.CONFLICT) as caught:
        await home.agents.add(f"agent-of-{EDGE}", "pull")
    assert EDGE in caught.value.message
    assert home.agents.list() == []
    assert home.changes == 0


@pytest.mark.parametrize("agent_id", ["", "all", "postmaster", "-x", "a b", "a/b", "a" * 129, "ä"])
async def test_ids_that_mean_something_else_are_refused(home: Home, agent_id: str) -> None:
    """An agent's id is fit for a path, a URL and a terminal, and is nobody's address already."""
    with refused(Code.INVALID_FIELD) as caught:
        await home.agents.add(agent_id, "pull")
    assert caught.value.field == "agentId"


async def test_options_are_checked_before_anything_is_kept(home: Home) -> None:
    """An agent that could never be engaged is not added."""
    with refused(Code.INVALID_FIELD):
        await home.agents.add("ada", "teleport")
    assert home.agents.list() == []
    assert home.owner_of("ada") is None


@pytest.mark.req("ROUTE-1")
async def test_an_agent_that_the_room_refuses_is_not_added(home: Home) -> None:
    """The agent beyond the most that a gateway may have is refused, and is nowhere: not here, not after a restart."""
    await home.agents.add("agent-7", "pull")
    held = sum(each["signedBy"] == SEED for each in home.room.records("agents").values())
    record = {"ownerNodeId": SEED, "type": "internal", "status": "active"}
    home.room.write_together([("agents", f"other-{number}", record) for number in range(1_000 - held)])
    home.changes = 0
    with refused(Code.TOO_LARGE) as caught:
        await home.agents.add("one-too-many", "pull")
    assert "1000" in caught.value.message
    with refused(Code.NOT_FOUND):
        home.agents.get("one-too-many")
    assert home.owner_of("one-too-many") is None
    assert ([each.agent_id for each in home.agents.list()], home.changes) == (["agent-7"], 0)
    changed = await home.agents.add("agent-7", "webhook", {"url": "http://host/"})
    assert changed.runtime == "webhook", "one of those that are here can still be changed"
    await home.agents.announce()
    assert home.store.incidents() == []


async def test_a_change_that_the_room_refuses_changes_nothing(home: Home) -> None:
    """An agent that is here and belongs to another node by now stays as it was when it is added again."""
    before = LocalAgent(agent_id="ada", runtime="webhook", options={"url": "http://host/"}, created_at_ms=START_MS)
    await home.store.put_agent(before)
    refuse = Refusal(Code.TOO_LARGE, "the room is full")
    home.refuse_publishing = refuse
    with refused(Code.TOO_LARGE):
        await home.agents.add("ada", "pull")
    assert home.agents.get("ada") == before


@pytest.mark.req("ROUTE-1")
async def test_a_caller_that_goes_away_leaves_no_agent_half_added(home: Home) -> None:
    """The request is cancelled right after the agent is on the disk: the mesh knows the agent all the same."""
    put_agent = home.store.put_agent
    asked = asyncio.Event()

    async def slow(agent: LocalAgent) -> None:
        await put_agent(agent)
        asked.set()
        await asyncio.sleep(0)

    home.store.put_agent = slow  # type: ignore[method-assign]
    adding = asyncio.ensure_future(home.agents.add("ada", "pull"))
    await asked.wait()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    async with asyncio.timeout(10):
        await home.changed.wait()
    assert home.owner_of("ada") == SEED


async def test_an_agent_that_cannot_be_taken_from_the_disk_is_not_half_removed(home: Home) -> None:
    """The disk refuses: the agent is still here, and the mesh still finds it."""

    async def full(_: str) -> None:
        raise Refusal(Code.STORAGE_FULL, "the disk is full")

    await home.agents.add("ada", "pull")
    home.store.remove_agent = full  # type: ignore[method-assign,assignment]
    with refused(Code.STORAGE_FULL):
        await home.agents.remove("ada")
    assert home.owner_of("ada") == SEED


async def test_a_conflict_ends_with_the_agent_that_was_in_it(home: Home) -> None:
    """The operator removes the agent that another node has: its incident closes."""
    await home.store.put_agent(LocalAgent(agent_id=f"agent-of-{EDGE}", runtime="pull", created_at_ms=START_MS))
    await home.agents.announce()
    assert [each.kind for each in home.store.incidents()] == ["agent_conflict"]
    await home.agents.remove(f"agent-of-{EDGE}")
    assert home.store.incidents() == []
    assert home.owner_of(f"agent-of-{EDGE}") == EDGE


async def test_a_removed_agent_is_free_for_others(home: Home) -> None:
    """Its record is taken out of the room, and another node may have its name."""
    await home.agents.add("ada", "pull")
    await home.agents.remove("ada")
    assert home.owner_of("ada") is None
    with refused(Code.NOT_FOUND):
        await home.agents.remove("ada")
    bring(home.room, EDGE, "agents", "ada", {"ownerNodeId": EDGE})
    with refused(Code.CONFLICT):
        await home.agents.add("ada", "pull")


async def test_a_paused_agent_is_still_there_for_the_mesh(home: Home) -> None:
    """A pause holds back turns, not mail."""
    await home.agents.add("ada", "pull")
    assert (await home.agents.pause("ada")).is_paused
    assert home.room.snapshot().agents["ada"].is_active
    assert (await home.agents.pause("ada")).is_paused
    assert home.changes == 2
    assert not (await home.agents.resume("ada")).is_paused
    with refused(Code.NOT_FOUND):
        await home.agents.pause("eve")


async def test_a_start_publishes_all_agents_again(home: Home) -> None:
    """A gateway that stopped between its disk and the room says so when it is back."""
    await home.store.put_agent(LocalAgent(agent_id="ada", runtime="pull", created_at_ms=START_MS))
    await home.agents.announce()
    assert home.owner_of("ada") == SEED


async def test_an_agent_that_two_nodes_have_is_an_incident(home: Home) -> None:
    """The room has one owner; the other node's operator hears of it, and its other agents are published."""
    for agent_id in (f"agent-of-{EDGE}", "zoe"):
        await home.store.put_agent(LocalAgent(agent_id=agent_id, runtime="pull", created_at_ms=START_MS))
    await home.agents.announce()
    assert home.owner_of("zoe") == SEED
    (incident,) = home.store.incidents()
    assert (incident.kind, incident.subject, incident.detail["ownerNodeId"]) == (
        "agent_conflict",
        f"agent-of-{EDGE}",
        EDGE,
    )


async def test_what_is_published_again_unchanged_leaves_the_room_alone(home: Home) -> None:
    """A restart does not make the document grow."""
    await home.agents.add("ada", "pull")
    before = home.room.update_since()
    await home.agents.announce()
    assert home.room.update_since() == before


def test_a_list_shows_no_secrets() -> None:
    """Keys and tokens among the options are not shown."""
    agent = LocalAgent(
        agent_id="ada",
        runtime="webhook",
        options={"url": "http://host/", "secret": "whsec_x", "headers": {"authorization": "y"}},
        created_at_ms=START_MS,
    )
    secrets = AgentSecrets(Ed25519PrivateKey.generate(), SeededChance(1), make_runtime.secret_options)
    assert secrets.shown(agent) == {"url": "http://host/", "secret": "***", "headers": "***"}


@pytest.mark.req("ROUTE-2")
async def test_an_agent_is_taken_in_for_another_gateway_only_where_its_owner_says_so(home: Home) -> None:
    """A stand-in is named by the owner; it hosts the agent then, and the agent stays the owner's for everybody."""
    bring(home.room, EDGE, "agents", "eve", {"ownerNodeId": EDGE, "type": "internal", "status": "active"})
    with refused(Code.CONFLICT):
        await home.agents.add("eve", "command")
    bring(home.room, EDGE, "routing", "eve", {"fallbackNodeIds": [SEED], "failover": "wait"})
    await home.agents.add("eve", "command")
    await home.agents.announce()
    assert home.owner_of("eve") == EDGE
    assert home.store.incidents() == []
    with refused(Code.CONFLICT):
        home.agents.name_stand_ins("eve", ["node-z"])


@pytest.mark.req("ROUTE-2")
async def test_stand_ins_are_named_in_order_and_can_be_withdrawn(home: Home) -> None:
    """The room has the list as it was said, once each; an empty one leaves nobody, and nobody stands in for itself."""
    await home.agents.add("ada", "command")
    home.agents.name_stand_ins("ada", ["node-y", "node-x", "node-y"], failover=Failover.AT_LEAST_ONCE)
    rule = home.room.snapshot().routing["ada"]
    assert (rule.fallback_node_ids, rule.failover) == (("node-y", "node-x"), Failover.AT_LEAST_ONCE)
    home.agents.name_stand_ins("ada", [])
    assert "ada" not in home.room.snapshot().routing
    with refused(Code.INVALID_FIELD):
        home.agents.name_stand_ins("ada", [SEED])
    with refused(Code.NOT_FOUND):
        home.agents.name_stand_ins("nobody", ["node-x"])
