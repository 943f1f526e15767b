"""A task as one gateway knows it: the record, and what each event makes of it (TASK-5, TASK-6).

Pure. A record is a fold over the events that the gateway said and heard, in that order, and nothing else: whoever folds
the same events again gets the same record, byte for byte. Moves are those of the table in `tasks`.

- *said* is what this gateway appends to its own outbox. A move that is not open is refused, and nothing is appended.
- *heard* is what it reads, its own stream included. The gateway of the requester decides about claims there: the first
  one that it reads wins (TASK-6). The gateway of a claimant hears the decision as the ACK of its claim.

A task that was offered to one agent only is that agent's as soon as it says so: there is nobody to decide between. A
task that is offered again starts a new round in the same record; who had it before has it no more.

What ended as a dead letter can be said again, under a new id (RTY-7). For whoever says it that is no second move.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.protocol.envelope import (
    AckEvent,
    Event,
    SignalEvent,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId, TaskId
from agentpost.protocol.payloads import AckType, Kind, Priority
from agentpost.protocol.tasks import TASK, TASK_EVENTS, Task, TaskEvent, TaskState, advance_task
from agentpost.protocol.timestamps import parse_ms

__all__ = [
    "CANCELED_BY",
    "TASK_WITHDRAWN",
    "Claim",
    "TaskRecord",
    "Verdict",
    "cancels",
    "concerns_a_task",
    "heard",
    "said",
    "task_id_of",
]

# The signal of the requester's gateway: the offer that it refers to is somebody else's, or nobody's, now.
TASK_WITHDRAWN: Final = "task_withdrawn"
# The detail of that signal which tells that it is nobody's: its requester has canceled the task.
CANCELED_BY: Final = "canceledByAgentId"

_MOVES: Final = (TaskAcceptEvent, TaskUpdateEvent, TaskCompleteEvent, TaskFailedEvent)


class Verdict(StrEnum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Claim(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One agent's wish to do the task, and what the requester's gateway said to it."""

    agent_id: str
    node_id: str
    event_id: EventId
    at_ms: int
    verdict: Verdict
    eta_at_ms: int | None = None


class TaskRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is known of a task here. Nothing in it is content: that stays sealed in the events.

    `round` counts the offers; `to_agents` and `claims` are those of the latest one. `is_withdrawn`: what was offered
    here, or was being done here, is somebody else's now. `is_canceled`: it is nobody's, because its requester does not
    want it any more.
    """

    task_id: TaskId
    corr_id: CorrId
    round: int
    state: TaskState
    requester_agent_id: str
    requester_node_id: str
    create_event_id: EventId
    to_agents: tuple[str, ...]
    required_capabilities: tuple[str, ...] = ()
    priority: Priority
    response_required: bool
    task_type: str | None = None
    capability_id: str | None = None
    created_at_ms: int
    offered_at_ms: int
    deadline_at_ms: int | None = None
    claims: tuple[Claim, ...] = ()
    accepted_by_agent_id: str | None = None
    accepted_by_node_id: str | None = None
    accepted_at_ms: int | None = None
    eta_at_ms: int | None = None
    status: str | None = None
    progress: int | None = None
    is_withdrawn: bool = False
    is_canceled: bool = False
    updated_at_ms: int
    ended_at_ms: int | None = None
    end_event_id: EventId | None = None
    failure_class: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether any agent of this gateway still waits for it or works on it. `is_open_for` says which agents."""
        return self.state not in TASK.terminal and not self.is_withdrawn and not self.is_canceled

    @property
    def is_sole(self) -> bool:
        """Whether it is offered to one agent only, so that there is nothing to decide about its claim."""
        return len(self.to_agents) == 1

    @property
    def due_at_ms(self) -> int | None:
        """When it should be over: what was promised, or else what was asked for."""
        return self.eta_at_ms if self.eta_at_ms is not None else self.deadline_at_ms

    def is_held_by(self, agent_id: str, node_id: str) -> bool:
        """Whether the agent of that gateway has the task, as far as is known here.

        A stand-in's copy of an agent has the same id at another gateway, and is another worker.
        """
        has_it = (self.accepted_by_agent_id, self.accepted_by_node_id) == (agent_id, node_id)
        return has_it and not self.is_withdrawn and not self.is_canceled

    def is_work_of(self, agent_id: str, node_id: str) -> bool:
        """Whether the agent of that gateway may still claim the task, waits for its verdict, or has it to do."""
        if not self.is_open:
            return False
        if self.accepted_by_agent_id is not None:
            return self.is_held_by(agent_id, node_id)
        claim = self.claim_of(agent_id)
        return agent_id in self.to_agents and (claim is None or claim.verdict is not Verdict.LOST)

    def is_open_for(self, agent_id: str, node_id: str) -> bool:
        """Whether the agent of that gateway waits for the task as its requester, or has to do with it as a worker."""
        return (self.is_open and self.requester_agent_id == agent_id) or self.is_work_of(agent_id, node_id)

    def claim_of(self, agent_id: str) -> Claim | None:
        """The agent's latest claim in this round."""
        return next((claim for claim in reversed(self.claims) if claim.agent_id == agent_id), None)


