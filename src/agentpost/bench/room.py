"""`agentpost bench room`: how many updates a second are checked and merged, how a month grows the room, what a join costs.

Fifty nodes with ten agents each. Every update is signed by its node, arrives as bytes, and passes the whole guard.
"""

import gc
import random
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agentpost.bench.measure import Metric, Say, seconds_of
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.room.document import Room
from agentpost.room.keys import make_admission
from agentpost.room.records import to_base64
from agentpost.room.sync import MAX_FRAME_BYTES
from agentpost.world import SystemChance

__all__ = ["bench_room", "Fleet"]

NODES: Final = 50
AGENTS_A_NODE: Final = 10
_UPDATES: Final = 4_000
_DAY_MS: Final = 86_400_000
_START_MS: Final = 1_772_036_530_000
_GOAL_RATE: Final = 2_000
_GOAL_BYTES: Final = 5_000_000
_GOAL_JOIN_SECONDS: Final = 1.0


class _Clock:
    def __init__(self) -> None:
        self.at_ms = _START_MS

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


class Fleet:
    """A seed and the nodes that it admitted; `seed` has everything that they wrote."""

    def __init__(self, *, nodes: int = NODES, agents_a_node: int = AGENTS_A_NODE) -> None:
        self.clock = _Clock()
        self._random = random.Random(7)  # noqa: S311 - the same month every time, nothing secret
        self._keys = [Ed25519PrivateKey.generate() for _ in range(nodes)]
        self._names = [f"node-{number}" for number in range(nodes)]
        self._seqs: dict[tuple[int, int], int] = {}
        self.seed = self.new_room(0)
        self._rooms = [self.seed]
        for number in range(1, nodes):
            self._rooms.append(self._joined(number))
        for number in range(nodes):
            self._write(number, "nodes", self._names[number], self._node(number))
            for agent in range(agents_a_node):
                self._write(number, "agents", f"agent-{number}-{agent}", {"ownerNodeId": self._names[number]})

    def new_room(self, number: int) -> Room:
        """A room that knows the seed's key and its own, and nothing else."""
        return Room(
            node_id=self._names[number],
            tier=NodeTier.EDGE if number else NodeTier.BACKBONE,
            signing=self._keys[number],
            clock=self.clock,
            chance=SystemChance(),
            pinned={self._names[0]: _public(self._keys[0])},
            backbone=(self._names[0],),
        )

    def live(self, *, days: int, copies_a_day: int, restarts: int, moves_a_day: int) -> int:
        """Let time pass; gives the number of writes. Heartbeats are free, so none are made."""
        writes = 0
        nodes = range(len(self._names))
        restart_on = {(day * restarts // days, number) for day in range(days) for number in nodes}
        for day in range(days):
            for number in nodes:
                if (day, number) in restart_on and day:
                    self._rooms[number] = self.seed if number == 0 else self._joined(number)
                    writes += 2
                    self._write(number, "nodes", self._names[number], self._node(number) | {"status": "degraded"})
                    self._write(number, "nodes", self._names[number], self._node(number))
            for _ in range(copies_a_day):
                self.clock.at_ms += _DAY_MS // copies_a_day
                for number in nodes:
                    writes += 2
                    self._copy_cursor(number)
                    self._write(number, "delivery", self._names[number], {"inboxCursorAcked": writes})
            for _ in range(moves_a_day):
                writes += self._move_agent()
        return writes

    def cursor_updates(self, count: int) -> list[tuple[bytes, str]]:
        """Updates as they arrive at the seed, not merged there yet, with who brings them."""
        arrived: list[tuple[bytes, str]] = []
        for number in range(1, len(self._names)):
            ends = self._rooms[number].subscribe(lambda update, origin: arrived.append((update, origin)))
            for place in range(count // (len(self._names) - 1)):
                self.clock.at_ms += 1
                source = self._names[place % len(self._names)]
                self._rooms[number].write(
                    "delivery.cursors", f"{self._names[number]}/{source}", self._cursor(number, source, place)
                )
            ends()
        return arrived

    def _joined(self, number: int) -> Room:
        room = self.new_room(number)
        room.receive(self.seed.update_since(), peer=self._names[0], max_bytes=MAX_FRAME_BYTES)
        return room

    def _write(self, number: int, map_name: str, key: str, fields: dict[str, object]) -> None:
        room = self._rooms[number]
        if room is self.seed:
            room.write(map_name, key, fields)
            return
        ends = room.subscribe(lambda update, origin: _pass_on(self.seed, update, origin))
        room.write(map_name, key, fields)
        ends()

    def _copy_cursor(self, number: int) -> None:
        # Each node hears most from a few others.
        source = (number + 1 + int(self._random.expovariate(0.25))) % len(self._names)
        seq = self._seqs[number, source] = self._seqs.get((number, source), 0) + self._random.randint(1, 500)
        name = self._names[source]
        self._write(number, "delivery.cursors", f"{self._names[number]}/{name}", self._cursor(number, name, seq))

    def _move_agent(self) -> int:
        agent_id = f"agent-{self._random.randrange(len(self._names))}-0"
        agent = self.seed.record("agents", agent_id)
        number = self._names.index(agent["ownerNodeId"]) if agent else 0
        to = self._random.randrange(len(self._names))
        room = self._rooms[number]
        if room is not self.seed:
            room.receive(self.seed.update_since(room.state()), peer=self._names[0], max_bytes=MAX_FRAME_BYTES)
        self._write(number, "agents", agent_id, {"ownerNodeId": self._names[to]})
        return 1

    def _node(self, number: int) -> dict[str, object]:
        tier = NodeTier.EDGE if number else NodeTier.BACKBONE
        public_key = _public(self._keys[number])
        return {
            "tier": tier.value,
            "status": "online",
            "endpointWs": f"ws://{self._names[number]}:7801",
            "publicKey": to_base64(public_key),
            "admission": make_admission(
                by=self._names[0],
                signing=self._keys[0],
                node_id=self._names[number],
                public_key=public_key,
                tier=tier,
                at_ms=_START_MS,
            ),
        }

    def _cursor(self, number: int, source: str, seq: int) -> dict[str, object]:
        return {
            "consumerNodeId": self._names[number],
            "sourceNodeId": source,
            "lastSeq": seq,
            "updatedAt": format_ms(self.clock.at_ms),
            "status": "active",
            "leaseExpiresAt": format_ms(self.clock.at_ms + 300_000),
            "epoch": "epoch-1",
        }


def bench_room(*, rounds: int, say: Say) -> list[Metric]:
    """The figures of the room."""
    rate, relay_rate = 0.0, 0.0
    for turn in range(rounds):
        say(f"updates, round {turn + 1} of {rounds}")
        fleet = Fleet()
        updates = fleet.cursor_updates(_UPDATES)
        gc.collect()
        seconds = seconds_of(lambda fleet=fleet, updates=updates: _take(fleet.seed, updates))
        rate = max(rate, len(updates) / seconds)
        reader = fleet.new_room(1)
        reader.receive(fleet.seed.update_since(), peer="node-0", max_bytes=MAX_FRAME_BYTES)
        more = fleet.cursor_updates(_UPDATES)
        relayed: list[tuple[bytes, str]] = []
        ends = fleet.seed.subscribe(lambda update, _origin, relayed=relayed: relayed.append((update, "node-0")))
        _take(fleet.seed, more)
        ends()
        seconds = seconds_of(lambda reader=reader, relayed=relayed: _take(reader, relayed))
        relay_rate = max(relay_rate, len(relayed) / seconds)

    say("thirty days of fifty nodes")
    fleet = Fleet()
    empty = len(fleet.seed.update_since())
    writes = fleet.live(days=30, copies_a_day=96, restarts=4, moves_a_day=10)
    content = fleet.seed.update_since()
    joins: list[float] = []
    for turn in range(rounds):
        say(f"joins, round {turn + 1} of {rounds}")
        room = fleet.new_room(1)
        joins.append(
            seconds_of(
                lambda room=room: room.receive(
                    fleet.seed.update_since(room.state()), peer="node-0", max_bytes=MAX_FRAME_BYTES
                )
            )
        )
    return [
        Metric.of("updates checked and merged, 50 nodes, 500 agents", rate, "updates/s", against=_GOAL_RATE),
        Metric.of("relayed updates checked and merged", relay_rate, "updates/s", against=_GOAL_RATE),
        Metric.of("room of 50 nodes on its first day", empty, "bytes"),
        Metric.of("writes in 30 days, heartbeats not counted", writes, "writes"),
        Metric.of("room after 30 days", len(content), "bytes", against=_GOAL_BYTES),
        Metric.of("join after 30 days", min(joins), "s", against=_GOAL_JOIN_SECONDS),
    ]


def _take(room: Room, updates: list[tuple[bytes, str]]) -> None:
    for update, peer in updates:
        room.receive(update, peer=peer)


def _pass_on(seed: Room, update: bytes, origin: str) -> None:
    seed.receive(update, peer=origin)


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
