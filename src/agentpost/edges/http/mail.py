"""Sending, reading and answering over HTTP, for the agents and people of this machine (`/ansible/…`).

Served on the operator's socket: whoever can open that owns the home.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter
from msgspec import Struct

from agentpost.delivery.dispatch import Resolution
from agentpost.delivery.engine import Engine
from agentpost.delivery.mailroom import Answered, InboxLine, InboxMessage
from agentpost.delivery.ports import Content
from agentpost.delivery.publish import Receipt
from agentpost.delivery.pull import LONGEST_WAIT_SECONDS
from agentpost.edges.http.parameters import CARRIES_CONTENT, HIGHEST_SEQ, IdempotencyKey, key_in
from agentpost.edges.operations.mail import reply_once, request_of, send_once
from agentpost.edges.operations.messages import Outgoing
from agentpost.protocol.headers import HeaderKind, with_headers
from agentpost.protocol.ids import EventId

__all__ = ["mail_routes"]

_MOST_LINES: Final = 500

Limit = Annotated[int, Parameter(ge=1, le=_MOST_LINES, description="How many at most.")]
WaitSeconds = Annotated[
    float, Parameter(ge=0, le=LONGEST_WAIT_SECONDS, description="How long to wait if there is nothing.")
]
After = Annotated[int, Parameter(ge=0, le=HIGHEST_SEQ, description="Only what came after this inbox seq.")]


class NewMessage(Outgoing, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    from_agent_id: str


class NewReply(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`kind` and `thread` become headers of the body."""

    subject: str | None = None
    body: str | None = None
    context: Any = None
    kind: HeaderKind | None = None
    thread: str | None = None


class Resolve(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    how: Resolution


def mail_routes(engine: Engine) -> Sequence[HTTPRouteHandler]:
    """The routes of one gateway's mail."""

    @post("/ansible/messages", status_code=202, summary="Send a message", tags=["mail"], **CARRIES_CONTENT)
    async def send(data: Annotated[NewMessage, Body()], idempotency_key: IdempotencyKey = None) -> Receipt:
        """Answered once the message is durable. It says who gets it, who of them is away, and what each has waiting."""
        request = request_of(engine, data.from_agent_id, data)
        return await send_once(engine, data, request, key=key_in(idempotency_key))

    @get("/ansible/agents/{agent_id:str}/inbox", summary="List an inbox", tags=["mail"])
    async def inbox(
        agent_id: str,
        limit: Limit = 50,
        after: After = 0,
        only_open: bool = False,
        only_unread: bool = False,
        wait_seconds: WaitSeconds = 0,
    ) -> list[InboxLine]:
        """Lines without bodies, oldest first. With `wait_seconds` an empty inbox is watched until something comes.

        `only_open` leaves out settled messages, `only_unread` those that were read as well.
        """

        def seen() -> list[InboxLine]:
            if only_unread:
                return engine.mailroom.unread(agent_id, after_inbox_seq=after, limit=limit)
            return engine.mailroom.inbox(agent_id, after_inbox_seq=after, limit=limit, only_open=only_open)

        return await engine.pull.look(agent_id, seen, wait_seconds=wait_seconds)

    @get("/ansible/agents/{agent_id:str}/inbox/{event_id:str}", summary="Read a message", tags=["mail"])
    async def read(agent_id: str, event_id: str, mark: bool = True) -> InboxMessage:
        """Reading never consumes: the message is marked as read and stays."""
        return await engine.mailroom.read(agent_id, EventId(event_id), mark=mark)

    @post(
        "/ansible/agents/{agent_id:str}/inbox/{event_id:str}/reply",
        status_code=202,
        summary="Answer a message",
        tags=["mail"],
        **CARRIES_CONTENT,
    )
    async def reply(
        agent_id: str, event_id: str, data: Annotated[NewReply, Body()], idempotency_key: IdempotencyKey = None
    ) -> Answered:
        """Answered once the reply is durable. A message that was still open is settled by it."""
        body = with_headers(data.body, kind=data.kind, thread=data.thread)
        content = Content(subject=data.subject, body=body, context=data.context)
        return await reply_once(engine, agent_id, EventId(event_id), content, key=key_in(idempotency_key))

    @post(
        "/ansible/agents/{agent_id:str}/inbox/{event_id:str}/dismiss",
        status_code=200,
        summary="Settle a message without an answer",
        tags=["mail"],
    )
    async def dismiss(agent_id: str, event_id: str) -> dict[str, bool]:
        """The agent has had it, and says nothing to it. False if it had its outcome before: that one counts."""
        return {"settled": await engine.mailroom.dismiss(agent_id, EventId(event_id))}

    @post(
        "/ansible/agents/{agent_id:str}/inbox/{event_id:str}/resolve",
        status_code=200,
        summary="Decide about an unclear outcome",
        tags=["mail"],
    )
    async def resolve(agent_id: str, event_id: str, data: Annotated[Resolve, Body()]) -> dict[str, str]:
        """For mail that a crash cut off between engaging and settling, at an agent that cannot be asked."""
        await engine.dispatcher.resolve(EventId(event_id), agent_id, data.how, actor="operator")
        return {"resolved": event_id, "how": data.how.value}

    return [send, inbox, read, reply, dismiss, resolve]