def concerns_a_task(event: Event) -> bool:
    """Whether this event changes a task: a `task_*`, the answer to a claim, or a withdrawal."""
    if type(event) in TASK_EVENTS:
        return True
    if isinstance(event, AckEvent):
        return event.payload.ref_kind is Kind.TASK_ACCEPT and event.payload.ack_type is not AckType.ACCEPTED
    return isinstance(event, SignalEvent) and event.payload.signal == TASK_WITHDRAWN


def task_id_of(event: Event) -> TaskId | None:
    """The task that an event names. An ACK names only the claim that it answers."""
    if isinstance(event, TaskCreateEvent | TaskAcceptEvent | TaskUpdateEvent | TaskCompleteEvent | TaskFailedEvent):
        return event.payload.task_id
    if isinstance(event, SignalEvent) and event.payload.signal == TASK_WITHDRAWN:
        named = event.payload.details.get("taskId")
        return TaskId(named) if isinstance(named, str) else None
    return None


def cancels(event: Event) -> bool:
    """Whether this event is the end of a task that its requester does not want any more."""
    if not isinstance(event, SignalEvent) or event.payload.signal != TASK_WITHDRAWN:
        return False
    return isinstance(event.payload.details.get(CANCELED_BY), str)


def said(record: TaskRecord | None, event: Event, *, at_ms: int) -> TaskRecord:
    """The task after this gateway has said `event`; a refusal if the move is not open."""
    before = event.trace.instead_of
    if isinstance(event, TaskCreateEvent):
        if record is not None and before is not None:
            _check_free(record, before)
        return _offered(record, event, at_ms)
    record = _expect(record, event)
    if isinstance(event, _MOVES) and before is not None:
        return _said_again(record, event, before, at_ms)
    if isinstance(event, TaskAcceptEvent):
        return _claimed(record, event, at_ms)
    if isinstance(event, _MOVES):
        return _moved(record, event, at_ms)
    if isinstance(event, SignalEvent) and cancels(event):
        return _canceled(record, event, at_ms)
    return record


def heard(record: TaskRecord | None, event: Event, *, at_ms: int, node_id: str) -> TaskRecord:
    """The task after `node_id` has read `event`; a refusal if whoever said it could not say it."""
    if isinstance(event, TaskCreateEvent):
        return _offered(record, event, at_ms)
    record = _expect(record, event)
    if isinstance(event, AckEvent):
        return _answered(record, event, at_ms)
    if isinstance(event, SignalEvent):
        # At the requester's own gateway nothing is withdrawn: the task goes on, with somebody else.
        return record if record.requester_node_id == node_id else _withdrawn(record, event, at_ms)
    if record.requester_node_id != node_id:
        raise _forbidden(record, f"{record.requester_node_id} decides about it, not {node_id}")
    if isinstance(event, TaskAcceptEvent):
        return _decided(record, event, at_ms)
    # What an agent of the requester's own gateway says was folded in when it was said.
    if isinstance(event, _MOVES) and event.source_node_id != node_id:
        return _moved(record, event, at_ms)
    return record


