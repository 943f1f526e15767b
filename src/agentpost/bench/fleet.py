"""Fleets for the measurements of the room: nodes that one seed admitted, and a month of what they write.

The month is made without the guard and with signatures on the last write of each key only: what takes space in the
document is the same, and a month passes in seconds. What comes out is a room that every guard accepts.
"""

import random
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agentpost.delivery.keeping import MOST_AGENTS_TOLD
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.protocol.snapshot import MOST_WAITING, NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.room.crdt import Replica
from agentpost.room.document import Room
from agentpost.room.guard import client_tag
from agentpost.room.members import Root, statement_key
from agentpost.room.records import sign_record, to_base64
from agentpost.room.schema import MAPS
from agentpost.room.sync import MAX_FRAME_BYTES
from agentpost.room.wire import ItemId, encode_write
from agentpost.world import SystemChance

__all__ = ["Fleet", "Month"]

_DAY_MS: Final = 86_400_000
_START_MS: Final = 1_772_036_530_000
_UNSIGNED: Final = "A" * 86


class _Clock:
    def __init__(self) -> None:
        self.at_ms = _START_MS

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


class _Nodes:
    """The nodes of a fleet, by number; number 0 is the seed, which admitted all of them."""

    def __init__(self, nodes: int) -> None:
        self.clock = _Clock()
        self.keys = [Ed25519PrivateKey.generate() for _ in range(nodes)]
        self.names = [f"node-{number}" for number in range(nodes)]
        self._node_records = [self._node(number) for number in range(nodes)]

    def new_room(self, number: int) -> Room:
        """A room that knows the seed's key and its own, and nothing else."""
        return Room(
            node_id=self.names[number],
            tier=NodeTier.EDGE if number else NodeTier.BACKBONE,
            signing=self.keys[number],
            clock=self.clock,
            chance=SystemChance(),
            root=Root(self.names[0], to_base64(_public(self.keys[0]))),
        )

    def node(self, number: int, status: str = "online") -> dict[str, Any]:
        return self._node_records[number] | {"status": status}

    def cursor(self, number: int, source: str, seq: int) -> dict[str, Any]:
        return {
            "consumerNodeId": self.names[number],
            "sourceNodeId": source,
            "lastSeq": seq,
            "updatedAt": format_ms(self.clock.at_ms),
            "status": "active",
            "leaseExpiresAt": format_ms(self.clock.at_ms + 300_000),
            "epoch": "epoch-1",
        }

    def _node(self, number: int) -> dict[str, Any]:
        tier = NodeTier.EDGE if number else NodeTier.BACKBONE
        public_key = _public(self.keys[number])
        return {
            "tier": tier.value,
            "status": "online",
            "endpointWs": f"ws://{self.names[number]}:7801",
            "publicKey": to_base64(public_key),
        }

    def statement(self, number: int) -> tuple[str, dict[str, Any]]:
        """The seed's word that it admitted a node: the key in the room and the fields."""
        said = {
            "nodeId": self.names[number],
            "act": "admit",
            "publicKey": to_base64(_public(self.keys[number])),
            "tier": NodeTier.EDGE.value,
            "at": _START_MS,
        }
        return statement_key(self.names[0], f"{number:024x}"), said


