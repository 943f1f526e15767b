"""From the inbox to the agents: each local agent has a worker of its own, so that a slow one holds nobody back.

Here is who is served, and by which runtime; how mail is handed over is in `worker`. Agents are added, changed, paused
and removed while the gateway runs.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from agentpost.delivery.carrying import carried_out
from agentpost.delivery.lanes import Mail
from agentpost.delivery.making import EventMaker
from agentpost.delivery.ports import Result, ResultKind, Runtime, Wakeups
from agentpost.delivery.pull import PULL
from agentpost.delivery.task_turns import TaskTurns
from agentpost.delivery.turns import Opener, Replier, Turns
from agentpost.delivery.worker import UNCLEAR, Worker
from agentpost.protocol.backoff import DISPATCH_RETRY, RetryPolicy
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import TaskCreateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.taskbook import TaskRecord
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry, Incident, LedgerState, LocalAgent
from agentpost.tasks import TaskOwner
from agentpost.world import Chance, Clock

__all__ = ["Dispatcher", "Resolution"]

_log = logging.getLogger(__name__)

_DRAIN_SECONDS: Final = 30.0


class Resolution(StrEnum):
    """What an operator says of an event whose outcome nobody knows."""

    RETRY = "retry"  # hand it over again
    SETTLE = "settle"  # the agent has had it: close it as processed


class Dispatcher:
    """Engages the local agents. `start` it once; `drain` before `close` lets running turns end.

    `turns` is for `Pull`, which begins and ends them for agents that are not engaged from here.
    """

    def __init__(
        self,
        *,
        store: Store,
        sealer: Opener,
        publisher: Replier,
        maker: EventMaker,
        clock: Clock,
        chance: Chance,
        wakeups: Wakeups,
        runtimes: Callable[[LocalAgent], Runtime],
        policy: RetryPolicy = DISPATCH_RETRY,
        task_turns: TaskTurns | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._runtimes = runtimes
        self.turns = Turns(
            store=store,
            sealer=sealer,
            publisher=publisher,
            maker=maker,
            clock=clock,
            chance=chance,
            wakeups=wakeups,
            policy=policy,
            tasks=task_turns,
        )
        # OPS-2: what is done about the mail of agents that do not say it themselves.
        self.dispatch_incoming = True
        self._tasks = TaskOwner("dispatch")
        self._desks: dict[str, _Desk] = {}
        self._is_open = False
        wakeups.listen(mail=self._on_mail, tasks=self._on_tasks)

    def start(self) -> None:
        """Begin with what waits for the agents that are known."""
        self._is_open = True
        self.turns.failing.start()
        self.refresh()

    def refresh(self) -> None:
        """Look at the agents again: somebody was added, changed, paused, resumed or removed.

        A turn that is running ends under the runtime it began with.
        """
        if not self._is_open:
            return
        agents = self._store.local_agents()
        for agent in agents:
            if agent.agent_id not in self._desks:
                self._open_desk(agent.agent_id)
        self.turns.failing.keep_only({agent.agent_id for agent in agents})
        for desk in self._desks.values():
            desk.look()

    async def resolve(self, event_id: EventId, agent_id: str, how: Resolution, *, actor: str) -> None:
        """Decide about an event whose outcome is unclear. Refused for any other. The audit log has who did.

        Who gives up waiting has decided all the same.
        """
        await carried_out(self._resolve(event_id, agent_id, how, actor))

    async def _resolve(self, event_id: EventId, agent_id: str, how: Resolution, actor: str) -> None:
        item = self._store.inbox_item(event_id, agent_id)
        if item is None:
            raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} is not in the inbox of {agent_id}", field="eventId")
        desk = self._desks.get(agent_id)
        if item.entry.state is not LedgerState.ENGAGED or (desk is not None and desk.is_busy_with(event_id)):
            raise Refusal(Code.INVALID_TRANSITION, f"the outcome of {event_id} for {agent_id} is not unclear")
        event = decode_event(item.raw)
        if how is Resolution.RETRY:
            # Due at any time of day, also if that is set back.
            await self._store.postpone(event_id, agent_id, due_at_ms=0, error="an operator had it tried again")
        else:
            await self.turns.end(event, agent_id, Result(kind=ResultKind.PROCESSED))
        now_ms = self._clock.now_ms()
        await self._store.close_incident(UNCLEAR, f"{event_id}/{agent_id}", at_ms=now_ms)
        await self._store.record_audit(
            [
                AuditEntry(
                    at_ms=now_ms,
                    actor=actor,
                    action="inbox.resolve",
                    subject=event_id,
                    corr_id=event.corr_id,
                    detail={"agentId": agent_id, "how": how.value},
                )
            ]
        )
        if desk is not None:
            desk.forget(event_id)

    def is_busy_with(self, event_id: EventId, agent_id: str) -> bool:
        """Whether a turn with this is under way, perhaps under the runtime that the agent had before."""
        desk = self._desks.get(agent_id)
        return desk is not None and desk.is_busy_with(event_id)

    async def drain(self, *, timeout_seconds: float = _DRAIN_SECONDS) -> bool:
        """Take no new work and wait for what runs. False if some of it still did when the time was over."""
        self._is_open = False
        for desk in self._desks.values():
            desk.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await asyncio.gather(*(desk.idle() for desk in self._desks.values()))
                return True
        return False

    async def close(self) -> None:
        """End everything. A turn that is cut off is unclear at the next start."""
        self._is_open = False
        await self._tasks.close()
        await self.turns.failing.close()
        self._desks.clear()

    def _on_mail(self, agent_id: str, mail: Sequence[Mail]) -> None:
        desk = self._desks.get(agent_id)
        if desk is not None:
            desk.mail_came(mail)
        elif self._is_open and self._store.local_agent(agent_id) is not None:
            self._open_desk(agent_id)

    def _dispatches(self, agent: LocalAgent) -> bool:
        """Whether this agent is engaged from here when something comes for it."""
        said: Any = agent.options.get("dispatchIncoming", agent.options.get("dispatch_incoming"))
        # As people write options: perhaps as text. They were checked when the agent was added.
        return self.dispatch_incoming if said is None else str(said).lower() not in ("false", "0")

    def _on_tasks(self, task_ids: Sequence[TaskId]) -> None:
        records = [record for task_id in task_ids if (record := self._store.task(task_id)) is not None]
        for record in records:
            for agent_id in record.to_agents:
                if (desk := self._desks.get(agent_id)) is not None:
                    desk.hurry(record.create_event_id)
        if any(record.accepted_by_agent_id is not None or not record.is_open for record in records):
            self._tasks.spawn(self._tidy(records), name="offers")

    async def _tidy(self, records: Sequence[TaskRecord]) -> None:
        """TASK-6: who was offered a task that somebody else has is not engaged with it any more."""
        for record in records:
            if record.accepted_by_agent_id is None and record.is_open:
                continue
            for agent_id in record.to_agents:
                item = self._store.inbox_item(record.create_event_id, agent_id)
                if item is None or item.entry.state is not LedgerState.QUEUED:
                    continue
                if record.is_held_by(agent_id, self._store.node_id):
                    continue
                event = decode_event(item.raw)
                if isinstance(event, TaskCreateEvent):
                    with suppress(Refusal):
                        await self.turns.leave(event, agent_id)

    def _open_desk(self, agent_id: str) -> None:
        desk = _Desk(agent_id, self._store, self.turns, self._clock, self._runtimes, self._tasks, self._dispatches)
        self._desks[agent_id] = desk
        self._tasks.spawn(desk.serve(), name=agent_id)


class _Desk:
    """Where one agent is served, under whatever runtime it has, from its first mail until the gateway stops."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        turns: Turns,
        clock: Clock,
        runtimes: Callable[[LocalAgent], Runtime],
        tasks: TaskOwner,
        dispatches: Callable[[LocalAgent], bool],
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._turns = turns
        self._clock = clock
        self._runtimes = runtimes
        self._tasks = tasks
        self._dispatches = dispatches
        self._served: LocalAgent | None = None
        self._worker: Worker | None = None
        # Whether there is an incident about its runtime that this desk knows of.
        self._is_unusable = False
        self._changed = asyncio.Event()
        self._is_stopping = False

    async def serve(self) -> None:
        while not self._is_stopping:
            self._changed.clear()
            agent = self._served = self._store.local_agent(self._agent_id)
            runtime = await self._employ(agent)
            if agent is None or runtime is None:
                await self._changed.wait()
                continue
            if self._changed.is_set():
                # While it was employed; whoever it is now comes next.
                await runtime.close()
                continue
            self._worker = Worker(agent.agent_id, runtime, self._store, self._turns, self._clock, self._tasks)
            try:
                await self._worker.run()
            finally:
                self._worker = None
                await runtime.close()

    async def _employ(self, agent: LocalAgent | None) -> Runtime | None:
        """The runtime of the agent; None if there is nothing to do for it now."""
        if self._is_unusable and (agent is None or agent.runtime == PULL):
            await self._close_unusable()
        if agent is None or agent.is_paused or agent.runtime == PULL or not self._dispatches(agent):
            return None
        try:
            runtime = self._runtimes(agent)
        except Exception as error:  # noqa: BLE001 - a defect of one runtime is its agent's, and waits for its operator
            # What a refusal says repeats no secret; of anything else the name has to do.
            problem = error.message if isinstance(error, Refusal) else type(error).__name__
            _log.warning("%s cannot be engaged: %s", agent.agent_id, problem)
            incident = Incident(
                kind=IncidentKind.RUNTIME_UNUSABLE,
                subject=agent.agent_id,
                at_ms=self._clock.now_ms(),
                detail={"runtime": agent.runtime, "problem": problem},
            )
            with suppress(Refusal):
                await self._store.raise_incident(incident)
            self._is_unusable = True
            return None
        await self._close_unusable()
        return runtime

    async def _close_unusable(self) -> None:
        with suppress(Refusal):
            await self._store.close_incident(IncidentKind.RUNTIME_UNUSABLE, self._agent_id, at_ms=self._clock.now_ms())
        self._is_unusable = False

    def look(self) -> None:
        """Notice whether the agent is still the one that is served."""
        if self._store.local_agent(self._agent_id) != self._served:
            self._changed.set()
            if self._worker is not None:
                self._worker.stop()

    def stop(self) -> None:
        self._is_stopping = True
        self._changed.set()
        if self._worker is not None:
            self._worker.stop()

    async def idle(self) -> None:
        if self._worker is not None:
            await self._worker.idle.wait()

    def mail_came(self, mail: Sequence[Mail]) -> None:
        if self._worker is not None:
            self._worker.mail_came(mail)

    def is_busy_with(self, event_id: EventId) -> bool:
        return self._worker is not None and self._worker.is_busy_with(event_id)

    def forget(self, event_id: EventId) -> None:
        if self._worker is not None:
            self._worker.forget(event_id)

    def hurry(self, event_id: EventId) -> None:
        if self._worker is not None:
            self._worker.hurry(event_id)
