"""The parts of A2A for one gateway, put together. Starts them and stops them; decides nothing by itself."""

import asyncio
from contextlib import suppress
from typing import Final

from agentpost.edges.a2a.exposing import Exposures
from agentpost.edges.a2a.forgetting import keep_forgetting
from agentpost.edges.a2a.push import PushConfigs
from agentpost.edges.a2a.pushing import Pusher
from agentpost.edges.a2a.reading import Reader, Told
from agentpost.edges.a2a.sending import Sending
from agentpost.edges.a2a.watching import TaskWatch
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import TaskId
from agentpost.store.values import LedgerState
from agentpost.tasks import TaskOwner

__all__ = ["Parts"]

_MOMENT_SECONDS: Final = 1.0


class Parts:
    """What the handler calls by its names."""

    def __init__(self, gateway: Gateway, exposures: Exposures) -> None:
        engine, networks = gateway.engine, gateway.settings.a2a.push_networks
        self.store = engine.store
        self.clock = engine.clock
        self.tasks = gateway.office.tasks
        self._mailroom = engine.mailroom
        self._own_mail = engine.links.own
        self.reader = Reader(engine.store, engine.sealer)
        self.watch = TaskWatch(engine.wakeups, stopping=gateway.stopping)
        self.push = PushConfigs(
            engine.store, gateway.identity, clock=engine.clock, chance=gateway.chance, networks=networks
        )
        self.sending = Sending(engine, self.tasks, exposures, self.push)
        self._pusher = Pusher(
            engine.store,
            self.push,
            self.reader,
            clock=engine.clock,
            chance=gateway.chance,
            wakeups=engine.wakeups,
            networks=networks,
        )
        self._owner = TaskOwner("a2a")

    def start(self) -> None:
        self._pusher.start()
        self._owner.spawn(keep_forgetting(self.store, self.clock), name="forgetting")

    async def close(self) -> None:
        await self._owner.close()
        await self._pusher.close()

    def moved(self, task_id: TaskId) -> None:
        """Something was said here about a task, or somebody wants to hear of it from now on."""
        self.watch.wake(task_id)
        self._pusher.tasks_moved([task_id])

    async def settle(self, peer_id: str, told: Told) -> None:
        """What a peer was shown need not wait in its inbox: the end of its task, and what it was told on the way."""
        # What an agent of this gateway has said of a task is known a moment before it is in the peer's inbox.
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT_SECONDS):
                await self._own_mail.caught_up()
        for step in told.steps:
            item = None if step.is_peers else self.store.inbox_item(step.event_id, peer_id)
            if item is not None and item.entry.state is not LedgerState.SETTLED:
                try:
                    await self._mailroom.dismiss(peer_id, step.event_id)
                except Refusal:
                    # The peer has what it asked for; its inbox can wait for the next time.
                    return
