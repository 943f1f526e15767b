"""Three whole engines on disks that lose power, and the lives of messages between them.

The gateways are real but for their sockets: store, links, dispatch, timers. Each can die at a named point
(`points.py`): from then on it writes, sends and engages nothing; what it had not synced is gone; it is opened again on
what is left, and linked anew. Agents and people outlive their gateways.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agentpost.delivery.engine import Engine
from agentpost.delivery.frames import decode_frame
from agentpost.delivery.link import LinkSession
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import LocalAgent
from agentpost.testing import FakeClock, FixedRoom, SeededChance
from tests.faults.disk import Disk, Keep
from tests.faults.points import AGENT, COMMITS

__all__ = ["AWAY", "RECEIVER", "SEED", "SENDER", "Cut", "Mesh", "Node"]

SENDER, SEED, RECEIVER = NODES = ("sender", "seed", "receiver")
PATIENCE_SECONDS: Final = 120
_STEPS_HELD = 500
_TIERS: Final = {SENDER: NodeTier.EDGE, SEED: NodeTier.BACKBONE, RECEIVER: NodeTier.EDGE}
_WIRES: Final = ((SENDER, SEED), (RECEIVER, SEED))
# `carl` is there from the start, but for the room he moves in later.
_AGENTS: Final = {"ada": SENDER, "bob": RECEIVER, "carl": RECEIVER}
AWAY: Final = "away"
# Nothing is kept beyond what is needed, so that pruning has something to do after every message.
_POLICY: Final = DeliveryPolicy(
    accepted_ack_timeout_seconds=5,
    away_check_seconds=5,
    retention_events=0,
    settled_retention_seconds=10_000,
    mirror_retention_events=0,
)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where a gateway dies: when it comes by `point` for the `nth` time."""

    who: str
    point: str
    nth: int = 1


class Dead(BaseException):
    """The gateway is no more. Nothing catches it: whatever was running ends here."""


@dataclass
class Bob:
    """The agent that counts. What it did is done, whether or not its gateway lives to hear of it."""

    fails_first: bool = False
    did: Counter[str] = field(default_factory=Counter[str])
    tried: set[str] = field(default_factory=set[str])