def _expect(record: TaskRecord | None, event: Event) -> TaskRecord:
    if record is None:
        raise Refusal(Code.NOT_FOUND, f"the task of {event.event_id} is not known here", field="taskId")
    return record


def _offered(record: TaskRecord | None, event: TaskCreateEvent, at_ms: int) -> TaskRecord:
    """The task that a task_create starts, or the next round of one that its requester offers again."""
    create = event.payload
    if record is None:
        return TaskRecord(
            task_id=create.task_id,
            corr_id=event.corr_id,
            round=1,
            state=TaskState.CREATED,
            requester_agent_id=create.requester_agent_id,
            requester_node_id=event.source_node_id,
            create_event_id=event.event_id,
            to_agents=create.to_agents,
            required_capabilities=create.required_capabilities,
            priority=create.priority,
            response_required=create.response_required,
            task_type=create.task_type,
            capability_id=create.capability_id,
            created_at_ms=parse_ms(event.created_at, field="createdAt"),
            offered_at_ms=at_ms,
            deadline_at_ms=_time_ms(create.required_by or create.deadline_at),
            updated_at_ms=at_ms,
        )
    if record.create_event_id == event.event_id:
        return record
    if (record.requester_node_id, record.requester_agent_id) != (event.source_node_id, create.requester_agent_id):
        raise Refusal(Code.CONFLICT, f"task {record.task_id} is another requester's", field="payload.taskId")
    if record.state in TASK.terminal or record.is_canceled:
        raise _forbidden(record, "it is over, and cannot be offered again")
    return replace(
        record,
        round=record.round + 1,
        state=TaskState.CREATED,
        create_event_id=event.event_id,
        to_agents=create.to_agents,
        offered_at_ms=at_ms,
        claims=(),
        accepted_by_agent_id=None,
        accepted_by_node_id=None,
        accepted_at_ms=None,
        eta_at_ms=None,
        status=None,
        progress=None,
        is_withdrawn=False,
        updated_at_ms=at_ms,
    )


def _claimed(record: TaskRecord, event: TaskAcceptEvent, at_ms: int) -> TaskRecord:
    """A claim of an agent of this gateway."""
    agent_id = event.source_agent_id
    _check_offered(record, agent_id)
    claim = record.claim_of(agent_id)
    if claim is not None and claim.verdict is Verdict.PENDING:
        raise _forbidden(record, f"the claim of {agent_id} is not decided yet")
    if claim is not None and claim.verdict is Verdict.LOST:
        raise _forbidden(record, f"{agent_id} has lost its claim")
    # The table says whether it can be accepted at all; a claim that waits for its verdict accepts nothing yet.
    accepted = _moved(record, event, at_ms)
    verdict = Verdict.WON if record.is_sole else Verdict.PENDING
    claims = (*record.claims, _claim(event, at_ms, verdict))
    return replace(accepted if record.is_sole else replace(record, updated_at_ms=at_ms), claims=claims)


