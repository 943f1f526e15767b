"""What one agent says and reads, over the gateway of its home.

async with Client("architect") as post:
    receipt = await post.send("builder", "Build it, please.")
    answer = await post.ask("builder", "Is it built?", timeout_seconds=60)
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from agentpost.config import home_of, load_settings
from agentpost.delivery.deadletters import DeadLetterLine, Resent
from agentpost.delivery.mailroom import Answered, InboxLine, InboxMessage
from agentpost.delivery.ports import Content, Engagement, ResultKind
from agentpost.delivery.publish import Receipt
from agentpost.delivery.sent import SentMessage
from agentpost.delivery.trace import TraceStep
from agentpost.edges.async_operator_client import AsyncOperatorClient
from agentpost.edges.mailbox.connecting import gateway_mailbox
from agentpost.edges.operator_client import new_retry_key, path_of
from agentpost.edges.sdk.held_mail import HeldMail
from agentpost.edges.sdk.tasks import TaskCalls
from agentpost.mailbox.remote import RemoteMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.headers import HeaderKind
from agentpost.protocol.payloads import Priority
from agentpost.tasks import TaskOwner

__all__ = ["Client"]

_log = logging.getLogger(__name__)

_LONGEST_LOOK_SECONDS: Final = 30.0
_PAGE: Final = 100

T = TypeVar("T")


class Client:
    """One agent of the gateway of a home. Without `agent` it may look at everything and speak for nobody.

    Whatever the gateway refuses is raised as `Refusal`, with its `code`, its sentence and a hint.
    """

    def __init__(self, agent: str | None = None, *, home: Path | str | None = None) -> None:
        named = home or os.environ.get("AGENTPOST_HOME")
        self.home = home_of(None, home=None if named is None else Path(named))
        self._agent = agent
        # For what has no method of its own here: see the pages of the HTTP API.
        self.calls = AsyncOperatorClient(self.home)
        self._mailbox: RemoteMailbox | None = None
        self._tasks = TaskOwner("client")

    @classmethod
    @asynccontextmanager
    async def embedded(
        cls,
        agent: str | None = None,
        *,
        node: str,
        home: Path | str | None = None,
        listen: str | None = None,
    ) -> AsyncGenerator["Client"]:
        """A client with a gateway of its own inside this process, for a machine where none runs."""
        from agentpost.edges.sdk.embedded import gateway_in_process

        flags = {"node": node, "listen": listen}
        settings = load_settings(home=None if home is None else Path(home), flags=flags)
        async with gateway_in_process(settings), cls(agent, home=settings.home) as client:
            if agent is not None:
                await client.register()
            yield client

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._tasks.finish()
        await self.calls.close()
        if self._mailbox is not None:
            await self._mailbox.close()

    @property
    def agent(self) -> str:
        if self._agent is None:
            raise Refusal(
                Code.INVALID_FIELD, "this client speaks for no agent", field="agent", hint='Say which: Client("me").'
            )
        return self._agent

    @property
    def tasks(self) -> TaskCalls:
        """What the agent asks of others, and does for them."""
        return TaskCalls(self.calls, self.agent)

    @property
    def mailbox(self) -> RemoteMailbox:
        """The mailbox of the gateway, for sessions of this machine; what is put under `agent@node` travels the mesh."""
        if self._mailbox is None:
            self._mailbox = gateway_mailbox(self.home)
        return self._mailbox

    async def register(self, *, lease_seconds: float | None = None) -> None:
        """Add the agent to the gateway, as one that fetches its mail by itself. Nothing happens if it is there."""
        known = {each["agentId"]: each["runtime"] for each in await self.calls.get("/ansible/agents")}
        if self.agent in known:
            return
        options = {} if lease_seconds is None else {"leaseSeconds": lease_seconds}
        await self.calls.post("/ansible/agents", {"agentId": self.agent, "runtime": "pull", "options": options})

    # Mail

    async def send(
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
        """Send a message. When this returns it is durable, and the receipt says who of its recipients is away.

        `kind` and `thread` become headers of the body, which lists and agents read.

        The same `idempotency_key` gives the same receipt for 24 hours, e.g. after this program was restarted. Without
        one, a call whose answer was lost is repeated all the same, and the message is sent once.
        """
        said = {
            "fromAgentId": self.agent,
            "toAgents": [to] if isinstance(to, str) else list(to),
            "subject": subject,
            "body": body,
            "context": context,
            "priority": priority,
            "kind": kind,
            "thread": thread,
            "ttlSeconds": ttl_seconds,
            "expectsReply": expects_reply,
            "corrId": corr_id,
        }
        key = idempotency_key or new_retry_key()
        return msgspec.convert(await self.calls.post("/ansible/messages", said, key=key), Receipt)

    async def ask(
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
        """Send a message to one agent and wait for its reply; None if it was handled without one.

        A message that cannot be delivered, or that its agent could not handle, is a `Refusal` that says why. After
        `timeout_seconds` it is a `TimeoutError`; the message is on its way all the same.
        """
        receipt = await self.send(
            to,
            body,
            subject=subject,
            kind=kind,
            thread=thread,
            expects_reply=True,
            idempotency_key=idempotency_key,
        )
        sent = await self.ended(receipt.event_id, timeout_seconds=timeout_seconds)
        (delivery,) = sent.deliveries
        failing = delivery.failing
        if not delivery.is_over:
            why = "" if failing is None else f": attempt {failing.attempt} of {failing.most_attempts} failed"
            error = "" if failing is None or failing.error is None else f", {failing.error}"
            raise TimeoutError(f"{to} has not answered {receipt.event_id} in {timeout_seconds:g} s{why}{error}")
        if delivery.reason is not None and delivery.answered_by_event_id is None:
            error = "" if failing is None or failing.error is None else f", {failing.error}"
            raise Refusal(
                Code.UNAVAILABLE,
                f"{to} did not handle {receipt.event_id}: {delivery.reason}{error}",
                hint=f"Send it again with `agentpost deadletters resend {receipt.event_id}` once the cause is gone.",
            )
        return delivery.answer

    async def ended(self, event_id: str, *, timeout_seconds: float) -> SentMessage:
        """What became of a message, once it is over for all recipients or the time is."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_seconds
        while True:
            look_seconds = min(max(until - loop.time(), 0.0), _LONGEST_LOOK_SECONDS)
            sent = await self.sent(event_id, wait_seconds=look_seconds)
            if sent.is_over or loop.time() >= until:
                return sent

    async def sent(self, event_id: str, *, wait_seconds: float = 0) -> SentMessage:
        """What has become so far of a message that was sent from here."""
        path = path_of("ansible", "messages", event_id)
        found = await self.calls.get(path, {"wait_seconds": round(wait_seconds, 3)}, wait_seconds=wait_seconds)
        return msgspec.convert(found, SentMessage)

    async def inbox(self, *, only_open: bool = False, after: int = 0) -> AsyncIterator[InboxLine]:
        """What came for the agent, oldest first, without bodies. Looking changes nothing."""
        while True:
            query = {"limit": _PAGE, "after": after, "only_open": str(only_open).lower()}
            found = await self.calls.get(path_of("ansible", "agents", self.agent, "inbox"), query)
            lines = msgspec.convert(found, list[InboxLine])
            for line in lines:
                yield line
            if len(lines) < _PAGE:
                return
            after = lines[-1].inbox_seq

    async def read(self, event_id: str, *, mark: bool = True) -> InboxMessage:
        """One message in full. Reading never consumes it."""
        found = await self.calls.get(self._mail(event_id), {"mark": str(mark).lower()})
        return msgspec.convert(found, InboxMessage)

    async def reply(
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
        """Answer a message. One that is still open is settled by it."""
        said = {"subject": subject, "body": body, "context": context, "kind": kind, "thread": thread}
        key = idempotency_key or new_retry_key()
        return msgspec.convert(await self.calls.post(f"{self._mail(event_id)}/reply", said, key=key), Answered)

    async def dismiss(self, event_id: str) -> bool:
        """Settle a message without an answer. False if it had its outcome before."""
        return (await self.calls.post(f"{self._mail(event_id)}/dismiss"))["settled"]

    async def fetch(self, *, limit: int = 1, wait_seconds: float = 0) -> list[Engagement]:
        """The oldest mail that nobody has yet. It is the caller's until it is settled, or until the lease is over.

        Fewer than `limit` come at once if they are large: there is no more only when none come.
        """
        mail = await HeldMail.fetch(self.calls, self.agent, limit=limit, wait_seconds=wait_seconds)
        # From here on nothing is awaited: who is cancelled before this is handed nothing, who is not has it.
        self._tasks.spawn(_take(mail), name="take")
        return mail.messages

    async def settle(
        self,
        event_id: str,
        kind: ResultKind = ResultKind.PROCESSED,
        *,
        reply: Content | str | None = None,
        error: str | None = None,
    ) -> bool:
        """Say what became of mail that was fetched. False if somebody had said so before: the first word counts."""
        content = Content(body=reply) if isinstance(reply, str) else reply
        said = {"kind": kind, "reply": content, "error": error}
        return (await self.calls.post(f"{self._mail(event_id)}/settle", said))["settled"]

    async def extend(self, event_id: str, seconds: float) -> None:
        """Keep mail that was fetched for so long from now on."""
        await self.calls.post(f"{self._mail(event_id)}/extend", {"seconds": seconds})

    async def trace(self, what: str) -> list[TraceStep]:
        """What happened to an event or in a conversation, step by step, as far as this gateway knows."""
        found = await self.calls.get(path_of("ansible", "trace", what))
        return msgspec.convert(found["steps"], list[TraceStep])

    async def dead_letters(self, *, limit: int = 50) -> list[DeadLetterLine]:
        """What was sent from here and cannot be delivered, with the reason of each."""
        return msgspec.convert(await self.calls.get("/ansible/dead-letters", {"limit": limit}), list[DeadLetterLine])

    async def resend(self, event_id: str) -> Resent:
        """Send a dead letter again, as a new event of the same conversation."""
        return msgspec.convert(await self.calls.post("/ansible/dead-letters/resend", {"eventId": event_id}), Resent)

    # The mesh

    async def status(self) -> dict[str, Any]:
        """How the gateway is: its node, its phase, its version, how far its outbox and inbox are."""
        return await self.calls.get("/operator/status")

    async def directory(self) -> list[dict[str, Any]]:
        """The agents of the mesh: where each lives, and whether its gateway is there."""
        return await self.calls.get("/ansible/directory")

    async def nodes(self) -> list[dict[str, Any]]:
        """The gateways of the mesh."""
        return (await self.calls.get("/operator/nodes"))["nodes"]

    def _mail(self, event_id: str) -> str:
        return path_of("ansible", "agents", self.agent, "inbox", event_id)


async def _take(mail: HeldMail) -> None:
    try:
        if mail.messages:
            await mail.take()
    except Refusal as refusal:
        _log.warning("mail that was fetched may come again: %s", refusal.message)
    finally:
        await mail.close()
