"""Functions that are called with an agent's mail, in a program of its own.

agent = Agent("builder")

@agent.on_message
async def build(message: Message) -> str:
    return f"built: {message.content.body}"

@agent.on_task
async def work(task: Task) -> str:
    await task.progress(50, "half of it")
    return "all of it"

agent.run()

The program fetches, works and settles. What it returns is the reply. If it raises, the message comes again later, as
the next attempt; `Failed` says that it never will work. While a function runs its message is kept for it, however long
that takes, and goes to nobody else.

A task is claimed first, with an ETA; if somebody else has it, nothing is called. What the function returns completes
the task, what it raises fails it. A task that was under way when the program ended is begun anew at the next start.
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
from agentpost.edges.operator_client import new_retry_key
from agentpost.edges.sdk.client import Client
from agentpost.edges.sdk.held_mail import HeldMail
from agentpost.logs import make_logs_safe
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.payloads import Kind
from agentpost.protocol.taskbook import Verdict
from agentpost.tasks import TaskOwner
from agentpost.work.tasks import Role

__all__ = ["Agent", "Failed", "Message", "Task"]

_log = logging.getLogger(__name__)

Message: TypeAlias = Engagement
Reply: TypeAlias = str | Content | None
T = TypeVar("T")
Handler: TypeAlias = Callable[[Message], Awaitable[Reply]]
Worker: TypeAlias = Callable[["Task"], Awaitable[Reply]]

_WAIT_SECONDS: Final = 30.0
_LEASE_SECONDS: Final = 120.0
# Often enough that one extension may be lost.
_EXTEND_EVERY_SECONDS: Final = 40.0
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_ETA_SECONDS: Final = 900
_DECISION_SECONDS: Final = 2.0
_MOST_RESUMED: Final = 500
# What others say of tasks that this agent asked for: it is in the list of its tasks, whether or not somebody listens.
_NEWS: Final = (Kind.TASK_ACCEPT, Kind.TASK_UPDATE, Kind.TASK_COMPLETE, Kind.TASK_FAILED)


class Failed(Exception):  # noqa: N818 - what a handler says of a message, not a fault of the program
    """A handler raises it for a message that will never work. The sender hears that it failed; why is in the inbox."""


class Task:
    """A task that is this agent's to do. What its function returns completes it."""

    def __init__(self, client: Client, task_id: TaskId, content: Content) -> None:
        self._client = client
        self.task_id = task_id
        self.title = content.title or ""
        self.description = content.description or ""
        self.input = content.context

    async def progress(self, percent: int, note: str | None = None, *, revised_eta_seconds: int | None = None) -> None:
        """Tell how it goes; with `revised_eta_seconds` also when it will be done, from now."""
        await self._client.tasks.update(
            self.task_id, progress=percent, note=note, revised_eta_seconds=revised_eta_seconds
        )


