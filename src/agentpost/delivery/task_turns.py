"""Tasks in an agent's turn: claimed before the agent is engaged, ended by what the agent answers.

- A runtime that is engaged with a task gets it only after the acceptance with an ETA is durable (TASK-2), and, where
  others were offered the same task, after the claim was won (TASK-6).
- What the agent answers completes the task. No answer leaves it as it is: the agent has it, and will say more with
  `task update` and `task complete`. A failure, or the last attempt, fails the task.
"""

from enum import StrEnum
from typing import Final

from agentpost.delivery.ports import Content, Result, ResultKind, RoomView
from agentpost.delivery.task_moves import Move, TaskMoves
from agentpost.protocol.envelope import TaskCreateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.taskbook import TaskRecord, Verdict, said
from agentpost.store.interface import Store

__all__ = ["Standing", "TaskTurns"]

DEFAULT_ETA_SECONDS: Final = 900
_MOST_SUMMARY: Final = 2000
# An answer that breaks the contract, or that cannot travel at all.
_UNFIT: Final = frozenset({Code.CONTRACT_MISMATCH, Code.INVALID_FIELD, Code.TOO_DEEP, Code.TOO_LARGE})


class Standing(StrEnum):
    """Where an agent stands with a task that it was offered."""

    OPEN = "open"  # it may claim it
    WAITS = "waits"  # its claim is not decided
    OURS = "ours"  # it has it
    GONE = "gone"  # it is over, or somebody else's


class TaskTurns:
    def __init__(self, *, store: Store, room: RoomView, moves: TaskMoves) -> None:
        self._store = store
        self._room = room
        self._moves = moves

    def standing(self, event: TaskCreateEvent, agent_id: str) -> Standing:
        record = self._record(event)
        if record is None or not record.is_open or record.create_event_id != event.event_id:
            return Standing.GONE
        if record.accepted_by_agent_id is not None:
            return Standing.OURS if record.is_held_by(agent_id, self._store.node_id) else Standing.GONE
        claim = record.claim_of(agent_id)
        if claim is None:
            return Standing.OPEN
        if claim.verdict is not Verdict.PENDING:
            return Standing.GONE
        # A claim that its requester never gets will never be decided.
        asked = self._store.deliveries_of(claim.event_id)
        is_lost = bool(asked) and all(each.state is DeliveryState.DEAD_LETTER for each in asked)
        return Standing.GONE if is_lost else Standing.WAITS

    async def claim(self, event: TaskCreateEvent, agent_id: str) -> Move:
        """The acceptance in the name of an agent that is engaged by its runtime, with the ETA of its capability."""
        record = self._expect(event)
        return await self._moves.accept(record, agent_id, eta_seconds=self._eta_seconds(record))

    async def ending(self, event: TaskCreateEvent, agent_id: str, result: Result) -> tuple[Move, ...]:
        """What a finished turn says of the task; nothing, if the agent said nothing or the task is over."""
        record = self._record(event)
        if record is None or not record.is_open or record.create_event_id != event.event_id:
            return ()
        if record.accepted_by_agent_id is not None and not record.is_held_by(agent_id, self._store.node_id):
            return ()
        if result.kind is ResultKind.PROCESSED and result.reply is None:
            return ()
        claims: tuple[Move, ...] = ()
        if record.accepted_by_agent_id is None:
            # An agent that fetches its mail may answer before it has claimed the task.
            if not record.is_sole and result.kind is not ResultKind.PROCESSED:
                return ()
            if not record.is_sole:
                raise Refusal(
                    Code.INVALID_TRANSITION,
                    f"task {record.task_id} was offered to others too, and is not claimed by {agent_id}",
                    corr_id=record.corr_id,
                    hint="Claim it first, with an ETA: `agentpost task claim`.",
                )
            claim = await self.claim(event, agent_id)
            claims, record = (claim,), said(record, claim.event, at_ms=claim.delivery.emitted_at_ms)
        if result.kind is ResultKind.PROCESSED:
            return (*claims, await self._success(record, agent_id, result.reply or Content()))
        failure_class = "max_attempts" if result.kind is ResultKind.RETRY else result.failure_class or "failed"
        return (*claims, await self._failure(record, agent_id, failure_class, result.error or failure_class))

    async def _success(self, record: TaskRecord, agent_id: str, reply: Content) -> Move:
        summary = reply.result_summary or reply.body or reply.subject or "done"
        try:
            return await self._moves.complete(record, agent_id, result_summary=summary, output=reply.output)
        except Refusal as refusal:
            if refusal.code not in _UNFIT:
                raise
            # The agent has had its turn, and cannot be asked again for another answer.
            return await self._failure(record, agent_id, refusal.code.value, refusal.message)

    async def _failure(self, record: TaskRecord, agent_id: str, failure_class: str, error: str) -> Move:
        return await self._moves.fail(
            record, agent_id, failure_class=failure_class, error_summary=error[:_MOST_SUMMARY]
        )

    def _eta_seconds(self, record: TaskRecord) -> int:
        catalog = self._room.snapshot().catalog
        known = [catalog[each] for each in record.required_capabilities if each in catalog]
        etas = [int(each.default_eta_seconds) for each in known if each.default_eta_seconds]
        return max(etas, default=DEFAULT_ETA_SECONDS)

    def _record(self, event: TaskCreateEvent) -> TaskRecord | None:
        return self._store.task(event.payload.task_id)

    def _expect(self, event: TaskCreateEvent) -> TaskRecord:
        record = self._record(event)
        if record is None:
            raise Refusal(Code.NOT_FOUND, f"task {event.payload.task_id} is not known here", field="taskId")
        return record
