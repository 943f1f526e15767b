"""Functions that are called with an agent's mail, in a program of its own.

agent = Agent("builder")

@agent.on_message
async def build(message: Message) -> str:
    return f"built: {message.content.body}"

agent.run()

The program fetches, works and settles. What it returns is the reply. If it raises, the message comes again later, as
the next attempt; `Failed` says that it never will work. While a function runs its message is kept for it, however long
that takes, and goes to nobody else.
"""

import asyncio
import contextlib
import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from agentpost.delivery.ports import Content, Engagement, ResultKind
from agentpost.edges.sdk.client import Client
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Kind
from agentpost.tasks import TaskOwner

__all__ = ["Agent", "Failed", "Message"]

_log = logging.getLogger(__name__)

Message: TypeAlias = Engagement
Reply: TypeAlias = str | Content | None
T = TypeVar("T")
Handler: TypeAlias = Callable[[Message], Awaitable[Reply]]

_WAIT_SECONDS: Final = 30.0
_LEASE_SECONDS: Final = 120.0
# Often enough that one extension may be lost.
_EXTEND_EVERY_SECONDS: Final = 40.0
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0


class Failed(Exception):  # noqa: N818 - what a handler says of a message, not a fault of the program
    """A handler raises it for a message that will never work. The sender hears that it failed; why is in the inbox."""


class Agent:
    """An agent as functions: one for messages and replies, one for whatever else comes."""

    def __init__(self, agent_id: str, *, home: Path | str | None = None, concurrency: int = 1) -> None:
        if concurrency < 1:
            raise Refusal(Code.INVALID_FIELD, "concurrency must be 1 or more", field="concurrency")
        self._agent_id = agent_id
        self._home = home
        self._concurrency = concurrency
        self._handlers: dict[Kind, Handler] = {}

    def on_message(self, handler: Handler) -> Handler:
        """Call this function with every message, and with every reply to what the agent has sent."""
        self._handle(handler, Kind.MESSAGE, Kind.REPLY)
        return handler

    def _handle(self, handler: Handler, *kinds: Kind) -> None:
        if not inspect.iscoroutinefunction(handler):
            raise Refusal(Code.INVALID_FIELD, "a handler is an async function", field="handler")
        for kind in kinds:
            if kind in self._handlers:
                raise Refusal(Code.CONFLICT, f"{self._agent_id} has a handler for {kind.value} already")
            self._handlers[kind] = handler

    def run(self) -> None:
        """Work until the program is told to stop (Ctrl-C or SIGTERM); what is under way is finished first."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for wanted in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(wanted, stopping.set)
        await self.serve(stopping)

    async def serve(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set. A gateway that is away is waited for."""
        tasks = TaskOwner(f"agent {self._agent_id}")
        async with Client(self._agent_id, home=self._home) as client:
            working = [
                tasks.spawn(self._work(client, stopping), name=f"worker {number}")
                for number in range(self._concurrency)
            ]
            try:
                await asyncio.gather(*working)
            finally:
                await tasks.close()

    async def _work(self, client: Client, stopping: asyncio.Event) -> None:
        pause_seconds = _PAUSE_SECONDS
        is_registered = False
        while not stopping.is_set():
            try:
                if not is_registered:
                    await client.register(lease_seconds=_LEASE_SECONDS)
                    is_registered = True
                fetched = await _unless(stopping, client.fetch(wait_seconds=_WAIT_SECONDS))
            except Refusal as refusal:
                if refusal.code is not Code.UNAVAILABLE:
                    raise
                _log.warning("%s, trying again in %g s", refusal.message, pause_seconds)
                await _unless(stopping, asyncio.sleep(pause_seconds))
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
                continue
            pause_seconds = _PAUSE_SECONDS
            for message in fetched or ():
                await self._handle_one(client, message)

    async def _handle_one(self, client: Client, message: Message) -> None:
        handler = self._handlers.get(message.kind)
        tasks = TaskOwner(f"agent {self._agent_id}")
        keeping = tasks.spawn(_keep(client, message), name="lease")
        kind, reply, error = ResultKind.PROCESSED, None, None
        try:
            if handler is None:
                kind, error = ResultKind.FAILED, f"{self._agent_id} takes no {message.kind.value}"
            else:
                reply = await handler(message)
        except Failed as problem:
            kind, error = ResultKind.FAILED, str(problem)
        except Exception as problem:  # noqa: BLE001 - whatever somebody's function raises is an attempt that failed
            _log.warning("%s is to come again: %s: %s", message.event_id, type(problem).__name__, problem)
            kind, error = ResultKind.RETRY, f"{type(problem).__name__}: {problem}"
        finally:
            keeping.cancel()
        await self._settle(client, message, kind, reply, error)

    async def _settle(
        self, client: Client, message: Message, kind: ResultKind, reply: Reply, error: str | None
    ) -> None:
        """Said until it is heard: the work is done, and only this program knows it."""
        pause_seconds = _PAUSE_SECONDS
        while True:
            try:
                await client.settle(message.event_id, kind, reply=reply, error=error)
            except Refusal as refusal:
                if refusal.code is not Code.UNAVAILABLE:
                    _log.error("%s cannot be settled: %s", message.event_id, refusal.message)
                    return
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            else:
                return


async def _keep(client: Client, message: Message) -> None:
    """Keep a message for as long as its handler runs."""
    while True:
        await asyncio.sleep(_EXTEND_EVERY_SECONDS)
        with contextlib.suppress(Refusal):
            await client.extend(message.event_id, _LEASE_SECONDS)


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None, and the work is cancelled, if it is time to stop."""
    tasks = TaskOwner("agent")
    working = tasks.spawn(work, name="waiting")
    told = tasks.spawn(stopping.wait(), name="stopping")
    try:
        await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        await tasks.close()
