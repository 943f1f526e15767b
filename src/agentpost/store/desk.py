"""What the gateway itself says to an event about a task, in the transaction that takes it. Both stores use it."""

from msgspec import Struct

from agentpost.protocol.envelope import Event, TaskAcceptEvent
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.taskbook import TaskRecord, Verdict
from agentpost.store.taskbook import TaskBook
from agentpost.store.values import Desk, Inbound, Outcome

__all__ = ["Ruling", "rule"]

_LOST = "the task went to another claimant"


class Ruling(Struct, frozen=True, kw_only=True):
    """The ACKs to give; the outcome of the rows if they are closed at once; what else to say; what changed."""

    acks: dict[str, Event]
    outcome: Outcome | None = None
    error: str | None = None
    tells: tuple[Event, ...] = ()
    tasks: tuple[TaskId, ...] = ()


def rule(book: TaskBook, inbound: Inbound, desk: Desk, *, at_ms: int) -> Ruling:
    """Fold the event into its task, and say what that means for whoever sent it."""
    event = inbound.event
    before = event.trace.instead_of
    if desk.repeated and before is not None and book.has_heard(before):
        return Ruling(acks=desk.repeated, outcome=Outcome.PROCESSED)
    record = book.hear(event, inbound.raw, at_ms=at_ms)
    if isinstance(record, Refusal):
        return Ruling(acks=desk.refused, outcome=Outcome.FAILED_TERMINAL, error=record.message)
    tasks = (record.task_id,)
    if isinstance(event, TaskAcceptEvent):
        if not _is_won(record, event.event_id):
            return Ruling(acks=desk.refused, outcome=Outcome.PROCESSED, error=_LOST, tasks=tasks)
        return Ruling(acks=inbound.acks, outcome=Outcome.PROCESSED, tells=desk.tells, tasks=tasks)
    return Ruling(acks=inbound.acks, outcome=Outcome.PROCESSED if desk.closes else None, tasks=tasks)


def _is_won(record: TaskRecord, event_id: EventId) -> bool:
    return any(claim.event_id == event_id and claim.verdict is Verdict.WON for claim in record.claims)