class Mesh:
    """A sender and a receiver that only meet through a seed. One clock, which the test moves on; one room."""

    def __init__(self, folder: Path, *, cut: Cut | None = None, bob: Bob | None = None) -> None:
        # What ends because its gateway is dead is logged as a failure by whoever ran it.
        logging.getLogger("agentpost").setLevel(logging.CRITICAL)
        self.clock = FakeClock()
        self.room = FixedRoom(self.clock)
        self.bob = bob or Bob()
        self.folder = folder
        self.hits: Counter[tuple[str, str]] = Counter()
        self.has_died = asyncio.Event()
        self._cut = cut
        for node_id, tier in _TIERS.items():
            self.room.add_node(node_id, tier=tier)
        for agent_id, node_id in _AGENTS.items():
            self.room.add_agent(agent_id, node_id)
        self.room.add_node(AWAY, online=False)
        self.nodes = {node_id: Node(self, node_id) for node_id in _TIERS}
        self._wires: list[_Wire] = []

    async def start(self) -> None:
        for node in self.nodes.values():
            node.open()
        for node in self.nodes.values():
            await self.survive(node.begin)
        self._link()

    def _link(self) -> None:
        for wire in self._wires:
            wire.cut()
        self._wires = [_Wire(self.nodes[left], self.nodes[right]) for left, right in _WIRES]

    async def close(self) -> None:
        for wire in self._wires:
            wire.cut()
        for node in self.nodes.values():
            await node.stop()

    def reach(self, who: str, point: str) -> None:
        """Somebody comes by a named point, and may die there."""
        node = self.nodes[who]
        if node.is_dead:
            raise Dead
        self.hits[who, point] += 1
        cut = self._cut
        if cut is not None and (cut.who, cut.point, cut.nth) == (who, point, self.hits[who, point]):
            node.die()
            self.has_died.set()
            raise Dead

    async def survive(self, do: Callable[[], Awaitable[Any]]) -> bool:
        """Do something at a gateway. False if it died of that; it is up again then, and did or did not do it."""
        try:
            await do()
        except (Dead, Refusal):
            # A gateway that dies while something else is under way leaves it with a disk that refuses.
            if not self.has_died.is_set():
                raise
            await self.revive()
            return False
        return True

    async def revive(self) -> None:
        """Open the gateway that died on what its disk has kept."""
        for node in self.nodes.values():
            if node.is_dead:
                await node.come_back()
        self.has_died.clear()
        self._link()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass, much faster than outside, until something is so. Whoever dies meanwhile comes back."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                if self.has_died.is_set():
                    await self.revive()
                if is_so():
                    return
                await asyncio.sleep(0.002)
                self.clock.advance(100)
                for node in self.nodes.values():
                    node.look_again()

    async def hold_time(self, is_so: Callable[[], bool]) -> None:
        """Let no time pass until something is so, a gateway has died, or it seems not to come."""
        for _ in range(_STEPS_HELD):
            if is_so() or self.has_died.is_set():
                return
            await asyncio.sleep(0.002)

    def is_quiet(self) -> bool:
        """Whether everybody has read everything that there is for them."""
        ends = {node_id: node.store.head().seq for node_id, node in self.nodes.items()}
        mirrored = {each.source_node_id: each.last_seq for each in self.nodes[SEED].store.mirrors()}
        read = {
            (reader, each.source_node_id): each.last_seq
            for reader in (SENDER, RECEIVER)
            for each in self.nodes[reader].store.cursors()
        }
        return all(mirrored.get(source) == ends[source] for source in (SENDER, RECEIVER)) and all(
            read.get((reader, source)) == ends[source] for reader, source in ((SENDER, RECEIVER), (RECEIVER, SENDER))
        )

    async def pings(self) -> None:
        for wire in self._wires:
            await wire.tick()


class Node:
    def __init__(self, mesh: Mesh, node_id: str) -> None:
        self.mesh = mesh
        self.node_id = node_id
        self.is_dead = False
        self.lives = 0
        self._disk: Disk
        self.store: SqliteStore
        self.engine: Engine
        self.tasks: set[asyncio.Task[Any]] = set()

    async def begin(self) -> None:
        for agent_id, node_id in _AGENTS.items():
            if node_id == self.node_id and self.store.local_agent(agent_id) is None:
                runtime = "pull" if agent_id == "ada" else "bob"
                await self.engine.store.put_agent(LocalAgent(agent_id=agent_id, runtime=runtime, created_at_ms=0))
        self.engine.links.start()
        self.engine.dispatcher.start()
        self.engine.retrier.start()

    def open(self) -> None:
        home = self.mesh.folder / f"{self.node_id}-{self.lives}"
        self._disk = Disk()
        self._disk.__enter__()
        clock, room = self.mesh.clock, self.mesh.room
        self.store = SqliteStore.open(
            home, node_id=self.node_id, epoch="epoch_1", now_ms=clock.now_ms(), vfs=self._disk.name
        )
        keys = room.identity(self.node_id)
        self.engine = Engine(
            store=_CuttingStore(self, self.store),  # type: ignore[arg-type] - the same, with points around the commits
            room=room,
            directory=None,  # type: ignore[arg-type] - the room of the test knows the agents already
            copies=None,
            signing=keys.signing,
            sealing=keys.sealing,
            tier=_TIERS[self.node_id],
            clock=clock,
            # Two gateways must not make the same id in the same millisecond.
            chance=SeededChance(1_000 * NODES.index(self.node_id) + self.lives),
            runtimes=lambda agent: _BobRuntime(self),
            policy=_POLICY,
        )

    def die(self) -> None:
        self._disk.cut()
        self.is_dead = True

    async def come_back(self) -> None:
        await self.stop()
        self.lives += 1
        home = self.mesh.folder / f"{self.node_id}-{self.lives}"
        # Not a byte more than what was synced.
        self._disk.survive(home, keep=Keep.NOTHING)
        home.chmod(0o700)
        self.is_dead = False
        self.open()
        await self.begin()

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        with contextlib.suppress(Refusal, Dead):
            await self.engine.close()
        with contextlib.suppress(Refusal):
            await self.store.close()
        self._disk.__exit__(None, None, None)

    def look_again(self) -> None:
        """Time has passed: timers are looked at."""
        if not self.is_dead:
            self.engine.wakeups.timer_set()
            for agent in self.store.local_agents():
                self.engine.wakeups.inbox_grew(agent.agent_id)

    def incidents(self, kind: str) -> list[str]:
        return [each.subject for each in self.store.incidents() if each.kind == kind]


