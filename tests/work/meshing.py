"""Whole engines in one process: one room, one clock, pipes between all of them, and agents that do as they are told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import combinations
from pathlib import Path

from msgspec.structs import replace

from agentpost.delivery.engine import Engine
from agentpost.delivery.hub import LinkHub
from agentpost.delivery.ports import Content, Engagement, Runtime
from agentpost.edges.runtimes.handler import HandlerRuntime
from agentpost.edges.runtimes.pull import PullRuntime
from agentpost.protocol.codec import decode_event
from agentpost.protocol.coordination import CoordinationState, Preference
from agentpost.protocol.envelope import Event
from agentpost.protocol.snapshot import AgentStatus, Failover, NodeTier
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import LocalAgent
from agentpost.testing import FakeClock, FixedRoom, MemoryStore, SeededChance
from agentpost.work.office import Office
from agentpost.work.settings import WorkSettings
from tests.delivery.linking import Pipe

Script = Callable[[Engagement], Awaitable[str | Content | None]]


class Directory:
    """The list of agents, straight into the room of the test."""

    def __init__(self, room: FixedRoom, node_id: str) -> None:
        self._room = room
        self._node_id = node_id

    def owner_of(self, agent_id: str) -> str | None:
        agent = self._room.snapshot().agents.get(agent_id)
        return None if agent is None else agent.owner_node_id

    def publish(self, agent_id: str, status: AgentStatus) -> None:
        self._room.add_agent(agent_id, self._node_id, active=status is AgentStatus.ACTIVE)

    def withdraw(self, agent_id: str) -> None:
        self._room.remove_agent(agent_id)

    def stands_in(self, agent_id: str) -> bool:
        return False

    def name_stand_ins(self, agent_id: str, node_ids: Sequence[str], failover: Failover) -> None:
        self._room.add_fallback(agent_id, *node_ids, failover=failover)


class BoardState:
    """What the room says of coordination, for all nodes of a mesh."""

    def __init__(self) -> None:
        self.state = CoordinationState()


class SharedBoard:
    """One node's way to it; a copy of its own, while it is cut off. What the room refuses is tested where that is."""

    def __init__(self, shared: BoardState, node_id: str) -> None:
        self._everybodys = self._shared = shared
        self._node_id = node_id

    def cut(self) -> None:
        self._shared = BoardState()
        self._shared.state = self._everybodys.state

    def mend(self) -> None:
        self._shared = self._everybodys

    def state(self) -> CoordinationState:
        return self._shared.state

    def appoint(self, coordinator: str, *, confirm_last_resort: bool) -> None:
        self._shared.state = replace(self._shared.state, coordinator=coordinator)

    def check_appointment(self, coordinator: str, *, confirm_last_resort: bool) -> None:
        pass

    def set_cadence(self, sweep_every_seconds: int) -> None:
        self._shared.state = replace(self._shared.state, sweep_every_seconds=sweep_every_seconds)

    def prefer(self, preference: Preference) -> None:
        wishes = {**self._shared.state.preferences, self._node_id: preference}
        self._shared.state = replace(self._shared.state, preferences=wishes)

    def begin_term(self, term: int) -> None:
        terms = {**self._shared.state.terms, self._node_id: term}
        self._shared.state = replace(self._shared.state, terms=terms)


