"""Offering a task to agents, and offering it again (TASK-1, TASK-6). Who may do it is decided as for a message.

A task has one worker. Several targets are an offer: the first of them that claims it has it. Work that each of several
agents has to do is one task for each of them (`each`), all of them in one transaction and one conversation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.idempotency import Keyed
from agentpost.delivery.making import EventMaker
from agentpost.delivery.placing import Placement
from agentpost.delivery.ports import Content
from agentpost.delivery.publish import Publisher, Receipt
from agentpost.delivery.sealing import Sealer
from agentpost.delivery.task_desk import cancellation, withdrawals
from agentpost.delivery.task_moves import TaskMoves
from agentpost.protocol.delivery import Delivery, has_failed
from agentpost.protocol.envelope import Event, TaskCreateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId, TaskId, corr_id_of
from agentpost.protocol.payloads import Priority, SkillRef, TaskCreate
from agentpost.protocol.routing import RouteRequest
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.tasks import TaskState
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.interface import Store
from agentpost.store.values import KeptAnswer, Note
from agentpost.world import Clock, IdMaker

__all__ = ["NewTask", "NotesOf", "Offered", "Offering", "Said", "offered_before", "why_offer_ended"]

# Nothing is known any more of what became of the offer: it ended so long ago, or its dead letters were purged.
_FORGOTTEN: Final = "forgotten"

NotesOf = Callable[[Mapping[str, TaskId]], Sequence[Note]]


class NewTask(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A task that a local agent wants done: by agents that it names, or by whoever has the capabilities.

    `input` is what the work begins with; the contract of the capability says what it has to look like.
    """

    requester_agent_id: str
    title: str
    description: str = ""
    to_agents: tuple[str, ...] = ()
    required_capabilities: tuple[str, ...] = ()
    input: Any = None
    priority: Priority = Priority.NORMAL
    response_required: bool = True
    deadline_at: str | None = None
    task_type: str | None = None
    capability_id: str | None = None
    delegation_skill_ref: SkillRef | None = None
    required_by: str | None = None
    corr_id: CorrId | None = None


class Offered(Struct, frozen=True, kw_only=True, rename="camel"):
    """A task is durable here, and on its way to the agents that may claim it."""

    task_id: TaskId
    receipt: Receipt


