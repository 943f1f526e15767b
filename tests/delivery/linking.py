"""Gateways as far as links need them, and pipes between them: bytes that a test can hold, drop, repeat or alter."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from agentpost.delivery.frames import Events
from agentpost.delivery.heads import sign_head
from agentpost.delivery.hub import LinkHub
from agentpost.delivery.keeping import CursorCopy
from agentpost.delivery.link import LinkSession
from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import Wakeups
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event, MessageEvent, Trace
from agentpost.protocol.errors import Refusal
from agentpost.protocol.heads import OutboxHead, StreamMark, chain_over
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import AckType, Message
from agentpost.protocol.recipients import recipients_of
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import CHAIN_START, LocalAgent, Outcome, Settlement
from agentpost.testing import FakeClock, FixedRoom, MemoryStore, SeededChance
from agentpost.world import IdMaker

# What may happen to a frame on its way: it may come out altered, several times, or not at all.
Meddle = Callable[[bytes], list[bytes]]

# So many frames come at once where nothing says otherwise: batches wait for the disk behind each other.
_RUSH = 16


class World:
    """One clock, one room; nodes are added to it."""

    def __init__(self, home: Path | None = None) -> None:
        self.clock = FakeClock()
        self.room = FixedRoom(self.clock)
        self.home = home
        self.nodes: dict[str, Node] = {}

    async def add(self, node_id: str, *agents: str, tier: NodeTier = NodeTier.EDGE, epoch: str = "epoch_1") -> "Node":
        self.room.add_node(node_id, tier=tier)
        store: Store
        if self.home is None:
            store = MemoryStore(node_id=node_id, epoch=epoch)
        else:
            at = self.home / node_id
            store = SqliteStore.open(at, node_id=node_id, epoch=epoch, now_ms=self.clock.now_ms())
        node = self.nodes[node_id] = Node(self, node_id, store, tier)
        for agent_id in agents:
            await node.host(agent_id)
        return node

    def cursors_of(self, source: str) -> list[CursorCopy]:
        """How far every node has read a source, as the room says it."""
        read = [(node.node_id, node.store.cursor(source)) for node in self.nodes.values()]
        return [
            CursorCopy(
                consumer_node_id=node_id,
                source_node_id=source,
                last_seq=cursor.last_seq,
                updated_at=format_ms(cursor.updated_at_ms),
                status="active",
                lease_expires_at=format_ms(self.clock.now_ms()),
                epoch=cursor.epoch,
            )
            for node_id, cursor in read
            if cursor is not None
        ]

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.hub.close()
            await node.store.close()


class Node:
    """A gateway without a network: its store and its links."""

    def __init__(self, world: World, node_id: str, store: Store, tier: NodeTier) -> None:
        self.world = world
        self.node_id = node_id
        self.store = store
        self.tier = tier
        self.ids = IdMaker(world.clock, SeededChance(len(world.nodes) + 1), node_id=node_id)
        self.maker = EventMaker(node_id=node_id, clock=world.clock, ids=self.ids)
        self.restart()

    def restart(self, policy: DeliveryPolicy | None = None) -> None:
        """Forget everything that is not in the store."""
        self.wakeups = Wakeups()
        self.woken: list[str] = []
        # What showed this node that its database is an older one.
        self.regressed: list[tuple[int, str]] = []
        self.wakeups.listen(inbox=self.woken.append)
        self.hub = LinkHub(
            self.store,
            self.world.room,
            signing=self.world.room.identity(self.node_id).signing,
            maker=self.maker,
            clock=self.world.clock,
            wakeups=self.wakeups,
            tier=self.tier,
            policy=policy,
            readers=self.world.cursors_of,
            on_regressed=lambda shown, shown_by: self.regressed.append((shown.seq, shown_by)),
        )

    async def host(self, agent_id: str) -> None:
        self.world.room.add_agent(agent_id, self.node_id)
        await self.store.put_agent(LocalAgent(agent_id=agent_id, runtime="none", options={}, created_at_ms=0))

    async def send(
        self, *to: str, text: str = "hello", sender: str = "ada", event_id: EventId | None = None
    ) -> EventId:
        """A message to agents, wherever the room says that they are."""
        event_id = event_id or self.ids.make(EventId)
        await self.post(
            MessageEvent(
                event_id=event_id,
                source_node_id=self.node_id,
                source_agent_id=sender,
                to_nodes=tuple(dict.fromkeys(self._owner(agent_id) for agent_id in to)),
                corr_id=corr_id_of(event_id),
                created_at=format_ms(self.world.clock.now_ms()),
                trace=Trace(),
                payload=Message(to_agents=to, body=text),
            )
        )
        return event_id

    async def post(self, event: Event) -> None:
        """Append an event, and wait for the ACKs of its recipients."""
        now_ms = self.world.clock.now_ms()
        deliveries = [
            Delivery(
                event_id=event.event_id, to_agent_id=agent_id, to_node_id=self._owner(agent_id), emitted_at_ms=now_ms
            )
            for agent_id in recipients_of(event)
        ]
        await self.store.append([event], deliveries=deliveries)
        self.wakeups.outbox_grew()

    def _owner(self, agent_id: str) -> str:
        return self.world.room.snapshot().agents[agent_id].owner_node_id or ""

    async def process(self, agent_id: str) -> None:
        """Let an agent deal with everything that waits for it."""
        for item in self.store.backlog(agent_id):
            event = decode_event(item.raw)
            await self.store.engage(event.event_id, agent_id, at_ms=self.world.clock.now_ms())
            await self.store.settle(
                Settlement(
                    event_id=event.event_id,
                    to_agent_id=agent_id,
                    outcome=Outcome.PROCESSED,
                    at_ms=self.world.clock.now_ms(),
                    events=(self.maker.ack(event, AckType.PROCESSED, agent_id=agent_id),),
                )
            )
        self.wakeups.outbox_grew()

    def inbox(self, agent_id: str) -> list[EventId]:
        return [item.entry.event_id for item in self.store.inbox_items(agent_id, limit=10_000)]

    def states(self, event_id: EventId) -> dict[str, DeliveryState]:
        return {delivery.to_agent_id: delivery.state for delivery in self.store.deliveries_of(event_id)}

    def incidents(self) -> list[str]:
        return [incident.kind for incident in self.store.incidents()]


async def hand(session: LinkSession, frame: bytes) -> list[bytes]:
    """Hand a session a frame, and wait until it is taken to its end; gives what can be sent after it."""
    await session.take(frame)
    await session.drained()
    if session.refusal is not None:
        raise session.refusal
    return session.frames_to_send()


class End:
    """One end of a pipe: the session, and the frames that are on their way to it."""

    def __init__(self, node: Node, peer: Node) -> None:
        self.session: LinkSession = node.hub.open(peer.node_id, on_wake=lambda: None)
        self.coming: list[bytes] = []
        self.meddle: Meddle | None = None

    @property
    def refusal(self) -> Refusal | None:
        return self.session.refusal

    def bring(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.coming += [frame] if self.meddle is None else self.meddle(frame)

    async def take(self, most: int) -> int:
        """Take frames in their order, as a socket's reader does; gives how many there were."""
        frames, self.coming = self.coming[:most], self.coming[most:]
        with suppress(Refusal):
            for frame in frames:
                await self.session.take(frame)
        return len(frames)