class _CuttingStore:
    """The store, with a named point before and after each commit."""

    def __init__(self, node: Node, store: SqliteStore) -> None:
        self._node = node
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._around(name, found) if name in COMMITS else found

    def _around(self, name: str, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        node = self._node

        async def cut_around(*args: Any, **named: Any) -> Any:
            node.mesh.reach(node.node_id, f"commit:{name}:before")
            answer = await operation(*args, **named)
            # It is on the disk, and whoever asked for it never hears.
            node.mesh.reach(node.node_id, f"commit:{name}:after")
            return answer

        return cut_around


class _BobRuntime:
    max_concurrent = 1
    is_idempotent = False

    def __init__(self, node: Node) -> None:
        self._node = node

    async def engage(self, engagement: Engagement) -> Result:
        mesh, bob = self._node.mesh, self._node.mesh.bob
        mesh.reach(self._node.node_id, f"send:{AGENT}:before")
        if bob.fails_first and engagement.event_id not in bob.tried:
            bob.tried.add(engagement.event_id)
            return Result(kind=ResultKind.RETRY, error="not yet")
        bob.did[engagement.event_id] += 1
        mesh.reach(self._node.node_id, f"send:{AGENT}:after")
        return Result(kind=ResultKind.PROCESSED, reply=Content(body="done"))

    async def ask(self, event_id: EventId) -> Result | None:
        return None

    async def close(self) -> None:
        pass


class _Wire:
    """A link: what one end sends comes to the other in order, until it is cut or one of them dies."""

    def __init__(self, left: Node, right: Node) -> None:
        self._ends = (_End(left, right.node_id), _End(right, left.node_id))
        first, second = self._ends
        for end, other in ((first, second), (second, first)):
            end.run(end.write(other), "write")
            end.run(end.read(), "read")

    def cut(self) -> None:
        for end in self._ends:
            end.close()

    async def tick(self) -> None:
        for end in self._ends:
            with contextlib.suppress(Dead):
                await end.session.tick()


class _End:
    def __init__(self, node: Node, peer: str) -> None:
        self.node = node
        self.coming: asyncio.Queue[bytes] = asyncio.Queue()
        self._wake = asyncio.Event()
        self.session: LinkSession = node.engine.links.open(peer, on_wake=self._wake.set)
        self._tasks: list[asyncio.Task[Any]] = []

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{self.node.node_id} {name}")
        self._tasks.append(task)
        self.node.tasks.add(task)
        task.add_done_callback(self.node.tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.session.close()

    async def write(self, other: "_End") -> None:
        mesh, who = self.node.mesh, self.node.node_id
        with contextlib.suppress(Dead):
            frames = self.session.start()
            while True:
                for frame in frames:
                    tag = decode_frame(frame).__struct_config__.tag
                    mesh.reach(who, f"send:{tag}:before")
                    other.coming.put_nowait(frame)
                    mesh.reach(who, f"send:{tag}:after")
                self._wake.clear()
                frames = self.session.frames_to_send()
                if not frames:
                    if self.session.is_closed:
                        return
                    await self._wake.wait()

    async def read(self) -> None:
        with contextlib.suppress(Dead, Refusal):
            while not self.node.is_dead:
                await self.session.take(await self.coming.get())