class Said(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is kept of a move that was said with an idempotency key."""

    task_id: TaskId
    event_id: EventId


class Offering:
    def __init__(
        self,
        *,
        store: Store,
        publisher: Publisher,
        sealer: Sealer,
        moves: TaskMoves,
        maker: EventMaker,
        ids: IdMaker,
        clock: Clock,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._sealer = sealer
        self._moves = moves
        self._maker = maker
        self._ids = ids
        self._clock = clock

    async def create(self, task: NewTask, *, notes: NotesOf | None = None, keyed: Keyed | None = None) -> Offered:
        """Offer a task. Returns once it would survive a power loss.

        `notes` gets the task by agent, and gives what is kept of it in the same transaction.
        """
        placement, content = await self._placed(task)
        (offered,) = await self._post(task, [placement], content, notes, keyed)
        return offered

    async def create_each(
        self, task: NewTask, *, notes: NotesOf | None = None, keyed: Keyed | None = None
    ) -> list[Offered]:
        """The same task for each of its targets, which all have to do it: one for each, in one transaction.

        `notes` gets the tasks by agent, and gives what is kept of them in the same transaction.
        """
        everyone, content = await self._placed(task)
        return await self._post(
            task,
            [Placement.of((each,), rejected=(), room=everyone.room) for each in everyone.recipients],
            content,
            notes,
            keyed,
        )

    async def offer_again(self, record: TaskRecord, to_agents: Sequence[str]) -> Receipt:
        """Offer a task of this gateway anew, to other agents: the next round. Who had it before is told.

        The words are the same: they are opened here, where they were sealed, and sealed for the new gateways.
        """
        before = self._moves.offer_of(record)
        if before.source_node_id != self._maker.node_id:
            raise Refusal(
                Code.INVALID_TRANSITION,
                f"task {record.task_id} was created at {record.requester_node_id}",
                hint="Only the gateway of its requester offers it again.",
            )
        content = self._sealer.open(before)
        wanted = RouteRequest(source_agent_id=record.requester_agent_id, to_agents=tuple(to_agents))
        placement, now_ms = self._publisher.place(wanted)
        # TASK-6: what nobody has is offered to others only if nobody has it at the moment of writing.
        instead_of = record.create_event_id if record.accepted_by_agent_id is None else None
        event = replace(
            before,
            event_id=self._ids.make(EventId),
            seq=0,
            to_nodes=placement.to_nodes,
            created_at=format_ms(now_ms),
            trace=replace(placement.trace, instead_of=instead_of),
            payload_ref=None,
            payload=replace(before.payload, to_agents=placement.to_agents, sealed=None),
        )
        had_it = self._who_had(record) - set(placement.to_nodes)
        told = withdrawals(self._maker, record, had_it, taken_by=None)
        (receipt,) = await self._publisher.post([(event, placement, content)], also=told)
        return receipt

    async def cancel(self, record: TaskRecord, *, keyed: Keyed | None = None) -> EventId:
        """Take back a task of this gateway, in the name of its requester: nobody can say anything of it any more.

        An agent that is busy with it may not hear of that before it has done the work; the result is refused then.
        """
        if record.requester_node_id != self._maker.node_id:
            raise Refusal(
                Code.INVALID_TRANSITION,
                f"task {record.task_id} was created at {record.requester_node_id}",
                hint="Only the gateway of its requester cancels it.",
            )
        told = cancellation(self._maker, record, self._who_had(record))
        answer = None if keyed is None else keyed.answered(Said(task_id=record.task_id, event_id=told.event_id))
        await self._publisher.publish(told, content=Content(), keyed=answer)
        return told.event_id

    def why_ended(self, record: TaskRecord) -> str | None:
        """Why nobody is offered the task any more, as far as is known here, where its requester is."""
        if record.requester_node_id != self._maker.node_id:
            return None
        return why_offer_ended(record, self._store.deliveries_of(record.create_event_id))

    def _who_had(self, record: TaskRecord) -> set[str | None]:
        """The gateways that know of the present round."""
        return {
            record.accepted_by_node_id,
            *(each.to_node_id for each in self._store.deliveries_of(record.create_event_id)),
        }

    async def _placed(self, task: NewTask) -> tuple[Placement, Content]:
        """Who gets it and what it says; everything that can be wrong with a task is refused here."""
        if not task.title.strip():
            raise Refusal(Code.INVALID_FIELD, "title must say what is to be done", field="title")
        for name, at in (("deadlineAt", task.deadline_at), ("requiredBy", task.required_by)):
            if at is not None and parse_ms(at, field=name) <= self._clock.now_ms():
                raise Refusal(Code.INVALID_FIELD, f"{name} {at} has passed already", field=name)
        # Before it is placed: the check takes time, and the mesh may change meanwhile.
        await self._moves.contracts.check_input(task.required_capabilities, task.input)
        placement, _ = self._publisher.place(
            RouteRequest(
                source_agent_id=task.requester_agent_id,
                to_agents=task.to_agents,
                required_capabilities=task.required_capabilities,
            )
        )
        return placement, Content(title=task.title, description=task.description, context=task.input)

    async def _post(
        self,
        task: NewTask,
        placements: Sequence[Placement],
        content: Content,
        notes: NotesOf | None = None,
        keyed: Keyed | None = None,
    ) -> list[Offered]:
        events = [self._event(task, placement) for placement in placements]
        # Tasks for several agents that belong together are one conversation.
        corr_id = task.corr_id or corr_id_of(events[0].event_id)
        events = [replace(event, corr_id=corr_id) for event in events]
        placed: list[tuple[Event, Placement, Content]] = [
            (event, placement, content) for event, placement in zip(events, placements, strict=True)
        ]
        by_agent = {agent_id: event.payload.task_id for event in events for agent_id in event.payload.to_agents}

        def offered(receipts: Sequence[Receipt]) -> list[Offered]:
            return [
                Offered(task_id=event.payload.task_id, receipt=receipt)
                for event, receipt in zip(events, receipts, strict=True)
            ]

        receipts = await self._publisher.post(
            placed,
            notes=() if notes is None else notes(by_agent),
            keyed=None if keyed is None else lambda receipts: keyed.answered(offered(receipts)),
        )
        return offered(receipts)

    def _event(self, task: NewTask, placement: Placement) -> TaskCreateEvent:
        named = task.required_capabilities
        return TaskCreateEvent(
            event_id=self._ids.make(EventId),
            source_node_id=self._maker.node_id,
            source_agent_id=task.requester_agent_id,
            to_nodes=placement.to_nodes,
            created_at=format_ms(self._clock.now_ms()),
            trace=placement.trace,
            payload=TaskCreate(
                task_id=self._ids.make(TaskId),
                to_agents=placement.to_agents,
                required_capabilities=named,
                priority=task.priority,
                requester_agent_id=task.requester_agent_id,
                response_required=task.response_required,
                deadline_at=task.deadline_at,
                task_type=task.task_type,
                capability_id=task.capability_id or (named[0] if len(named) == 1 else None),
                delegation_skill_ref=task.delegation_skill_ref or _skill_of(named, placement),
                required_by=task.required_by,
            ),
        )


def offered_before(kept: KeptAnswer) -> list[Offered]:
    """The tasks that a call with the same idempotency key created."""
    found = msgspec.json.decode(kept.answer, type=list[Offered])
    return [replace(each, receipt=replace(each.receipt, seq=kept.seq + at)) for at, each in enumerate(found)]


def why_offer_ended(record: TaskRecord, offers: Sequence[Delivery]) -> str | None:
    """Why a task waits for nobody: all deliveries of its offer have failed. None while somebody may still take it.

    It is no state of the task, and not its end: it can be offered again, and an agent that got it after all claim it.
    """
    if record.state is not TaskState.CREATED or not record.is_open or not all(map(has_failed, offers)):
        return None
    return ", ".join(sorted({each.reason or each.state.value for each in offers})) or _FORGOTTEN


def _skill_of(capability_ids: Sequence[str], placement: Placement) -> SkillRef | None:
    """The delegation skill of the capability that is asked for, as the catalog has it: reviews go by its version."""
    known = None if len(capability_ids) != 1 else placement.room.catalog.get(capability_ids[0])
    ref = None if known is None else known.delegation_skill_ref
    return None if ref is None else SkillRef(name=ref.name, version=ref.version)