class Agent:
    """An agent as functions: one for messages and replies, one for tasks."""

    def __init__(self, agent_id: str, *, home: Path | str | None = None, concurrency: int = 1) -> None:
        if concurrency < 1:
            raise Refusal(Code.INVALID_FIELD, "concurrency must be 1 or more", field="concurrency")
        self._agent_id = agent_id
        self._home = home
        self._concurrency = concurrency
        self._handlers: dict[Kind, Handler] = {}
        self._worker: Worker | None = None
        self._eta_seconds = _ETA_SECONDS

    def on_message(self, handler: Handler) -> Handler:
        """Call this function with every message, and with every reply to what the agent has sent."""
        self._handle(handler, Kind.MESSAGE, Kind.REPLY)
        return handler

    def on_task(self, worker: Worker, *, eta_seconds: int = _ETA_SECONDS) -> Worker:
        """Call this function with every task that is this agent's, once its claim with the ETA has been won."""
        if not inspect.iscoroutinefunction(worker):
            raise Refusal(Code.INVALID_FIELD, "a handler is an async function", field="handler")
        self._worker, self._eta_seconds = worker, eta_seconds
        return worker

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
                tasks.spawn(self._work(client, stopping, number), name=f"worker {number}")
                for number in range(self._concurrency)
            ]
            try:
                await asyncio.gather(*working)
            finally:
                await tasks.close()

    async def _work(self, client: Client, stopping: asyncio.Event, number: int) -> None:
        make_logs_safe()
        pause_seconds = _PAUSE_SECONDS
        is_registered = False
        while not stopping.is_set():
            try:
                if not is_registered:
                    await client.register(lease_seconds=_LEASE_SECONDS)
                    is_registered = True
                    if number == 0:
                        await self._resume(client)
                fetching = HeldMail.fetch(client.calls, client.agent, wait_seconds=_WAIT_SECONDS)
                fetched = await _unless(stopping, fetching)
            except Refusal as refusal:
                if refusal.code is not Code.UNAVAILABLE:
                    raise
                _log.warning("%s, trying again in %g s", refusal.message, pause_seconds)
                await _unless(stopping, asyncio.sleep(pause_seconds))
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
                continue
            pause_seconds = _PAUSE_SECONDS
            if fetched is not None:
                await self._handle_all(client, fetched)

    async def _handle_all(self, client: Client, mail: HeldMail) -> None:
        """Handle mail while the connection that brought it lasts: if this program dies, its next start gets it soon."""
        try:
            with_us = await mail.take(for_connection=True) if mail.messages else frozenset[EventId]()
            for message in mail.messages:
                if message.event_id in with_us:
                    await self._handle_one(client, message)
        except Refusal as refusal:
            _log.warning("mail that was fetched is to come again: %s", refusal.message)
        finally:
            await mail.close()

    async def _handle_one(self, client: Client, message: Message) -> None:
        tasks = TaskOwner(f"agent {self._agent_id}")
        keeping = tasks.spawn(_keep(client, message), name="lease")
        kind, reply, error = ResultKind.PROCESSED, None, None
        try:
            reply = await self._answer(client, message)
        except Failed as problem:
            kind, error = ResultKind.FAILED, str(problem)
        except Exception as problem:  # noqa: BLE001 - whatever somebody's function raises is an attempt that failed
            _log.warning("%s is to come again: %s: %s", message.event_id, type(problem).__name__, problem)
            kind, error = ResultKind.RETRY, f"{type(problem).__name__}: {problem}"
        finally:
            keeping.cancel()
        await _insist(lambda: client.settle(message.event_id, kind, reply=reply, error=error))

    async def _answer(self, client: Client, message: Message) -> Reply:
        if message.kind is Kind.TASK_CREATE and message.task is not None and self._worker is not None:
            if await self._is_won(client, message.task.task_id):
                await self._do(client, message.task.task_id, message.content)
            return None
        handler = self._handlers.get(message.kind)
        if handler is not None:
            return await handler(message)
        if message.kind in _NEWS:
            return None
        raise Failed(f"{self._agent_id} takes no {message.kind.value}")

    async def _resume(self, client: Client) -> None:
        """Begin anew what this agent had accepted when the program ended."""
        for line in await client.tasks.list(role=Role.WORKER, only_open=True, limit=_MOST_RESUMED):
            if line.task.accepted_by_agent_id == self._agent_id and self._worker is not None:
                view = await client.tasks.show(line.task.task_id)
                await self._do(client, line.task.task_id, view.steps[0].content)

    async def _do(self, client: Client, task_id: TaskId, content: Content) -> None:
        """Have the function do a task, and say how it ended."""
        if self._worker is None:
            return
        try:
            reply = await self._worker(Task(client, task_id, content))
        except Exception as problem:  # noqa: BLE001 - whatever somebody's function raises is work that failed
            is_meant = isinstance(problem, Failed)
            error = str(problem) if is_meant else f"{type(problem).__name__}: {problem}"
            _log.warning("%s failed: %s", task_id, error)
            kind, key = "failed" if is_meant else "error", new_retry_key()
            await _insist(lambda: client.tasks.fail(task_id, error, failure_class=kind, idempotency_key=key))
        else:
            said = Content(body=reply) if isinstance(reply, str) else reply or Content()
            summary = said.result_summary or said.body or "done"
            key = new_retry_key()
            await _insist(lambda: client.tasks.complete(task_id, summary, output=said.output, idempotency_key=key))

    async def _is_won(self, client: Client, task_id: TaskId) -> bool:
        """Claim a task, if that is not done yet, and wait for the decision of its requester's gateway."""
        record = (await client.tasks.show(task_id)).task
        if record.is_open and record.accepted_by_agent_id is None and record.claim_of(self._agent_id) is None:
            await client.tasks.claim(task_id, eta_seconds=self._eta_seconds)
        while True:
            record = (await client.tasks.show(task_id)).task
            claim = record.claim_of(self._agent_id)
            if not record.is_open or (claim is not None and claim.verdict is Verdict.LOST):
                return False
            if record.accepted_by_agent_id is not None:
                return record.accepted_by_agent_id == self._agent_id
            await asyncio.sleep(_DECISION_SECONDS)


async def _insist(say: Callable[[], Awaitable[object]]) -> None:
    """Say it until it is heard: the work is done, and only this program knows it."""
    pause_seconds = _PAUSE_SECONDS
    while True:
        try:
            await say()
        except Refusal as refusal:
            if refusal.code is not Code.UNAVAILABLE:
                _log.error("what became of it cannot be said: %s", refusal.message)
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