class Node:
    """One engine, with what agents do at it."""

    def __init__(self, mesh: "Mesh", node_id: str, store: Store) -> None:
        self.mesh = mesh
        self.settings = mesh.settings
        self.board = SharedBoard(mesh.board, node_id)
        self.node_id = node_id
        self.store = store
        self.scripts: dict[str, Script] = {}
        self.engaged: list[Engagement] = []
        self.wake_up()

    def wake_up(self) -> None:
        """Begin anew, with nothing but the store."""
        identity = self.mesh.room.identity(self.node_id)
        self.engine = Engine(
            store=self.store,
            room=self.mesh.room,
            directory=Directory(self.mesh.room, self.node_id),
            copies=None,
            signing=identity.signing,
            sealing=identity.sealing,
            tier=NodeTier.EDGE,
            clock=self.mesh.clock,
            chance=self.mesh.chance,
            runtimes=self._runtime,
        )
        self.office = Office(
            self.engine,
            board=self.board,
            chance=self.mesh.chance,
            settings=self.settings,
        )
        self.tasks = self.office.tasks

    @property
    def hub(self) -> LinkHub:
        return self.engine.links

    def _runtime(self, agent: LocalAgent) -> Runtime:
        script = self.scripts.get(agent.agent_id)
        if agent.runtime == "pull" or script is None:
            return PullRuntime()

        async def engage(engagement: Engagement) -> str | Content | None:
            self.engaged.append(engagement)
            return await script(engagement)

        return HandlerRuntime(engage)

    async def host(self, agent_id: str, script: Script | None = None) -> None:
        """An agent that fetches its mail, or that does what the script says when it is engaged."""
        if script is not None:
            self.scripts[agent_id] = script
        await self.engine.agents.add(agent_id, "pull" if script is None else "handler")

    def outbox(self) -> list[Event]:
        return [
            decode_event(stored.raw) for stored in self.store.read_outbox(0, limit=100_000, max_bytes=1 << 40).events
        ]

    def inbox(self, agent_id: str) -> list[Event]:
        return [decode_event(item.raw) for item in self.store.inbox_items(agent_id, limit=10_000)]

    def open_mail(self, agent_id: str) -> list[Event]:
        return [decode_event(item.raw) for item in self.store.backlog(agent_id, limit=10_000)]


class Mesh:
    """`home` puts the stores on a disk; without, they are in memory."""

    def __init__(self, home: Path | None = None, settings: WorkSettings | None = None) -> None:
        self.settings = settings
        self.board = BoardState()
        self.clock = FakeClock()
        self.room = FixedRoom(self.clock)
        self.chance = SeededChance(11)
        self.home = home
        self.nodes: dict[str, Node] = {}
        self.pipes: dict[tuple[str, str], Pipe] = {}

    async def add(self, *node_ids: str, tier: NodeTier = NodeTier.EDGE) -> list[Node]:
        for node_id in node_ids:
            self.room.add_node(node_id, tier=tier)
            store: Store
            if self.home is None:
                store = MemoryStore(node_id=node_id, epoch="epoch_1")
            else:
                store = SqliteStore.open(
                    self.home / node_id, node_id=node_id, epoch="epoch_1", now_ms=self.clock.now_ms()
                )
            node = self.nodes[node_id] = Node(self, node_id, store)
            await node.engine.start()
        for pair in combinations(sorted(self.nodes), 2):
            if pair not in self.pipes:
                self.join(*pair)
        return [self.nodes[node_id] for node_id in node_ids]

    def join(self, left: str, right: str) -> None:
        self.pipes[left, right] = Pipe(self.nodes[left], self.nodes[right])  # type: ignore[arg-type]

    def cut(self, node_id: str) -> None:
        """The node is out of reach, and everybody knows."""
        for pair in [pair for pair in self.pipes if node_id in pair]:
            self.pipes.pop(pair).cut()
        self.nodes[node_id].board.cut()
        self.room.set_offline(node_id)

    def mend(self, node_id: str) -> None:
        self.nodes[node_id].board.mend()
        self.room.set_online(node_id)
        for other in self.nodes:
            pair = (min(node_id, other), max(node_id, other))
            if other != node_id and pair not in self.pipes:
                self.join(*pair)

    async def rest(self) -> None:
        """Let everything come to rest: engines, local mail, and all pipes."""
        quiet = 0
        async with asyncio.timeout(60):
            while quiet < 3:
                heads = [node.store.head().seq for node in self.nodes.values()]
                moved = [await pipe.step() for pipe in self.pipes.values()]
                for _ in range(10):
                    await asyncio.sleep(0)
                if self.home is not None:
                    # The writers are threads of their own.
                    await asyncio.sleep(0.005)
                is_still = heads == [node.store.head().seq for node in self.nodes.values()] and not any(moved)
                quiet = quiet + 1 if is_still else 0

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.engine.close()
            await node.store.close()
