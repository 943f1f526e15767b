"""The client for code that waits: the same calls without `await`. A loop of its own runs beside the program."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from agentpost.delivery.deadletters import DeadLetterLine, Resent
from agentpost.delivery.mailroom import Answered, InboxLine, InboxMessage
from agentpost.delivery.ports import Content, Engagement, ResultKind
from agentpost.delivery.publish import Receipt
from agentpost.delivery.sent import SentMessage
from agentpost.delivery.trace import TraceStep
from agentpost.edges.sdk.blocking_parts import SyncMailbox, SyncTaskCalls
from agentpost.edges.sdk.client import Client
from agentpost.protocol.headers import HeaderKind
from agentpost.protocol.payloads import Priority

__all__ = ["SyncClient"]

T = TypeVar("T")


class SyncClient:
    """As `Client`; see there. To be closed, best with `with`; may be used by several threads."""

    def __init__(self, agent: str | None = None, *, home: Path | str | None = None) -> None:
        self._client = Client(agent, home=home)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentpost client", daemon=True)
        self._thread.start()

    def __enter__(self) -> "SyncClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            # Ctrl-C, say: the call must not go on for a caller that has gone.
            waiting.cancel()
            raise

    @property
    def agent(self) -> str:
        return self._client.agent

    @property
    def tasks(self) -> SyncTaskCalls:
        return SyncTaskCalls(self._client.tasks, self._wait)

    @property
    def mailbox(self) -> SyncMailbox:
        return SyncMailbox(self._client.mailbox, self._wait)

    def register(self, *, lease_seconds: float | None = None) -> None:
        self._wait(self._client.register(lease_seconds=lease_seconds))

    def send(
        self,
        to: str | Sequence[str],
        body: str,
        *,
        subject: str | None = None,
        context: Any = None,
        priority: Priority = Priority.NORMAL,
        kind: HeaderKind | None = None,
        thread: str | None = None,
        ttl_seconds: int | None = None,
        expects_reply: bool = False,
        corr_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        return self._wait(
            self._client.send(
                to,
                body,
                subject=subject,
                context=context,
                priority=priority,
                kind=kind,
                thread=thread,
                ttl_seconds=ttl_seconds,
                expects_reply=expects_reply,
                corr_id=corr_id,
                idempotency_key=idempotency_key,
            )
        )

    def ask(
        self,
        to: str,
        body: str,
        *,
        timeout_seconds: float,
        subject: str | None = None,
        kind: HeaderKind | None = None,
        thread: str | None = None,
        idempotency_key: str | None = None,
    ) -> str | None:
        return self._wait(
            self._client.ask(
                to,
                body,
                timeout_seconds=timeout_seconds,
                subject=subject,
                kind=kind,
                thread=thread,
                idempotency_key=idempotency_key,
            )
        )

    def ended(self, event_id: str, *, timeout_seconds: float) -> SentMessage:
        return self._wait(self._client.ended(event_id, timeout_seconds=timeout_seconds))

    def sent(self, event_id: str, *, wait_seconds: float = 0) -> SentMessage:
        return self._wait(self._client.sent(event_id, wait_seconds=wait_seconds))

    def inbox(self, *, only_open: bool = False, after: int = 0) -> Iterator[InboxLine]:
        lines = self._client.inbox(only_open=only_open, after=after)

        async def next_line() -> InboxLine | None:
            return await anext(lines, None)

        while (line := self._wait(next_line())) is not None:
            yield line

    def read(self, event_id: str, *, mark: bool = True) -> InboxMessage:
        return self._wait(self._client.read(event_id, mark=mark))

    def reply(
        self,
        event_id: str,
        body: str,
        *,
        subject: str | None = None,
        context: Any = None,
        kind: HeaderKind | None = None,
        thread: str | None = None,
        idempotency_key: str | None = None,
    ) -> Answered:
        return self._wait(
            self._client.reply(
                event_id,
                body,
                subject=subject,
                context=context,
                kind=kind,
                thread=thread,
                idempotency_key=idempotency_key,
            )
        )

    def dismiss(self, event_id: str) -> bool:
        return self._wait(self._client.dismiss(event_id))

    def fetch(self, *, limit: int = 1, wait_seconds: float = 0) -> list[Engagement]:
        return self._wait(self._client.fetch(limit=limit, wait_seconds=wait_seconds))

    def settle(
        self,
        event_id: str,
        kind: ResultKind = ResultKind.PROCESSED,
        *,
        reply: Content | str | None = None,
        error: str | None = None,
    ) -> bool:
        return self._wait(self._client.settle(event_id, kind, reply=reply, error=error))

    def extend(self, event_id: str, seconds: float) -> None:
        self._wait(self._client.extend(event_id, seconds))

    def trace(self, what: str) -> list[TraceStep]:
        return self._wait(self._client.trace(what))

    def dead_letters(self, *, limit: int = 50) -> list[DeadLetterLine]:
        return self._wait(self._client.dead_letters(limit=limit))

    def resend(self, event_id: str) -> Resent:
        return self._wait(self._client.resend(event_id))

    def status(self) -> dict[str, Any]:
        return self._wait(self._client.status())

    def directory(self) -> list[dict[str, Any]]:
        return self._wait(self._client.directory())

    def nodes(self) -> list[dict[str, Any]]:
        return self._wait(self._client.nodes())
