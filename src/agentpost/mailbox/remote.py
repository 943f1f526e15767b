"""A mailbox that is somewhere else: the same interface, made of calls that a transport carries."""

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from agentpost.mailbox import asking
from agentpost.mailbox.calls import MAX_WAIT_SECONDS
from agentpost.mailbox.interface import MAX_PAGE
from agentpost.protocol.mailbox import (
    DeadLetterEntry,
    EnqueueAck,
    MailboxMessage,
    MessageSummary,
    from_wire,
    to_wire,
)

__all__ = ["Carrier", "PushingCarrier", "PushingMailbox", "RemoteMailbox"]


class Carrier(Protocol):
    """Carries calls to a mailbox. What that refuses is raised here as the same refusal."""

    async def call(self, method: str, parameters: Mapping[str, Any]) -> Any: ...

    async def close(self) -> None: ...


class PushingCarrier(Carrier, Protocol):
    """A carrier on which the mailbox can speak first."""

    def subscribe(self, session: str, credit: int) -> AsyncGenerator[dict[str, Any]]:
        """Messages as they are pushed, until the caller has enough."""
        ...


class RemoteMailbox:
    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def enqueue(self, message: MailboxMessage) -> EnqueueAck:
        asking.check_messages([message])
        return from_wire(EnqueueAck, await self._carrier.call("enqueue", {"message": to_wire(message)}))

    async def enqueue_many(self, messages: Sequence[MailboxMessage]) -> list[EnqueueAck]:
        asking.check_messages(messages)
        acks = await self._carrier.call("enqueue_many", {"messages": [to_wire(each) for each in messages]})
        return [from_wire(EnqueueAck, each) for each in acks]

    async def dequeue(self, session: str, *, wait_seconds: float = 0) -> MailboxMessage | None:
        asking.check_name(session, "session")
        found = await self._wait("dequeue", {"session": session}, wait_seconds)
        return None if found is None else from_wire(MailboxMessage, found)

    async def dequeue_many(self, session: str, limit: int, *, wait_seconds: float = 0) -> list[MailboxMessage]:
        asking.check_name(session, "session")
        asking.check_batch(limit)
        found = await self._wait("dequeue_many", {"session": session, "limit": limit}, wait_seconds)
        return [from_wire(MailboxMessage, each) for each in found]

    async def _wait(self, method: str, parameters: dict[str, Any], wait_seconds: float) -> Any:
        """Ask again until there is something, no call longer than one may be."""
        asking.check_wait(wait_seconds)
        while True:
            wait = min(wait_seconds, MAX_WAIT_SECONDS)
            found = await self._carrier.call(method, {**parameters, "wait_seconds": wait})
            wait_seconds -= wait
            if found or wait_seconds <= 0:
                return found

    async def ack(self, session: str, msg_id: str) -> None:
        await self._carrier.call("ack", _one(session, msg_id))

    async def ack_many(self, session: str, msg_ids: Sequence[str]) -> None:
        asking.check_name(session, "session")
        for msg_id in msg_ids:
            asking.check_name(msg_id, "msg_id")
        await self._carrier.call("ack_many", {"session": session, "msg_ids": list(msg_ids)})

    async def nack(self, session: str, msg_id: str, reason: str) -> None:
        await self._carrier.call("nack", {**_one(session, msg_id), "reason": asking.checked_reason(reason)})

    async def extend(self, session: str, msg_id: str, seconds: float) -> None:
        asking.check_extension(seconds)
        await self._carrier.call("extend", {**_one(session, msg_id), "seconds": seconds})

    async def peek(self, session: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[MessageSummary]:
        lines = await self._carrier.call("peek", _page(session, after, limit))
        return [from_wire(MessageSummary, each) for each in lines]

    async def purge(self, session: str) -> None:
        asking.check_name(session, "session")
        await self._carrier.call("purge", {"session": session})

    async def peek_dead_letter(
        self, session: str, *, after: str | None = None, limit: int = MAX_PAGE
    ) -> list[DeadLetterEntry]:
        entries = await self._carrier.call("peek_dead_letter", _page(session, after, limit))
        return [from_wire(DeadLetterEntry, each) for each in entries]

    async def purge_dead_letter(self, session: str) -> None:
        asking.check_name(session, "session")
        await self._carrier.call("purge_dead_letter", {"session": session})

    async def close(self) -> None:
        await self._carrier.close()


class PushingMailbox(RemoteMailbox):
    """A mailbox behind a Unix socket or a WebSocket, which can push messages."""

    def __init__(self, carrier: PushingCarrier) -> None:
        super().__init__(carrier)
        self._pushing = carrier

    async def subscribe(self, session: str, *, credit: int = 1) -> AsyncGenerator[MailboxMessage]:
        """Messages as they come, no more than `credit` that are not acked or nacked yet.

        Leaving the loop ends it, and what was not handed out by then waits for somebody else.
        """
        asking.check_name(session, "session")
        async with contextlib.aclosing(self._pushing.subscribe(session, credit)) as pushed:
            async for message in pushed:
                yield from_wire(MailboxMessage, message)


def _one(session: str, msg_id: str) -> dict[str, Any]:
    asking.check_name(session, "session")
    asking.check_name(msg_id, "msg_id")
    return {"session": session, "msg_id": msg_id}


def _page(session: str, after: str | None, limit: int) -> dict[str, Any]:
    asking.check_name(session, "session")
    asking.check_page(limit)
    page: dict[str, Any] = {"session": session, "limit": limit}
    return page if after is None else {**page, "after": after}
