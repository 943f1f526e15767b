"""The events with which an agent moves a task, sealed for the requester's gateway and with a delivery (TASK-2..4).

Appends nothing by itself: whoever calls puts the event into the transaction that belongs to it. What is not open to the
agent is refused here in words; the store refuses it once more, in the transaction.
"""

from typing import Any, Final, Protocol

from msgspec import Struct

from agentpost.delivery.making import EventMaker
from agentpost.delivery.ports import Content
from agentpost.delivery.publish import Publisher
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import (
    Event,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import TaskAccept, TaskComplete, TaskFailed, TaskUpdate
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.interface import Store
from agentpost.world import Clock

__all__ = ["Contracts", "Move", "NoContracts", "TaskMoves"]

_LONGEST_ETA_SECONDS: Final = 31_536_000


class Contracts(Protocol):
    """The contracts of capabilities (CAP-5), as far as tasks need them."""

    async def check_input(self, capability_ids: tuple[str, ...], value: Any) -> None:
        """Refuse what a task of these capabilities cannot begin with."""
        ...

    def check_eta(self, record: TaskRecord, eta_seconds: float) -> None:
        """Refuse an ETA that is further off than the executor of its capability promises (CAP-7)."""
        ...

    async def check_output(self, record: TaskRecord, value: Any) -> None:
        """Refuse what a task of its capability cannot end with. A mismatch is a review trigger (CAP-6)."""
        ...

    async def look_at_failure(self, record: TaskRecord, failure_class: str, error_summary: str) -> None:
        """See whether the executor has declared such a failure (CAP-7). Refuses nothing: the end is always told."""
        ...


class NoContracts:
    """For a gateway without capabilities: everything fits."""

    async def check_input(self, capability_ids: tuple[str, ...], value: Any) -> None:
        pass

    def check_eta(self, record: TaskRecord, eta_seconds: float) -> None:
        pass

    async def check_output(self, record: TaskRecord, value: Any) -> None:
        pass

    async def look_at_failure(self, record: TaskRecord, failure_class: str, error_summary: str) -> None:
        pass


class Move(Struct, frozen=True, kw_only=True):
    """An event that moves a task, ready to be appended, and its delivery to the requester."""

    event: Event
    delivery: Delivery


class TaskMoves:
    def __init__(self, *, store: Store, publisher: Publisher, maker: EventMaker, clock: Clock) -> None:
        self._store = store
        self._publisher = publisher
        self._maker = maker
        self._clock = clock
        self.contracts: Contracts = NoContracts()

    async def accept(
        self,
        record: TaskRecord,
        agent_id: str,
        *,
        eta_seconds: int | None = None,
        eta_at: str | None = None,
        plan_summary: str | None = None,
    ) -> Move:
        """A claim (TASK-2), with when it will be done."""
        if (eta_seconds is None) == (eta_at is None):
            raise Refusal(Code.INVALID_FIELD, "say either etaSeconds or etaAt", field="etaSeconds")
        now_ms = self._clock.now_ms()
        if eta_at is None:
            eta_at = self.eta_at(eta_seconds or 0, field="etaSeconds")
        elif parse_ms(eta_at, field="etaAt") <= now_ms:
            raise Refusal(Code.INVALID_FIELD, f"etaAt {eta_at} has passed already", field="etaAt")
        self.contracts.check_eta(record, (parse_ms(eta_at, field="etaAt") - now_ms) / 1000)
        event = TaskAcceptEvent(
            **self._head(record, agent_id),
            payload=TaskAccept(task_id=record.task_id, accepted_by_agent_id=agent_id, eta_at=eta_at),
        )
        return await self._move(event, Content(plan_summary=plan_summary))

    async def update(
        self,
        record: TaskRecord,
        agent_id: str,
        *,
        status: str = "in_progress",
        progress: int | None = None,
        revised_eta_at: str | None = None,
        note: str | None = None,
        notify: bool = False,
    ) -> Move:
        """A word on how it goes (TASK-3). With `notify` the requester's agent is told, too."""
        if progress is not None and not 0 <= progress <= 100:
            raise Refusal(Code.INVALID_FIELD, "progress must be from 0 to 100", field="progress")
        if revised_eta_at is not None:
            parse_ms(revised_eta_at, field="revisedEtaAt")
        self._check_worker(record, agent_id)
        event = TaskUpdateEvent(
            **self._head(record, agent_id),
            payload=TaskUpdate(
                task_id=record.task_id,
                updated_by_agent_id=agent_id,
                status=status,
                progress=progress,
                revised_eta_at=revised_eta_at,
                notify=notify,
            ),
        )
        return await self._move(event, Content(note=note))

    async def complete(
        self,
        record: TaskRecord,
        agent_id: str,
        *,
        result_summary: str,
        output: Any = None,
        result_ref: str | None = None,
        installed_version: str | None = None,
        installed_at: str | None = None,
    ) -> Move:
        """The end that was wanted (TASK-4). An output that breaks the contract is refused (CAP-5)."""
        self._check_worker(record, agent_id)
        await self.contracts.check_output(record, output)
        event = TaskCompleteEvent(
            **self._head(record, agent_id),
            payload=TaskComplete(
                task_id=record.task_id,
                completed_by_agent_id=agent_id,
                completed_at=format_ms(self._clock.now_ms()),
                result_ref=result_ref,
                installed_version=installed_version,
                installed_at=installed_at,
            ),
        )
        return await self._move(event, Content(result_summary=result_summary, output=output))

    async def fail(self, record: TaskRecord, agent_id: str, *, failure_class: str, error_summary: str) -> Move:
        """The other end (TASK-4): a word that programs sort by, and a sentence for people."""
        self._check_worker(record, agent_id)
        await self.contracts.look_at_failure(record, failure_class, error_summary)
        event = TaskFailedEvent(
            **self._head(record, agent_id),
            payload=TaskFailed(
                task_id=record.task_id,
                failed_by_agent_id=agent_id,
                failed_at=format_ms(self._clock.now_ms()),
                failure_class=failure_class,
            ),
        )
        return await self._move(event, Content(error_summary=error_summary))

    def eta_at(self, seconds: int, *, field: str) -> str:
        """The time that is so many seconds from now."""
        if not 1 <= seconds <= _LONGEST_ETA_SECONDS:
            raise Refusal(Code.INVALID_FIELD, f"{field} must be from 1 to {_LONGEST_ETA_SECONDS}, a year", field=field)
        return format_ms(self._clock.now_ms() + seconds * 1000)

    def offer_of(self, record: TaskRecord) -> TaskCreateEvent:
        """The task_create that the present round began with."""
        for entry in reversed(self._store.task_events(record.task_id)):
            if entry.event_id == record.create_event_id:
                event = decode_event(entry.raw)
                if isinstance(event, TaskCreateEvent):
                    return event
        raise Refusal(Code.STORAGE_CORRUPT, f"the beginning of task {record.task_id} is missing")

    def _head(self, record: TaskRecord, agent_id: str) -> dict[str, Any]:
        return self._maker.head_of_answer(
            self.offer_of(record), agent_id=agent_id, to_agent_id=record.requester_agent_id
        )

    async def _move(self, event: Any, content: Content) -> Move:
        sealed, delivery = await self._publisher.make_answer(event, content=content)
        return Move(event=sealed, delivery=delivery)

    def _check_worker(self, record: TaskRecord, agent_id: str) -> None:
        """TASK-5: only who has accepted a task moves it."""
        if record.is_held_by(agent_id, self._maker.node_id):
            return
        claim = record.claim_of(agent_id)
        if record.is_canceled:
            why, hint = (
                f"{record.requester_agent_id} has canceled it",
                "Stop working on it; there is nothing to report.",
            )
        elif record.is_withdrawn:
            why, hint = "it was given to somebody else", "Stop working on it; there is nothing to report."
        elif record.accepted_by_agent_id is not None:
            why, hint = f"it was accepted by {record.accepted_by_agent_id}", "Only that agent moves it now."
        elif claim is not None:
            why, hint = f"the claim of {agent_id} is {claim.verdict}", "Work begins when the claim is won."
        else:
            why, hint = f"{agent_id} has not accepted it", "Claim it first, with an ETA: `agentpost task claim`."
        raise Refusal(Code.INVALID_TRANSITION, f"task {record.task_id}: {why}", corr_id=record.corr_id, hint=hint)