class Pipe:
    """A link between two gateways. Nothing moves unless a test moves it."""

    def __init__(self, left: Node, right: Node) -> None:
        self.nodes = (left, right)
        self.left = End(left, right)
        self.right = End(right, left)
        self.frames = 0
        self.right.bring(self.left.session.start())
        self.left.bring(self.right.session.start())

    @property
    def ends(self) -> tuple[End, End]:
        return self.left, self.right

    async def step(self, most: int = 1) -> bool:
        """Carry what is ready, deliver up to `most` frames each way, and wait for the disk. False if all is quiet."""
        taken = 0
        for end, other in ((self.left, self.right), (self.right, self.left)):
            other.bring(end.session.frames_to_send())
            taken += await end.take(most)
        for end, other in ((self.left, self.right), (self.right, self.left)):
            await end.session.drained()
            other.bring(end.session.frames_to_send())
        self.frames += taken
        return bool(taken or self.left.coming or self.right.coming)

    def cut(self) -> None:
        """The connection is gone, and everything that was under way with it."""
        for end in self.ends:
            end.coming.clear()
            end.session.close()


async def settle(*pipes: Pipe) -> None:
    """Let everything come to rest: local mail, and all pipes."""
    nodes = {node.node_id: node for pipe in pipes for node in pipe.nodes}
    while True:
        for node in nodes.values():
            await node.hub.own.read()
        if not any([await pipe.step(_RUSH) for pipe in pipes]):
            return


def a_batch(
    world: World,
    source: str,
    reader: str,
    events: Sequence[Event | bytes],
    *,
    after_seq: int = 0,
    chain: bytes = CHAIN_START,
    epoch: str = "epoch_1",
    signer: str | None = None,
) -> Events:
    """A batch of a stream as its source would sign it, or, with another `signer`, as somebody else would."""
    raws = [event if isinstance(event, bytes) else encode_event(event) for event in events]
    through_seq = after_seq + len(raws)
    mark = StreamMark(seq=through_seq, chain=chain_over(chain, raws))
    head = OutboxHead(node_id=source, epoch=epoch, seq=through_seq, chain=mark.chain, streams={reader: mark})
    raw, signature = sign_head(head, world.room.identity(signer or source).signing)
    return Events(
        source=source,
        epoch=epoch,
        after_seq=after_seq,
        through_seq=through_seq,
        head=raw,
        signature=signature,
        events=raws,
    )
