"""What the tests of dispatch are made of: a gateway's store and keys, a peer that sends, and agents that do as told."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from agentpost.delivery.content import encode_content
from agentpost.delivery.dispatch import Dispatcher
from agentpost.delivery.lanes import Mail
from agentpost.delivery.making import EventMaker
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind, Runtime, Wakeups
from agentpost.delivery.publish import Publisher
from agentpost.delivery.sealing import Sealer
from agentpost.protocol.backoff import RetryPolicy
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.envelope import AckEvent, Event, MessageEvent, ReplyEvent
from agentpost.protocol.ids import EventId
from agentpost.protocol.payloads import AckType
from agentpost.store.blobs import SealedBlob
from agentpost.store.interface import Store
from agentpost.store.values import Acceptance, Inbound, LedgerState, LocalAgent
from agentpost.testing import START_MS, FakeClock, FixedRoom, SeededChance, a_message
from agentpost.world import IdMaker

NODE = "node-a"
PEER = "node-b"
DONE = Result(kind=ResultKind.PROCESSED)
AGAIN = Result(kind=ResultKind.RETRY, error="busy")
NEVER = Result(kind=ResultKind.FAILED, error="not for me")
EXACT = RetryPolicy(base_seconds=2, factor=2, max_delay_seconds=300, max_attempts=3, jitter_share=0)

AnyEvent = TypeVar("AnyEvent", bound=Event)
Script = Callable[[Engagement], Result | Awaitable[Result]]


def replied(body: str) -> Result:
    return Result(kind=ResultKind.PROCESSED, reply=Content(body=body))


class Scripted:
    """A runtime that notes what it was handed and does what the script says. Kept over restarts, as an agent is."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        max_concurrent: int = 1,
        is_idempotent: bool = False,
        knows: bool = False,
    ) -> None:
        self._script = script
        self._knows = knows
        self.max_concurrent = max_concurrent
        self.is_idempotent = is_idempotent
        self.engaged: list[Engagement] = []
        self.results: dict[EventId, Result] = {}
        self.at_once = 0
        self.most_at_once = 0
        self.closed = 0

    @property
    def bodies(self) -> list[str | None]:
        return [engagement.content.body for engagement in self.engaged]

    def times(self) -> Counter[EventId]:
        return Counter(engagement.event_id for engagement in self.engaged)

    async def engage(self, engagement: Engagement) -> Result:
        self.engaged.append(engagement)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            result = DONE if self._script is None else self._script(engagement)
            # What the agent did it knows from now on, whoever hears of it.
            self.results[engagement.event_id] = result if isinstance(result, Result) else DONE
            return result if isinstance(result, Result) else await result
        finally:
            self.at_once -= 1

    async def ask(self, event_id: EventId) -> Result | None:
        if not self._knows:
            return None
        return self.results.get(event_id, Result(kind=ResultKind.RETRY, error="never got it"))

    async def close(self) -> None:
        self.closed += 1


