"""What the tests of the timers are made of: one gateway, a clock that stands still, and a room."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import DeliveryPolicy, ack_due_at_ms
from agentpost.delivery.ports import Wakeups
from agentpost.delivery.postmaster import Postmaster
from agentpost.delivery.publish import Publisher
from agentpost.delivery.retry import Retrier
from agentpost.delivery.sealing import Sealer
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event, MessageEvent
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.interface import Store
from agentpost.store.values import LocalAgent
from agentpost.testing import FakeClock, FixedRoom, MemoryStore, SeededChance, a_message, an_identity
from agentpost.world import IdMaker

NODE = "node-a"
PEER = "node-b"
OTHER = "node-c"


class Desk:
    """The sender's gateway: ada lives here, bob at the peer. Every part shares one clock, one chance and one store."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        policy: DeliveryPolicy | None = None,
        tells_senders: bool = True,
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.chance = SeededChance(7)
        self.store: Store = store or MemoryStore(node_id=NODE, epoch="first")
        self.room = FixedRoom(self.clock)
        for node_id in (NODE, PEER, OTHER):
            self.room.add_node(node_id)
        self.room.add_agent("ada", NODE)
        self.room.add_agent("bob", PEER)
        self.policy = policy or DeliveryPolicy()
        self.wakeups = Wakeups()
        self.ids = IdMaker(self.clock, self.chance)
        self.maker = EventMaker(node_id=NODE, clock=self.clock, ids=self.ids)
        self.sealer = Sealer(
            node_id=NODE,
            sealing=an_identity(NODE).sealing,
            room=self.room,
            clock=self.clock,
            chance=self.chance,
            store=self.store,
        )
        self.publisher = Publisher(
            store=self.store,
            room=self.room,
            sealer=self.sealer,
            maker=self.maker,
            ids=self.ids,
            clock=self.clock,
            wakeups=self.wakeups,
        )
        self.postmaster = Postmaster(
            store=self.store,
            room=self.room,
            maker=self.maker,
            sealer=self.sealer,
            clock=self.clock,
            policy=self.policy,
        )
        # How far others have read, all of their answers included; a link would say. All of it, unless a test says less.
        self.read_through: dict[str, int] = dict.fromkeys((NODE, PEER, OTHER), 1 << 40)
        self.retrier = Retrier(
            self.store,
            self.room,
            self.maker,
            self.clock,
            self.chance,
            self.wakeups,
            self.policy,
            read_through=lambda: self.read_through,
            readdress=self.publisher.readdress,
            report=self.postmaster.report if tells_senders else None,
        )

    async def settle_in(self) -> "Desk":
        await self.store.put_agent(LocalAgent(agent_id="ada", runtime="pull", created_at_ms=self.clock.now_ms()))
        return self

    async def send(
        self, number: int = 1, *, to: dict[str, str | None] | None = None, expires_at_ms: int | None = None
    ) -> MessageEvent:
        """A message of ada, without sealing, with a delivery for each recipient."""
        nodes = {"bob": PEER} if to is None else to
        now_ms = self.clock.now_ms()
        event = a_message(number, to_agents=tuple(nodes), at_ms=now_ms + number, expires_at_ms=expires_at_ms)
        event = replace(event, to_nodes=tuple(sorted({node for node in nodes.values() if node is not None})))
        deliveries = [
            Delivery(
                event_id=event.event_id,
                to_agent_id=agent_id,
                corr_id=event.corr_id,
                from_agent_id="ada",
                to_node_id=node_id,
                route_decision="owner",
                due_at_ms=ack_due_at_ms(event, now_ms=now_ms, policy=self.policy),
                emitted_at_ms=now_ms,
            )
            for agent_id, node_id in nodes.items()
        ]
        await self.store.append([event], deliveries=deliveries)
        return event

    async def change(self, event: Event, signal: DeliverySignal, *, agent: str = "bob", **fields: Any) -> None:
        change = Change(event_id=event.event_id, to_agent_id=agent, signal=signal, at_ms=self.clock.now_ms(), **fields)
        await self.store.append([], changes=[change])

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and let the timers do what is due at the end of it."""
        self.clock.advance(round(seconds * 1000))
        await self.run_timers()

    async def run_timers(self) -> None:
        for _ in range(100):
            if not await self.retrier.work():
                return
        raise AssertionError("the timers do not come to rest")

    async def until_dead(self, event: Event, agent: str = "bob") -> None:
        """Let the timers run until nobody tries any more."""
        for _ in range(1000):
            if self.delivery(event, agent).state is DeliveryState.DEAD_LETTER:
                return
            await self.pass_time(5)
        raise AssertionError("it is still being tried")

    def delivery(self, event: Event, agent: str = "bob") -> Delivery:
        (found,) = [each for each in self.store.deliveries_of(event.event_id) if each.to_agent_id == agent]
        return found

    def outbox(self) -> Sequence[Event]:
        return [decode_event(row.raw) for row in self.store.read_outbox(0, limit=10_000, max_bytes=1 << 30).events]

    def sends_of(self, event: Event) -> list[Event]:
        return [each for each in self.outbox() if each.event_id == event.event_id]
