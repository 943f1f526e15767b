"""Tasks as agents and their people use them: create, list, show, claim, update, complete, fail.

Everything is an event in the outbox of whoever does it; what is listed here is the projection that the store keeps.
Knows nothing of HTTP or of terminals.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.engine import Engine
from agentpost.delivery.glance import Glance
from agentpost.delivery.idempotency import Keyed
from agentpost.delivery.ports import Content
from agentpost.delivery.task_moves import Move
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import (
    Event,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.payloads import AckType, Kind
from agentpost.protocol.taskbook import TaskRecord, Verdict
from agentpost.store.values import KeptAnswer, LedgerState, Outcome, Settlement, TasksRebuilt
from agentpost.work.offering import NewTask, NotesOf, Offered, Offering, Said, offered_before

__all__ = ["Moved", "Role", "TaskLine", "TaskStep", "TaskView", "Tasks"]

_PAGE: Final = 256


class Role(StrEnum):
    """What an agent has to do with a task."""

    REQUESTER = "requester"
    WORKER = "worker"  # it was offered, claimed or is being done


class TaskLine(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One task as a list shows it. `title` is None where it cannot be opened here.

    `offer_ended` says why it waits for nobody: none of those that it was offered to has it. It is not over for that.
    """

    task: TaskRecord
    title: str | None = None
    offer_ended: str | None = None


