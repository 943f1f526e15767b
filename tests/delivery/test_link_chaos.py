"""Any order of sends, frames, cuts, repeats and restarts ends the same: all mail once, in order, and acknowledged."""

import random
from collections.abc import Callable, Mapping

import pytest

from agentpost.delivery.frames import Events, decode_frame
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.snapshot import NodeTier
from tests.delivery.linking import Node, Pipe, World, settle

_AGENTS = {"node-a": "ada", "node-b": "bob", "seed": "sam", "other-seed": "olga"}
_WIRES = (
    ("node-a", "seed"),
    ("node-b", "seed"),
    ("node-b", "other-seed"),
    ("seed", "other-seed"),
    ("node-a", "node-b"),
)


class _Chaos:
    """Four gateways and the wires between them, some of which are up."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._pipes: dict[tuple[str, str], Pipe] = {}
        self.sent: dict[tuple[str, str], list[EventId]] = {}

    async def go(self, steps: int) -> None:
        for _ in range(steps):
            await self._random.choice((self._send, self._step, self._step, self._step, self._wire, self._restart))()

    async def calm_down(self) -> None:
        for pipe in self._pipes.values():
            pipe.cut()
        # The two laptops never meet again; everything else is up.
        await settle(*(Pipe(self._node(left), self._node(right)) for left, right in _WIRES[:-1]))

    def _node(self, node_id: str) -> Node:
        return self._world.nodes[node_id]

    async def _send(self) -> None:
        source, target = self._random.sample(sorted(_AGENTS), 2)
        event_id = await self._node(source).send(_AGENTS[target], sender=_AGENTS[source])
        self.sent.setdefault((source, target), []).append(event_id)

    async def _step(self) -> None:
        for pipe in self._pipes.values():
            for _ in range(self._random.randrange(4)):
                await pipe.step(self._random.choice((1, 1, 4)))

    async def _wire(self) -> None:
        wire = self._random.choice(_WIRES)
        if wire in self._pipes:
            self._pipes.pop(wire).cut()
            return
        pipe = self._pipes[wire] = Pipe(self._node(wire[0]), self._node(wire[1]))
        for end in pipe.ends:
            end.meddle = self._repeat

    def _repeat(self, frame: bytes) -> list[bytes]:
        is_repeated = self._random.random() < 0.2 and isinstance(decode_frame(frame), Events)
        return [frame, frame] if is_repeated else [frame]

    async def _restart(self) -> None:
        node_id = self._random.choice(sorted(_AGENTS))
        for wire in [wire for wire in self._pipes if node_id in wire]:
            self._pipes.pop(wire).cut()
        self._node(node_id).restart()


class _BadWires:
    """The same four gateways, whose wires stay up, and repeat, swap and lose batches until they are mended."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._pipes = [self._wired(*wire) for wire in _WIRES[:-1]]

    def _wired(self, left: str, right: str) -> Pipe:
        pipe = Pipe(self._world.nodes[left], self._world.nodes[right])
        for end in pipe.ends:
            end.meddle = self._meddler()
        return pipe

    def _meddler(self) -> Callable[[bytes], list[bytes]]:
        held: list[bytes] = []

        def meddle(frame: bytes) -> list[bytes]:
            behind = held[:]
            held.clear()
            if not isinstance(decode_frame(frame), Events):
                return [frame, *behind]
            draw = self._random.random()
            if draw < 0.2 and not behind:
                held.append(frame)
                return []
            if draw < 0.3:
                return behind
            return [frame, frame, *behind] if draw < 0.5 else [frame, *behind]

        return meddle

    async def step(self) -> None:
        for pipe in self._pipes:
            for _ in range(self._random.randrange(4)):
                await pipe.step(self._random.choice((1, 1, 4)))

    async def mend(self) -> None:
        """Nothing is lost any more, but for what is held back now. What time brings then has to be enough."""
        for pipe in self._pipes:
            for end in pipe.ends:
                end.meddle = None
        await settle(*self._pipes)
        for _ in range(20):
            self._world.clock.advance(10_000)
            for pipe in self._pipes:
                for end in pipe.ends:
                    await end.session.tick()
            await settle(*self._pipes)
            self._dial_again()
        await settle(*self._pipes)

    def _dial_again(self) -> None:
        for place, pipe in enumerate(self._pipes):
            if any(end.session.is_closed for end in pipe.ends):
                pipe.cut()
                self._pipes[place] = Pipe(*pipe.nodes)


@pytest.mark.req("CUR-1", "CUR-2", "RTY-3", "PIPE-9")
@pytest.mark.parametrize("seed", range(25))
async def test_whatever_happens_to_the_links_mail_arrives_once_and_in_order(seed: int) -> None:
    """Two laptops and two seeds, with links that come and go: no message is lost, doubled, or out of order."""
    world = await _four()
    chaos = _Chaos(world, seed)
    await chaos.go(150)
    await chaos.calm_down()
    _all_came(world, chaos.sent)


@pytest.mark.req("CUR-1", "CUR-3", "RTY-3", "PIPE-9")
@pytest.mark.parametrize("seed", range(25))
async def test_links_that_lost_and_swapped_batches_recover_by_themselves(seed: int) -> None:
    """However batches were repeated, swapped and lost: once that is over, time alone brings all mail, in order."""
    world = await _four()
    wires, chance = _BadWires(world, seed), random.Random(seed)
    sent: dict[tuple[str, str], list[EventId]] = {}
    for _ in range(60):
        source, target = chance.sample(sorted(_AGENTS), 2)
        event_id = await world.nodes[source].send(_AGENTS[target], sender=_AGENTS[source])
        sent.setdefault((source, target), []).append(event_id)
        await wires.step()
    await wires.mend()
    _all_came(world, sent)


async def _four() -> World:
    world = World()
    for node_id, agent_id in _AGENTS.items():
        tier = NodeTier.BACKBONE if "seed" in node_id else NodeTier.EDGE
        await world.add(node_id, agent_id, tier=tier)
    return world


def _all_came(world: World, sent: Mapping[tuple[str, str], list[EventId]]) -> None:
    for (source, target), event_ids in sent.items():
        got = world.nodes[target].inbox(_AGENTS[target])
        assert [event_id for event_id in got if event_id in set(event_ids)] == event_ids
        states = [world.nodes[source].states(event_id) for event_id in event_ids]
        assert states == [{_AGENTS[target]: DeliveryState.ACCEPTED}] * len(event_ids)
    for node_id, agent_id in _AGENTS.items():
        expected = sum(len(event_ids) for (_, target), event_ids in sent.items() if target == node_id)
        assert len(world.nodes[node_id].inbox(agent_id)) == expected
        assert world.nodes[node_id].incidents() == []
        assert world.nodes[node_id].regressed == []