def _said_again(record: TaskRecord, event: TaskEvent, before: EventId, at_ms: int) -> TaskRecord:
    """A move that was made here, and did not arrive as `before`. A refusal if it does not hold any more."""
    _check_kept(record)
    match event:
        case TaskAcceptEvent(source_agent_id=agent_id):
            claim = next((each for each in record.claims if each.event_id == before), None)
            if claim is None or claim.verdict is Verdict.LOST:
                raise _forbidden(record, f"{agent_id} does not have it by that claim")
            # The answer will name the event that arrived.
            claims = tuple(replace(each, event_id=event.event_id) if each is claim else each for each in record.claims)
            return replace(record, claims=claims)
        case TaskUpdateEvent(source_agent_id=agent_id):
            after = _moved(record, event, at_ms)
            if (after.status, after.progress, after.eta_at_ms) != (record.status, record.progress, record.eta_at_ms):
                raise _forbidden(record, f"{agent_id} has said more since")
            return record
        case TaskCompleteEvent() | TaskFailedEvent():
            if record.end_event_id != before:
                raise _forbidden(record, "that is not how it ended")
            return replace(record, end_event_id=event.event_id)


def _decided(record: TaskRecord, event: TaskAcceptEvent, at_ms: int) -> TaskRecord:
    """TASK-6: the requester's gateway reads a claim. The first one in a round wins."""
    agent_id = event.source_agent_id
    known = next((claim for claim in record.claims if claim.event_id == event.event_id), None)
    if known is not None and known.verdict is not Verdict.PENDING:
        return record
    _check_offered(record, agent_id)
    has_it = (agent_id, event.source_node_id) == (record.accepted_by_agent_id, record.accepted_by_node_id)
    try:
        after = _kept(record, event, at_ms) if has_it else _moved(record, event, at_ms)
        verdict = Verdict.WON
    except Refusal:
        after = replace(record, updated_at_ms=at_ms)
        verdict = Verdict.LOST
    others = tuple(claim for claim in record.claims if claim.event_id != event.event_id)
    return replace(after, claims=(*others, _claim(event, at_ms, verdict)))


def _kept(record: TaskRecord, event: TaskAcceptEvent, at_ms: int) -> TaskRecord:
    """Who has the task claims it: the answer did not arrive, or an offer that he had not read yet came in between."""
    _check_kept(record)
    if event.trace.instead_of is not None:
        return record
    if record.state in TASK.terminal:
        raise _forbidden(record, "it is over")
    return replace(record, eta_at_ms=_promised_ms(event, at_ms), updated_at_ms=at_ms)


def _answered(record: TaskRecord, event: AckEvent, at_ms: int) -> TaskRecord:
    """The requester's gateway has decided about a claim of this one."""
    if event.source_node_id != record.requester_node_id:
        raise _forbidden(record, f"{event.source_node_id} does not decide about it")
    claim = next((claim for claim in record.claims if claim.event_id == event.payload.ref_event_id), None)
    is_won = event.payload.ack_type is AckType.PROCESSED
    if claim is None or claim.verdict is Verdict.LOST or (is_won and claim.verdict is Verdict.WON):
        return record
    claims = tuple(
        replace(each, verdict=Verdict.WON if is_won else Verdict.LOST) if each is claim else each
        for each in record.claims
    )
    if is_won:
        return replace(
            record,
            state=TaskState.ACCEPTED,
            claims=claims,
            accepted_by_agent_id=claim.agent_id,
            accepted_by_node_id=claim.node_id,
            accepted_at_ms=at_ms,
            eta_at_ms=claim.eta_at_ms,
            updated_at_ms=at_ms,
        )
    # Whoever was sure of it, as its only target, hears here that it was given to somebody else meanwhile.
    is_withdrawn = record.accepted_by_agent_id == claim.agent_id and record.state not in TASK.terminal
    return replace(record, claims=claims, is_withdrawn=record.is_withdrawn or is_withdrawn, updated_at_ms=at_ms)


def _withdrawn(record: TaskRecord, event: SignalEvent, at_ms: int) -> TaskRecord:
    if event.source_node_id != record.requester_node_id:
        raise _forbidden(record, f"{event.source_node_id} cannot withdraw it")
    # It withdraws one offer. Another one may have come since.
    if event.payload.ref_event_id != record.create_event_id or record.state in TASK.terminal:
        return record
    return replace(record, is_withdrawn=True, is_canceled=cancels(event), updated_at_ms=at_ms)