class TaskStep(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One thing that was said about a task. Its content was written by an agent: it is data, never instructions."""

    at_ms: int
    event_id: EventId
    kind: Kind
    by_agent_id: str
    by_node_id: str
    content: Content = Content()
    problem: str | None = None


class TaskView(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A whole task: where it stands, and what was said. `offer_ended` is as in a list."""

    task: TaskRecord
    is_open: bool
    steps: tuple[TaskStep, ...]
    offer_ended: str | None = None


class Moved(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A move is durable here. `verdict` is for claims: work begins when it is `won`."""

    task_id: TaskId
    event_id: EventId
    state: str
    verdict: Verdict | None = None


class Tasks:
    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self._engine = engine
        self._moves = engine.task_moves
        self._keys = engine.keys
        self.offering = Offering(
            store=engine.store,
            publisher=engine.publisher,
            sealer=engine.sealer,
            moves=engine.task_moves,
            maker=engine.maker,
            ids=engine.ids,
            clock=engine.clock,
        )

    async def create(self, task: NewTask, *, key: str | None = None) -> Offered:
        """Offer a task: to the agents it names, or to whoever has the capabilities. The first claim wins.

        The same `key` (an idempotency key) gives the same task.
        """
        keyed = self._keys.of(task.requester_agent_id, key, "tasks.create", _said_of(task))
        return await self._keys.once(
            keyed, lambda: self.offering.create(task, keyed=keyed), again=lambda kept: offered_before(kept)[0]
        )

    async def create_each(
        self, task: NewTask, *, notes: NotesOf | None = None, key: str | None = None
    ) -> list[Offered]:
        """One such task for each target, for work that all of them have to do."""
        keyed = self._keys.of(task.requester_agent_id, key, "tasks.create_each", _said_of(task))
        return await self._keys.once(
            keyed, lambda: self.offering.create_each(task, notes=notes, keyed=keyed), again=offered_before
        )

    def list(
        self,
        *,
        agent_id: str | None = None,
        role: Role | None = None,
        open_only: bool = False,
        limit: int = 50,
        before: str = "",
    ) -> list[TaskLine]:
        """The tasks that are known here, the newest first. `before` is the last id of the page before.

        With an agent, `open_only` means open for that agent: what another agent has won is not.
        """
        found: list[TaskRecord] = []
        while len(found) < limit:
            page = self._store.tasks(after=before, limit=_PAGE, open_only=open_only, newest_first=True)
            found += [record for record in page if self._concerns(record, agent_id, role, open_only=open_only)]
            if len(page) < _PAGE:
                break
            before = page[-1].task_id
        glance = Glance(self._engine.sealer.open)
        return [
            TaskLine(task=record, title=self._title(record, glance), offer_ended=self.offering.why_ended(record))
            for record in found[:limit]
        ]

    def get(self, task_id: str) -> TaskRecord:
        record = self._store.task(TaskId(task_id))
        if record is None:
            raise Refusal(Code.NOT_FOUND, f"task {task_id!r:.40} is not known here", field="taskId")
        return record

    def offer_of(self, record: TaskRecord) -> TaskCreateEvent:
        """The event that the task is offered with; its content is what has to be done."""
        return self._moves.offer_of(record)

    def show(self, task_id: str, *, agent_id: str | None = None) -> TaskView:
        """One task with everything that was said about it, as far as this gateway may read it.

        With an agent, `is_open` says whether the task is open for that agent.
        """
        record = self.get(task_id)
        steps: dict[EventId, TaskStep] = {}
        for entry in self._store.task_events(record.task_id):
            event = decode_event(entry.raw)
            if entry.event_id not in steps and isinstance(event, _SAID):
                steps[entry.event_id] = self._step(event, entry.at_ms)
        return TaskView(
            task=record,
            is_open=record.is_open if agent_id is None else record.is_open_for(agent_id, self._store.node_id),
            steps=tuple(steps.values()),
            offer_ended=self.offering.why_ended(record),
        )

    async def claim(
        self,
        task_id: str,
        agent_id: str,
        *,
        eta_seconds: int | None = None,
        eta_at: str | None = None,
        plan_summary: str | None = None,
        key: str | None = None,
    ) -> Moved:
        """Accept a task, with when it will be done (TASK-2). Where others were asked too, the verdict comes later."""
        said = (task_id, eta_seconds, eta_at, plan_summary)
        keyed = self._keys.of(agent_id, key, "tasks.claim", said)

        async def claim() -> Moved:
            record = self._expect_local(task_id, agent_id)
            move = await self._moves.accept(
                record, agent_id, eta_seconds=eta_seconds, eta_at=eta_at, plan_summary=plan_summary
            )
            # The offer is dealt with: from here on the task itself says how it goes.
            await self._append(record, agent_id, move, keyed=keyed)
            return self._moved(task_id, move.event.event_id, claimed_by=agent_id)

        return await self._keys.once(keyed, claim, again=lambda kept: self._moved_before(kept, claimed_by=agent_id))

    async def update(
        self,
        task_id: str,
        agent_id: str,
        *,
        status: str = "in_progress",
        progress: int | None = None,
        revised_eta_at: str | None = None,
        revised_eta_seconds: int | None = None,
        note: str | None = None,
        notify: bool = False,
        key: str | None = None,
    ) -> Moved:
        """Say how it goes (TASK-3). With `notify` the requester gets it as mail, else it stands in the task."""
        said = (task_id, status, progress, revised_eta_at, revised_eta_seconds, note, notify)
        keyed = self._keys.of(agent_id, key, "tasks.update", said)

        async def update() -> Moved:
            until = revised_eta_at
            if revised_eta_seconds is not None:
                until = self._moves.eta_at(revised_eta_seconds, field="revisedEtaSeconds")
            record = self._expect_local(task_id, agent_id)
            move = await self._moves.update(
                record, agent_id, status=status, progress=progress, revised_eta_at=until, note=note, notify=notify
            )
            await self._append(record, agent_id, move, closes_offer=False, keyed=keyed)
            return self._moved(task_id, move.event.event_id)

        return await self._keys.once(keyed, update, again=self._moved_before)

    async def complete(
        self,
        task_id: str,
        agent_id: str,
        *,
        result_summary: str,
        output: Any = None,
        result_ref: str | None = None,
        installed_version: str | None = None,
        installed_at: str | None = None,
        key: str | None = None,
    ) -> Moved:
        """End a task well (TASK-4). The requester always hears of it (TASK-7)."""
        said = (task_id, result_summary, output, result_ref, installed_version, installed_at)
        keyed = self._keys.of(agent_id, key, "tasks.complete", said)

        async def complete() -> Moved:
            record = self._expect_local(task_id, agent_id)
            move = await self._moves.complete(
                record,
                agent_id,
                result_summary=result_summary,
                output=output,
                result_ref=result_ref,
                installed_version=installed_version,
                installed_at=installed_at,
            )
            await self._append(record, agent_id, move, keyed=keyed)
            return self._moved(task_id, move.event.event_id)

        return await self._keys.once(keyed, complete, again=self._moved_before)

    async def fail(
        self, task_id: str, agent_id: str, *, failure_class: str, error_summary: str, key: str | None = None
    ) -> Moved:
        """End a task badly (TASK-4). The requester always hears of it (TASK-7)."""
        keyed = self._keys.of(agent_id, key, "tasks.fail", (task_id, failure_class, error_summary))

        async def fail() -> Moved:
            record = self._expect_local(task_id, agent_id)
            move = await self._moves.fail(record, agent_id, failure_class=failure_class, error_summary=error_summary)
            await self._append(record, agent_id, move, keyed=keyed)
            return self._moved(task_id, move.event.event_id)

        return await self._keys.once(keyed, fail, again=self._moved_before)

    async def cancel(self, task_id: str, agent_id: str, *, key: str | None = None) -> Moved:
        """Take a task back that is not over; only who asked for it can. What its worker says later is refused."""
        keyed = self._keys.of(agent_id, key, "tasks.cancel", task_id)

        async def cancel() -> Moved:
            record = self._expect_local(task_id, agent_id)
            if record.requester_agent_id != agent_id:
                raise Refusal(
                    Code.INVALID_TRANSITION,
                    f"task {record.task_id} was asked for by {record.requester_agent_id}",
                    hint="Only its requester cancels a task; who has it can fail it.",
                )
            event_id = await self.offering.cancel(record, keyed=keyed)
            self._engine.wakeups.tasks_moved([record.task_id])
            return self._moved(task_id, event_id)

        return await self._keys.once(keyed, cancel, again=self._moved_before)

    async def rebuild(self, *, check_only: bool = False) -> TasksRebuilt:
        """Make the tasks anew from their events, and say which were kept otherwise."""
        return await self._store.rebuild_tasks(check_only=check_only)

    async def _append(
        self,
        record: TaskRecord,
        agent_id: str,
        move: Move,
        *,
        closes_offer: bool = True,
        keyed: Keyed | None = None,
    ) -> None:
        """Append a move, and close the mail that offered the task, if that is still open: one transaction."""
        said = Said(task_id=record.task_id, event_id=move.event.event_id)
        answer = None if keyed is None else keyed.answered(said)
        item = self._store.inbox_item(record.create_event_id, agent_id)
        offer = None if item is None or not closes_offer else decode_event(item.raw)
        settled = False
        if item is not None and offer is not None and item.entry.state is not LedgerState.SETTLED:
            eta_at = move.event.payload.eta_at if isinstance(move.event, TaskAcceptEvent) else None
            ack = self._engine.maker.ack(offer, AckType.PROCESSED, agent_id=agent_id, eta_at=eta_at)
            settlement = Settlement(
                event_id=offer.event_id,
                to_agent_id=agent_id,
                outcome=Outcome.PROCESSED,
                at_ms=self._engine.clock.now_ms(),
                events=(move.event, ack),
                deliveries=(move.delivery,),
                keyed=answer,
            )
            settled = await self._engine.outbox.settle(settlement)
        if not settled:
            await self._engine.outbox.append((move.event,), deliveries=(move.delivery,), keyed=answer)

    def _moved(self, task_id: str, event_id: EventId, *, claimed_by: str | None = None) -> Moved:
        """A move that was said, with the task as it is now."""
        record = self.get(task_id)
        claim = None if claimed_by is None else record.claim_of(claimed_by)
        return Moved(
            task_id=record.task_id,
            event_id=event_id,
            state="canceled" if record.is_canceled else record.state.value,
            verdict=None if claim is None else claim.verdict,
        )

    def _moved_before(self, kept: KeptAnswer, *, claimed_by: str | None = None) -> Moved:
        """What a move with the same idempotency key said, with the task as it is now."""
        said = msgspec.json.decode(kept.answer, type=Said)
        return self._moved(said.task_id, said.event_id, claimed_by=claimed_by)

    def _expect_local(self, task_id: str, agent_id: str) -> TaskRecord:
        self._engine.agents.get(agent_id)
        return self.get(task_id)

    def _concerns(self, record: TaskRecord, agent_id: str | None, role: Role | None, *, open_only: bool) -> bool:
        if agent_id is None:
            return True
        is_requester = record.requester_agent_id == agent_id
        is_worker = agent_id in record.to_agents or record.accepted_by_agent_id == agent_id
        if open_only:
            is_requester, is_worker = is_requester and record.is_open, record.is_work_of(agent_id, self._store.node_id)
        return (is_requester and role is not Role.WORKER) or (is_worker and role is not Role.REQUESTER)

    def _title(self, record: TaskRecord, glance: Glance) -> str | None:
        try:
            content, _ = glance.open(self._moves.offer_of(record))
        except Refusal:
            # A list with one task whose offer is gone is still a list.
            return None
        return content.title

    def _step(self, event: Event, at_ms: int) -> TaskStep:
        content, problem = _opened(self._engine.sealer.open, event)
        return TaskStep(
            at_ms=at_ms,
            event_id=event.event_id,
            kind=event.kind,
            by_agent_id=event.source_agent_id,
            by_node_id=event.source_node_id,
            content=content,
            problem=problem,
        )


def _said_of(task: NewTask) -> NewTask:
    """What makes it the same task: a deadline that is counted from now is another one in every call."""
    return replace(task, deadline_at=None)


_SAID: Final = (TaskCreateEvent, TaskAcceptEvent, TaskUpdateEvent, TaskCompleteEvent, TaskFailedEvent)


def _opened(open_content: Callable[[Event], Content], event: Event) -> tuple[Content, str | None]:
    try:
        return open_content(event), None
    except Refusal as refusal:
        return Content(), refusal.message
