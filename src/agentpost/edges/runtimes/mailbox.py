"""Engages an agent through a mailbox: mesh messages become mailbox messages, and its ack or nack settles them.

The mailbox is a file that the agent reads with the mailbox protocol. It tries again by itself what the agent nacks;
what becomes a dead letter there has failed here. The event's id is the message's: a second hand-over changes nothing.
So when the gateway stops, or the agent is changed, nobody waits for the mailbox: what was handed over stays there.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from agentpost.delivery.ports import Engagement, Result, TurnLeftError
from agentpost.edges.runtimes import answers
from agentpost.edges.runtimes.options import AtOnce, Options
from agentpost.mailbox.file import FileMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.mailbox import PROTOCOL_VERSION, MailboxMessage, MailboxState
from agentpost.protocol.timestamps import parse_ms
from agentpost.world import Clock

__all__ = ["MailboxOptions", "MailboxRuntime"]

_FIRST_LOOK_SECONDS: Final = 0.05
_LOOK_EVERY_SECONDS: Final = 2.0


class MailboxOptions(Options, frozen=True, kw_only=True, rename="camel"):
    """`file` is the mailbox; `session` is whose it is there, without it the agent's own id."""

    SECRETS: ClassVar[frozenset[str]] = frozenset()

    file: str
    session: str | None = None
    max_concurrent: AtOnce = 64


class MailboxRuntime:
    is_idempotent = True

    def __init__(self, options: MailboxOptions, *, clock: Clock) -> None:
        self._options = options
        self._file = Path(options.file).expanduser()
        self._clock = clock
        self._opened: FileMailbox | None = None
        self._released = asyncio.Event()
        self.max_concurrent = options.max_concurrent

    async def _mailbox(self) -> FileMailbox:
        if self._opened is not None and self._opened.failure is not None:
            # Its disk failed: what is in the file shows when it is opened again.
            failed, self._opened = self._opened, None
            await failed.close()
        if self._opened is None:
            self._opened = FileMailbox.open(self._file, clock=self._clock)
        return self._opened

    async def engage(self, engagement: Engagement) -> Result:
        message = _message(engagement, self._options.session or engagement.to_agent_id)
        try:
            mailbox = await self._mailbox()
            await mailbox.enqueue(message)
            return await self._outcome(mailbox, message)
        except Refusal as refusal:
            # What a mailbox cannot hold it cannot hold later either.
            is_final = refusal.code in (Code.TOO_LARGE, Code.TOO_DEEP, Code.INVALID_FIELD)
            return answers.failed(refusal.message) if is_final else answers.retry(refusal.message)

    def release(self) -> None:
        self._released.set()

    async def _outcome(self, mailbox: FileMailbox, message: MailboxMessage) -> Result:
        """Wait until the agent has settled the message, for as long as somebody wants to know."""
        pause = _FIRST_LOOK_SECONDS
        while True:
            state, reason = await mailbox.state_of(message.to, message.msg_id)
            match state:
                case MailboxState.ACKED:
                    return answers.processed(None)
                case MailboxState.DEAD_LETTER:
                    return answers.failed(reason or "the agent did not take it")
                case MailboxState.EXPIRED | None:
                    return answers.failed("it waited in the mailbox until it expired, or was purged there")
                case _ if self._released.is_set():
                    raise TurnLeftError
                case _:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._released.wait()
                    pause = min(pause * 1.5, _LOOK_EVERY_SECONDS)

    async def ask(self, event_id: EventId) -> Result | None:
        # Handing it over again asks, too.
        return None

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


def _message(engagement: Engagement, session: str) -> MailboxMessage:
    """The engagement as a mailbox message: the body is the payload, everything else stands beside it."""
    content = engagement.content
    extra = {
        "corr_id": engagement.corr_id,
        "kind": engagement.kind.value,
        "subject": content.subject,
        "context": content.context,
        "ref_event_id": engagement.ref_event_id,
        "expects_reply": engagement.expects_reply or None,
    }
    return MailboxMessage(
        msg_id=engagement.event_id,
        # An answer that is enqueued to this address travels back through the mesh.
        sender=f"{engagement.from_agent_id}@{engagement.from_node_id}",
        to=session,
        payload=content.body or "",
        created_at=parse_ms(engagement.created_at) // 1000,
        attempt=0,
        protocol_version=PROTOCOL_VERSION,
        extra=msgspec.to_builtins({name: value for name, value in extra.items() if value is not None}),
    )