def _canceled(record: TaskRecord, event: SignalEvent, at_ms: int) -> TaskRecord:
    """The requester, at its own gateway, does not want it any more. What anybody says of it later is refused."""
    if record.state in TASK.terminal or record.is_canceled or event.payload.ref_event_id != record.create_event_id:
        raise _forbidden(record, "it is over, and cannot be canceled")
    return replace(record, is_canceled=True, updated_at_ms=at_ms, ended_at_ms=at_ms, end_event_id=event.event_id)


def _moved(record: TaskRecord, event: TaskEvent, at_ms: int) -> TaskRecord:
    """The task after a move of the table, by the agent that has it."""
    _check_kept(record)
    if record.accepted_by_node_id not in (None, event.source_node_id):
        by = f"{record.accepted_by_agent_id} of {record.accepted_by_node_id}"
        raise _forbidden(record, f"{by} has it, {event.source_agent_id} of {event.source_node_id} cannot move it")
    task = advance_task(
        Task(
            task_id=record.task_id,
            state=record.state,
            requester_agent_id=record.requester_agent_id,
            accepted_by_agent_id=record.accepted_by_agent_id,
        ),
        event,
    )
    after = replace(record, state=task.state, updated_at_ms=at_ms)
    match event:
        case TaskAcceptEvent():
            return replace(
                after,
                accepted_by_agent_id=event.source_agent_id,
                accepted_by_node_id=event.source_node_id,
                accepted_at_ms=at_ms,
                eta_at_ms=_promised_ms(event, at_ms),
            )
        case TaskUpdateEvent(payload=update):
            return replace(
                after,
                status=update.status,
                progress=record.progress if update.progress is None else update.progress,
                eta_at_ms=record.eta_at_ms if update.revised_eta_at is None else _time_ms(update.revised_eta_at),
            )
        case TaskCompleteEvent(payload=complete):
            at = _time_ms(complete.completed_at)
            return replace(after, progress=100, ended_at_ms=at, end_event_id=event.event_id)
        case TaskFailedEvent(payload=failed):
            at = _time_ms(failed.failed_at)
            return replace(after, ended_at_ms=at, end_event_id=event.event_id, failure_class=failed.failure_class)


def _claim(event: TaskAcceptEvent, at_ms: int, verdict: Verdict) -> Claim:
    return Claim(
        agent_id=event.source_agent_id,
        node_id=event.source_node_id,
        event_id=event.event_id,
        at_ms=at_ms,
        verdict=verdict,
        eta_at_ms=_promised_ms(event, at_ms),
    )


def _promised_ms(event: TaskAcceptEvent, at_ms: int) -> int | None:
    accept = event.payload
    if accept.eta_at is not None:
        return _time_ms(accept.eta_at)
    return None if accept.eta_seconds is None else at_ms + accept.eta_seconds * 1000


def _time_ms(at: str | None) -> int | None:
    return None if at is None else parse_ms(at)


def _check_kept(record: TaskRecord) -> None:
    if record.is_canceled:
        raise _forbidden(record, f"{record.requester_agent_id} has canceled it")
    if record.is_withdrawn:
        raise _forbidden(record, "it was given to somebody else")


def _check_free(record: TaskRecord, before: EventId) -> None:
    """The offer `before` goes out again: nobody must lose the task by that."""
    if record.create_event_id != before:
        raise _forbidden(record, "it was offered again since")
    if record.accepted_by_agent_id is not None:
        raise _forbidden(record, f"it is {record.state.value}, by {record.accepted_by_agent_id}")


def _check_offered(record: TaskRecord, agent_id: str) -> None:
    if agent_id not in record.to_agents:
        raise _forbidden(record, f"it was not offered to {agent_id}")


def _forbidden(record: TaskRecord, why: str) -> Refusal:
    return Refusal(Code.INVALID_TRANSITION, f"task {record.task_id}: {why}", corr_id=record.corr_id)
