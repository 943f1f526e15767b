"""The parts of the client for code that waits: its tasks and its mailbox, without `await`."""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from agentpost.edges.sdk.tasks import TaskCalls
from agentpost.mailbox.interface import MAX_PAGE, MailboxProtocol
from agentpost.protocol.mailbox import DeadLetterEntry, EnqueueAck, MailboxMessage, MessageSummary
from agentpost.protocol.payloads import Priority
from agentpost.work.offering import Offered
from agentpost.work.tasks import Moved, Role, TaskLine, TaskView

__all__ = ["SyncMailbox", "SyncTaskCalls", "Waits"]

T = TypeVar("T")


class Waits(Protocol):
    """Runs something in the loop of the client, and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class SyncTaskCalls:
    """As `TaskCalls`; see there."""

    def __init__(self, calls: TaskCalls, wait: Waits) -> None:
        self._calls = calls
        self._wait = wait

    def create(
        self,
        title: str,
        *,
        to: str | Sequence[str] = (),
        capabilities: str | Sequence[str] = (),
        description: str = "",
        input: Any = None,  # noqa: A002 - the word that the contract of a capability uses
        priority: Priority = Priority.NORMAL,
        deadline_at: str | None = None,
        task_type: str | None = None,
        idempotency_key: str | None = None,
    ) -> Offered:
        return self._wait(
            self._calls.create(
                title,
                to=to,
                capabilities=capabilities,
                description=description,
                input=input,
                priority=priority,
                deadline_at=deadline_at,
                task_type=task_type,
                idempotency_key=idempotency_key,
            )
        )

    def list(self, *, role: Role | None = None, only_open: bool = False, limit: int = 50) -> list[TaskLine]:
        return self._wait(self._calls.list(role=role, only_open=only_open, limit=limit))

    def show(self, task_id: str) -> TaskView:
        return self._wait(self._calls.show(task_id))

    def ended(self, task_id: str, *, timeout_seconds: float) -> TaskView:
        return self._wait(self._calls.ended(task_id, timeout_seconds=timeout_seconds))

    def claim(
        self,
        task_id: str,
        *,
        eta_seconds: int,
        plan_summary: str | None = None,
        idempotency_key: str | None = None,
    ) -> Moved:
        return self._wait(
            self._calls.claim(
                task_id, eta_seconds=eta_seconds, plan_summary=plan_summary, idempotency_key=idempotency_key
            )
        )

    def update(
        self,
        task_id: str,
        *,
        progress: int | None = None,
        note: str | None = None,
        revised_eta_seconds: int | None = None,
        notify: bool = False,
        idempotency_key: str | None = None,
    ) -> Moved:
        return self._wait(
            self._calls.update(
                task_id,
                progress=progress,
                note=note,
                revised_eta_seconds=revised_eta_seconds,
                notify=notify,
                idempotency_key=idempotency_key,
            )
        )

    def complete(
        self,
        task_id: str,
        result_summary: str,
        *,
        output: Any = None,
        result_ref: str | None = None,
        idempotency_key: str | None = None,
    ) -> Moved:
        return self._wait(
            self._calls.complete(
                task_id, result_summary, output=output, result_ref=result_ref, idempotency_key=idempotency_key
            )
        )

    def fail(
        self,
        task_id: str,
        error_summary: str,
        *,
        failure_class: str = "failed",
        idempotency_key: str | None = None,
    ) -> Moved:
        return self._wait(
            self._calls.fail(task_id, error_summary, failure_class=failure_class, idempotency_key=idempotency_key)
        )


class SyncMailbox:
    """As `MailboxProtocol`; see there."""

    def __init__(self, mailbox: MailboxProtocol, wait: Waits) -> None:
        self._mailbox = mailbox
        self._wait = wait

    def enqueue(self, message: MailboxMessage) -> EnqueueAck:
        return self._wait(self._mailbox.enqueue(message))

    def enqueue_many(self, messages: Sequence[MailboxMessage]) -> list[EnqueueAck]:
        return self._wait(self._mailbox.enqueue_many(messages))

    def dequeue(self, session: str, *, wait_seconds: float = 0) -> MailboxMessage | None:
        return self._wait(self._mailbox.dequeue(session, wait_seconds=wait_seconds))

    def dequeue_many(self, session: str, limit: int, *, wait_seconds: float = 0) -> list[MailboxMessage]:
        return self._wait(self._mailbox.dequeue_many(session, limit, wait_seconds=wait_seconds))

    def ack(self, session: str, msg_id: str) -> None:
        self._wait(self._mailbox.ack(session, msg_id))

    def ack_many(self, session: str, msg_ids: Sequence[str]) -> None:
        self._wait(self._mailbox.ack_many(session, msg_ids))

    def nack(self, session: str, msg_id: str, reason: str) -> None:
        self._wait(self._mailbox.nack(session, msg_id, reason))

    def extend(self, session: str, msg_id: str, seconds: float) -> None:
        self._wait(self._mailbox.extend(session, msg_id, seconds))

    def peek(self, session: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[MessageSummary]:
        return self._wait(self._mailbox.peek(session, after=after, limit=limit))

    def purge(self, session: str) -> None:
        self._wait(self._mailbox.purge(session))

    def peek_dead_letter(
        self, session: str, *, after: str | None = None, limit: int = MAX_PAGE
    ) -> list[DeadLetterEntry]:
        return self._wait(self._mailbox.peek_dead_letter(session, after=after, limit=limit))

    def purge_dead_letter(self, session: str) -> None:
        self._wait(self._mailbox.purge_dead_letter(session))
