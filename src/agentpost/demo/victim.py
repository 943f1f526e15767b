"""The process that the demo kills: it appends messages as fast as it can, and says which ones it was told are safe.

Run as `python -m agentpost.demo.victim HOME NODE`. Every line it prints is a seq that the store acknowledged.
"""

import asyncio
import sys
from pathlib import Path

from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.payloads import Message
from agentpost.protocol.timestamps import format_ms
from agentpost.store.sqlite import SqliteStore
from agentpost.world import IdMaker, SystemChance, SystemClock

_CALLERS = 16


async def _append_until_killed(home: Path, node_id: str) -> None:
    clock = SystemClock()
    ids = IdMaker(clock, SystemChance())
    store = SqliteStore.open(home, node_id=node_id, epoch="demo", now_ms=clock.now_ms())

    async def call() -> None:
        while True:
            event_id = ids.make(EventId)
            event = MessageEvent(
                event_id=event_id,
                source_node_id=node_id,
                source_agent_id="architect",
                corr_id=corr_id_of(event_id),
                created_at=format_ms(clock.now_ms()),
                payload=Message(to_agents=("builder",), body="still working"),
            )
            appended = await store.append((event,))
            # It was told that this is durable: from here on, losing it would be a broken promise.
            sys.stdout.write(f"{appended.last_seq}\n")
            sys.stdout.flush()

    await asyncio.gather(*(call() for _ in range(_CALLERS)))


if __name__ == "__main__":
    asyncio.run(_append_until_killed(Path(sys.argv[1]), sys.argv[2]))
