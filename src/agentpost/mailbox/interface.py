"""What a mailbox can do, over whichever transport. The first eight operations are the protocol, the rest goes beyond.

A session is the one that messages are `to`. Its name is data: any text that is not empty (MBX-11).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from agentpost.protocol.mailbox import (
    BASE_BACKOFF_SECONDS,
    IN_FLIGHT_TIMEOUT_SECONDS,
    MAX_RETRIES,
    TTL_SECONDS,
    DeadLetterEntry,
    EnqueueAck,
    MailboxMessage,
    MessageSummary,
)

__all__ = ["MAX_BATCH", "MAX_PAGE", "MailboxPolicy", "MailboxProtocol", "ServedMailbox"]

MAX_BATCH = 1_000
MAX_PAGE = 1_000


class MailboxPolicy(Struct, frozen=True, kw_only=True):
    """How long things take. `retention_seconds` is how long an id is remembered once it has been seen (MBX-3)."""

    max_retries: int = MAX_RETRIES
    base_backoff_seconds: float = BASE_BACKOFF_SECONDS
    in_flight_timeout_seconds: float = IN_FLIGHT_TIMEOUT_SECONDS
    ttl_seconds: float = TTL_SECONDS
    retention_seconds: float = 7 * 86_400


class MailboxProtocol(Protocol):
    async def enqueue(self, message: MailboxMessage) -> EnqueueAck:
        """Put a message into the mailbox of the session it is `to`; nothing happens if its id was seen before."""
        ...

    async def dequeue(self, session: str, *, wait_seconds: float = 0) -> MailboxMessage | None:
        """The next message, now in flight; None if there is none, also after `wait_seconds`."""
        ...

    async def ack(self, session: str, msg_id: str) -> None:
        """The message was handled. A repeat changes nothing; refused unless it is in flight."""
        ...

    async def nack(self, session: str, msg_id: str, reason: str) -> None:
        """The message was not handled: it comes again later, or becomes a dead letter."""
        ...

    async def peek(self, session: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[MessageSummary]:
        """What is in flight, then what is pending, each as it is handed out; `after` is the last id of the page before.

        A page may be shorter than `limit`; the one behind the last is empty.
        """
        ...

    async def purge(self, session: str) -> None:
        """Drop what is pending and in flight. Its ids stay remembered, dead letters stay."""
        ...

    async def peek_dead_letter(
        self, session: str, *, after: str | None = None, limit: int = MAX_PAGE
    ) -> list[DeadLetterEntry]: ...

    async def purge_dead_letter(self, session: str) -> None: ...

    # Beyond the protocol

    async def enqueue_many(self, messages: Sequence[MailboxMessage]) -> list[EnqueueAck]:
        """As `enqueue`, for all of them or, if one is refused, for none."""
        ...

    async def dequeue_many(self, session: str, limit: int, *, wait_seconds: float = 0) -> list[MailboxMessage]:
        """As many as there are, up to `limit`."""
        ...

    async def ack_many(self, session: str, msg_ids: Sequence[str]) -> None:
        """As `ack`, for all of them or, if one is refused, for none."""
        ...

    async def extend(self, session: str, msg_id: str, seconds: float) -> None:
        """Give a message in flight this much time from now, instead of what is left."""
        ...

    async def close(self) -> None: ...


class ServedMailbox(MailboxProtocol, Protocol):
    """A mailbox that a server can be put in front of."""

    async def give_back(self, session: str, handed_out: Mapping[str, int]) -> None:
        """Undo hand-overs that their receiver never heard of: pending again, and not counted as attempts.

        `handed_out` is the attempt of each msg_id. What was settled or has come again since then is left as it is.
        """
        ...