class Gateway:
    """A gateway as far as dispatch needs it, and a peer whose mail arrives by hand."""

    def __init__(self, store: Store, clock: FakeClock | None = None) -> None:
        self.store = store
        self.clock = clock or FakeClock()
        self.room = FixedRoom(self.clock)
        for node_id in (NODE, PEER):
            self.room.add_node(node_id)
        self.runtimes: dict[str, Runtime] = {}
        self.dispatchers: list[Dispatcher] = []
        self._restart()

    def _restart(self) -> None:
        chance = SeededChance(len(self.dispatchers))
        self.wakeups = Wakeups()
        self.maker = EventMaker(node_id=NODE, clock=self.clock, ids=IdMaker(self.clock, chance))
        self.sealer = self.sealer_of(NODE)
        self.publisher = Publisher(
            store=self.store,
            room=self.room,
            sealer=self.sealer,
            maker=self.maker,
            ids=IdMaker(self.clock, chance),
            clock=self.clock,
            wakeups=self.wakeups,
        )

    def sealer_of(self, node_id: str) -> Sealer:
        return Sealer(
            node_id=node_id,
            sealing=self.room.identity(node_id).sealing,
            room=self.room,
            clock=self.clock,
            chance=SeededChance(len(node_id) + len(self.dispatchers)),
            store=self.store if node_id == NODE else None,
        )

    async def hire(self, agent_id: str, runtime: Runtime, *, kind: str = "scripted", **options: Any) -> None:
        self.runtimes[agent_id] = runtime
        await self.store.put_agent(LocalAgent(agent_id=agent_id, runtime=kind, options=options, created_at_ms=START_MS))

    def start(self, store: Store | None = None, **settings: Any) -> Dispatcher:
        """A dispatcher over the store as it is now: what a process that starts anew would see."""
        self._restart()
        dispatcher = Dispatcher(
            store=store or self.store,
            sealer=self.sealer,
            publisher=self.publisher,
            maker=self.maker,
            clock=self.clock,
            chance=SeededChance(7),
            wakeups=self.wakeups,
            runtimes=lambda agent: self.runtimes[agent.agent_id],
            **settings,
        )
        self.dispatchers.append(dispatcher)
        dispatcher.start()
        return dispatcher

    async def close(self) -> None:
        for dispatcher in self.dispatchers:
            await dispatcher.close()

    def message(
        self, number: int, *, sender: str = "bob", to: Sequence[str] = ("ada",), expires_at_ms: int | None = None
    ) -> MessageEvent:
        """Message `number` of the peer, sealed for this gateway; its body says which one it is."""
        event = a_message(
            number, source_node_id=PEER, source_agent_id=sender, to_agents=to, expires_at_ms=expires_at_ms
        )
        sealed = self.sealer_of(PEER).seal(
            Content(body=f"{sender} {number}"), event_id=event.event_id, to_nodes=(NODE,)
        )
        return replace(event, to_nodes=(NODE,), payload=replace(event.payload, sealed=sealed, body=None))

    def large_message(self, number: int, body: str = "large") -> tuple[MessageEvent, SealedBlob]:
        """A message whose content is too large for its event, and what it says, sealed."""
        event = self.message(number)
        encoded = encode_content(Content(body=body))
        ref, blob = self.sealer_of(PEER).seal_blob(encoded, event_id=event.event_id, to_nodes=(NODE,))
        return replace(event, payload_ref=ref, payload=replace(event.payload, sealed=None)), blob

    async def fetch_content(self, sealed: SealedBlob, *agent_ids: str) -> None:
        """The content of a large message has come, and the agents that waited for it are woken."""
        sha256 = sealed.blob.sha256
        await self.store.begin_blob(replace(sealed.blob, complete=False), at_ms=self.clock.now_ms())
        for part, chunk in enumerate(sealed.chunks):
            await self.store.put_chunk(sha256, part, chunk)
        await self.store.complete_blob(sha256)
        for agent_id in agent_ids:
            self.wakeups.inbox_grew(agent_id)

    async def arrive(self, *events: AnyEvent) -> list[AnyEvent]:
        """What the peer sent is accepted here, all of it in one batch, and the agents are woken."""
        cursor = self.store.cursor(PEER)
        after_seq = 0 if cursor is None else cursor.last_seq
        placed = [replace(event, seq=after_seq + 1 + place) for place, event in enumerate(events)]
        inbound = [Inbound(event=event, raw=encode_event(event), acks=self._acks(event)) for event in placed]
        accepted = await self.store.accept(
            Acceptance(
                source_node_id=PEER,
                source_epoch="of-the-peer",
                after_seq=after_seq,
                through_seq=after_seq + len(placed),
                events=tuple(inbound),
                at_ms=self.clock.now_ms(),
            )
        )
        by_id = {event.event_id: event for event in placed}
        mail: dict[str, list[Mail]] = {agent_id: [] for each in inbound for agent_id in each.acks}
        for (event_id, agent_id), inbox_seq in zip(accepted.new, accepted.inbox_seqs, strict=True):
            mail[agent_id].append(Mail(inbox_seq=inbox_seq, event=by_id[event_id], is_fresh=True))
        for agent_id, fresh in mail.items():
            self.wakeups.inbox_grew(agent_id, fresh)
        return placed

    def _acks(self, event: Event) -> dict[str, Event]:
        to = event.payload.to_agents if isinstance(event, MessageEvent) else (event.to_agent_id or "",)
        return {agent_id: self.maker.ack(event, AckType.ACCEPTED, agent_id=agent_id) for agent_id in to}

    # What stands in the outbox

    def outbox(self) -> list[Event]:
        return [
            decode_event(stored.raw) for stored in self.store.read_outbox(0, limit=100_000, max_bytes=1 << 40).events
        ]

    def outcomes(self, event: Event, agent_id: str = "ada") -> list[AckEvent]:
        """The ACKs of the outcome of an event: one, once it has one."""
        return [
            each
            for each in self.outbox()
            if isinstance(each, AckEvent)
            and each.payload.ref_event_id == event.event_id
            and each.payload.acked_by_agent_id == agent_id
            and each.payload.ack_type is not AckType.ACCEPTED
        ]

    def replies(self, event: Event) -> list[ReplyEvent]:
        return [
            each
            for each in self.outbox()
            if isinstance(each, ReplyEvent) and each.payload.ref_event_id == event.event_id
        ]

    def is_settled(self, *events: Event, agent_id: str = "ada") -> bool:
        entries = [self.store.ledger_entry(event.event_id, agent_id) for event in events]
        return all(entry is not None and entry.settled_at_ms is not None for entry in entries)

    async def settled(self, *events: Event, agent_id: str = "ada") -> None:
        waiting = list(events)

        def is_done() -> bool:
            while waiting and self.is_settled(waiting[-1], agent_id=agent_id):
                waiting.pop()
            return not waiting

        await until(is_done)

    def pass_time(self, ms: int, *agent_ids: str) -> None:
        """Let time pass, and let the agents' workers notice that it did."""
        self.clock.advance(ms)
        for agent_id in agent_ids or ("ada",):
            self.wakeups.inbox_grew(agent_id)


async def until(is_so: Callable[[], object]) -> None:
    """Wait for what another task or the writer's thread is about to do."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)


async def hang_for_ever() -> Result:
    await asyncio.Event().wait()
    return DONE


def is_postponed(gateway: Gateway, event_id: EventId, attempt: int) -> bool:
    entry = gateway.store.ledger_entry(event_id, "ada")
    return entry is not None and entry.attempts == attempt and entry.state is LedgerState.QUEUED and entry.due_at_ms > 0


async def turn_the_loop() -> None:
    """Give every task that could do something the chance to do it."""
    for _ in range(50):
        await asyncio.sleep(0)
