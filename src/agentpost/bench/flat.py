"""`agentpost bench flat`: does a message cost the same beside a million others?

The round trip of `agentpost bench roundtrip`, between two empty gateways and between two that have a history: the
sender a long outbox with its deliveries, the receiver an agent that has not read its mail. The pairs take turns.
"""

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Final

import uvloop
from msgspec.structs import replace

from agentpost.bench.events import make_events
from agentpost.bench.measure import Metric, Say
from agentpost.bench.peers.trip import Trip
from agentpost.bench.roundtrip import RECEIVER_NODE, SENDER_NODE, Pair, send_all
from agentpost.delivery.making import EventMaker
from agentpost.protocol.codec import encode_event
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import AckType
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import Acceptance, Inbound, LocalAgent
from agentpost.world import IdMaker, SystemChance, SystemClock

__all__ = ["bench_flat", "fill_inbox", "fill_outbox"]

_WINDOW: Final = 256
_MESSAGES: Final = 4_000
_BATCH: Final = 5_000
# Neither is at any of the gateways: what is there stays there.
_ELSEWHERE: Final = "bench-elsewhere"
_READER: Final = "bench-reader"


def bench_flat(*, rounds: int, events: int, unread: int, pair: Pair, say: Say) -> list[Metric]:
    """The cost of a message in both, and how they compare."""
    return uvloop.run(_bench_flat(rounds, events, unread, pair, say))


async def _bench_flat(rounds: int, events: int, unread: int, pair: Pair, say: Say) -> list[Metric]:
    empty: list[Trip] = []
    full: list[Trip] = []
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentpost-bench-")))
        (folder / "full").mkdir()
        await fill_outbox(folder / "full" / "sender", events, say)
        await fill_inbox(folder / "full" / "receiver", unread, say)
        small = await stack.enter_async_context(pair(folder / "empty"))
        large = await stack.enter_async_context(pair(folder / "full"))
        for engine in (small, large):
            await send_all(engine, window=_WINDOW, messages=2 * _WINDOW)
        for turn in range(rounds):
            say(f"round {turn + 1} of {rounds}")
            empty.append(await send_all(small, window=_WINDOW, messages=_MESSAGES))
            full.append(await send_all(large, window=_WINDOW, messages=_MESSAGES))
    return [
        Metric.of("a message between empty gateways", _cost_us(empty), "µs"),
        Metric.of(f"beside {events:,} events and {unread:,} unread", _cost_us(full), "µs", against=_cost_us(empty)),
    ]


def _cost_us(trips: list[Trip]) -> float:
    return min(1e6 / trip.rate for trip in trips)


async def fill_outbox(home: Path, events: int, say: Say) -> None:
    """An outbox with so many messages, all of them delivered long ago."""
    store = _open(home, SENDER_NODE)
    try:
        while (done := store.head().seq) < events:
            say(f"filling an outbox: {done:,} of {events:,}")
            batch = [
                replace(event, source_node_id=SENDER_NODE, to_nodes=(_ELSEWHERE,))
                for event in make_events(min(_BATCH, events - done))
            ]
            await store.append(batch, deliveries=[_delivered(event) for event in batch])
    finally:
        await store.close()


def _delivered(event: MessageEvent) -> Delivery:
    return Delivery(
        event_id=event.event_id,
        to_agent_id=_READER,
        to_node_id=_ELSEWHERE,
        route_decision="owner",
        corr_id=event.corr_id,
        from_agent_id=event.source_agent_id,
        state=DeliveryState.PROCESSED,
        emitted_at_ms=1,
        accepted_at_ms=2,
        closed_at_ms=SystemClock().now_ms(),
    )


async def fill_inbox(home: Path, unread: int, say: Say) -> None:
    """An agent that fetches its mail, and has not fetched any of this."""
    store = _open(home, RECEIVER_NODE)
    clock = SystemClock()
    maker = EventMaker(node_id=RECEIVER_NODE, clock=clock, ids=IdMaker(clock, SystemChance()))
    try:
        await store.put_agent(LocalAgent(agent_id=_READER, runtime="pull", created_at_ms=clock.now_ms()))
        for after_seq in range(0, unread, _BATCH):
            say(f"filling an inbox: {after_seq:,} of {unread:,}")
            through_seq = min(after_seq + _BATCH, unread)
            batch = [
                replace(event, source_node_id=_ELSEWHERE, to_nodes=(RECEIVER_NODE,), seq=seq)
                for seq, event in enumerate(make_events(through_seq - after_seq), after_seq + 1)
            ]
            await store.accept(
                Acceptance(
                    source_node_id=_ELSEWHERE,
                    source_epoch="bench",
                    after_seq=after_seq,
                    through_seq=through_seq,
                    events=tuple(
                        Inbound(
                            event=event,
                            raw=encode_event(event),
                            acks={_READER: maker.ack(event, AckType.ACCEPTED, agent_id=_READER)},
                        )
                        for event in batch
                    ),
                    at_ms=clock.now_ms(),
                )
            )
            await asyncio.sleep(0)
    finally:
        await store.close()


def _open(home: Path, node_id: str) -> SqliteStore:
    home.mkdir(mode=0o700)
    clock = SystemClock()
    # Nothing is lost if the machine stops while it is filled.
    return SqliteStore.open(home, node_id=node_id, epoch="bench", now_ms=clock.now_ms(), synchronous="OFF")