class Fleet(_Nodes):
    """Rooms of all nodes, in sync with the seed as far as their own records go."""

    def __init__(self, *, nodes: int, agents_a_node: int) -> None:
        super().__init__(nodes)
        self.seed = self.new_room(0)
        self._rooms = [self.seed, *(self.new_room(number) for number in range(1, nodes))]
        for number in range(1, nodes):
            self.seed.admit(self.names[number], to_base64(_public(self.keys[number])), NodeTier.EDGE)
        for number, (name, room) in enumerate(zip(self.names, self._rooms, strict=True)):
            if number:
                content = self.seed.update_since(room.state())
                room.receive(content, peer=self.names[0], is_sync=True, max_bytes=MAX_FRAME_BYTES)
            room.write("nodes", name, self.node(number))
            for agent in range(agents_a_node):
                room.write("agents", f"agent-{number}-{agent}", {"ownerNodeId": name})
            if number:
                self.seed.receive(room.update_since(self.seed.state()), peer=name, is_sync=True)

    def cursor_updates(self, count: int) -> list[tuple[bytes, str]]:
        """Updates as they arrive at the seed, not merged there yet, with who brings them."""
        arrived: list[tuple[bytes, str]] = []
        for number, room in enumerate(self._rooms[1:], 1):
            end = room.subscribe(lambda update, origin: arrived.append((update, origin)))
            for place in range(count // (len(self.names) - 1)):
                self.clock.at_ms += 1
                source = self.names[place % len(self.names)]
                room.write("delivery.cursors", f"{room.node_id}/{source}", self.cursor(number, source, place))
            end()
        return arrived

    def join(self, number: int) -> Room:
        """A new room of a node, filled by the seed."""
        room = self.new_room(number)
        content = self.seed.update_since(room.state())
        room.receive(content, peer=self.names[0], is_sync=True, max_bytes=MAX_FRAME_BYTES)
        return room


class Month(_Nodes):
    """What time does to the document: cursor copies, delivery records, restarts and agents that move."""

    def __init__(self, *, nodes: int, agents_a_node: int = 10) -> None:
        super().__init__(nodes)
        self.writes = 0
        self._random = random.Random(7)  # noqa: S311 - the same month every time, nothing secret
        self._replica = Replica(is_watched=False)
        self._visible: dict[tuple[str, str], tuple[ItemId, int, dict[str, Any]]] = {}
        self._clients: list[dict[str, int]] = [{} for _ in range(nodes)]
        self._clocks: dict[int, int] = {}
        self._owners = {f"agent-{number}-{agent}": number for number in range(nodes) for agent in range(agents_a_node)}
        for number in range(1, nodes):
            key, said = self.statement(number)
            self._write(0, "coordination", key, said)
        for number, name in enumerate(self.names):
            self._write(number, "nodes", name, self.node(number))
        for agent_id, number in self._owners.items():
            self._write(number, "agents", agent_id, {"ownerNodeId": self.names[number]})

    def live_a_day(self, *, copies: int, moves: int, restarts: int) -> None:
        """Each node copies cursors and its delivery record `copies` times; some nodes restart, some agents move."""
        for number in self._random.sample(range(len(self.names)), restarts):
            # A new life has new client ids, and says that it went and came.
            self._write(number, "nodes", self.names[number], self.node(number, "offline"))
            self._clients[number] = {}
            self._write(number, "nodes", self.names[number], self.node(number))
        for _ in range(copies):
            self.clock.at_ms += _DAY_MS // copies
            for number, name in enumerate(self.names):
                for _ in range(DeliveryPolicy().cursors_a_copy):
                    # Each node hears most from a few others.
                    source = self.names[(number + 1 + int(self._random.expovariate(0.25))) % len(self.names)]
                    cursor = self.cursor(number, source, self.writes)
                    self._write(number, "delivery.cursors", f"{name}/{source}", cursor)
                waiting = {f"agent-{number}-{place}": self.writes % MOST_WAITING for place in range(MOST_AGENTS_TOLD)}
                own = {"inboxCursorAcked": self.writes, "waitingByAgent": waiting, "agentsWaiting": len(waiting)}
                self._write(number, "delivery", name, own)
        for agent_id in self._random.sample(sorted(self._owners), moves):
            number = self._owners[agent_id]
            to = self._owners[agent_id] = self._random.randrange(len(self.names))
            self._write(number, "agents", agent_id, {"ownerNodeId": self.names[to]})

    def content(self) -> bytes:
        return self._replica.update_since()

    def finish(self) -> bytes:
        """The document with every key written once more, and signed."""
        for (map_name, key), (_, number, record) in list(self._visible.items()):
            signed = sign_record(map_name, key, record, self.keys[number])
            self._put(number, map_name, key, signed)
        return self.content()

    def _write(self, number: int, map_name: str, key: str, fields: dict[str, Any]) -> None:
        self.writes += 1
        record = fields | {"signedBy": self.names[number], "rev": self.clock.at_ms + self.writes}
        self._put(number, map_name, key, record | {"sig": _UNSIGNED})

    def _put(self, number: int, map_name: str, key: str, record: dict[str, Any]) -> None:
        line = f"{map_name}.{key}" if MAPS[map_name].is_hot else ""
        client = self._clients[number].get(line)
        if client is None:
            client = client_tag(self.names[number]) << 32 | self._random.getrandbits(32)
            self._clients[number][line] = client
        item_id = ItemId(client, self._clocks.get(client, 0))
        before = self._visible.get((map_name, key))
        after = None if before is None else before[0]
        self._replica.apply(encode_write(item_id, root=map_name, key=key, after=after, value=record))
        self._clocks[client] = item_id.clock + 1
        self._visible[map_name, key] = (item_id, number, record)


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
