"""Tools for mail: what came, what was sent, and what could not be delivered. Reading never consumes."""

from typing import Annotated, Any, Final

from mcp.server.mcpserver import MCPServer
from pydantic import Field
from typing_extensions import TypedDict

from agentpost.delivery.mailroom import InboxLine
from agentpost.edges.mcp.telling import CHANGES, LOOKS, NOTICE, ago, bounded, told
from agentpost.edges.sdk.client import Client
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Priority
from agentpost.store.values import LedgerState

__all__ = ["add_mail_tools", "lines_of"]

_MOST_BODIES: Final = 10
_MOST_LINES: Final = 50
_SUBJECT: Final = 120
# Who floods an inbox does not make its owner's tools slow: the oldest so many are looked at.
_MOST_LOOKED_AT: Final = 1_000


class Digest(TypedDict):
    """One message in a line. Its body is fetched with `event_ids`."""

    event_id: str
    corr_id: str
    sender: str
    kind: str
    subject: str
    age: str
    unread: bool
    open: bool
    expects_reply: bool
    priority: str


class Body(TypedDict):
    """One message in full, or as much of it as was asked for."""

    event_id: str
    corr_id: str
    sender: str
    subject: str
    body: str
    context: Any
    characters_left_out: int


class Messages(TypedDict):
    agent: str
    unread: int
    open: int
    digest: list[Digest]
    bodies: list[Body]
    notice: str
    next: str


class Recipient(TypedDict):
    agent: str
    node: str | None
    online: bool
    note: str


class Sent(TypedDict):
    event_id: str
    corr_id: str
    recipients: list[Recipient]
    rejected: list[str]
    outcome: str
    reply: str | None


class Marked(TypedDict):
    marked: list[str]


class DeadLetter(TypedDict):
    event_id: str
    to_agent: str
    reason: str
    attempts: int
    age: str
    resent_as: str | None


class DeadLetters(TypedDict):
    dead_letters: list[DeadLetter]
    next: str


class Resent(TypedDict):
    resent_as: list[str]
    refused: list[str]


def add_mail_tools(server: MCPServer, client: Client) -> None:
    @server.tool(name="ansible_read_messages", title="Read messages", annotations=LOOKS)
    @told
    async def read_messages(
        event_ids: Annotated[
            list[str], Field(description="Messages whose bodies are wanted; none gives the digest only.")
        ] = [],  # noqa: B006 - never changed
        only_open: Annotated[bool, Field(description="Only messages that have no outcome yet.")] = True,
        limit: Annotated[int, Field(ge=1, le=_MOST_LINES, description="How many lines of the digest.")] = 20,
        max_characters: Annotated[int, Field(ge=100, le=100_000, description="Of each body.")] = 4_000,
    ) -> Messages:
        """See what came for you: first a digest without bodies, then the bodies that you ask for by `event_ids`.

        Reading never consumes: a message stays open until you reply to it, or mark it as read and settle it.
        """
        if len(event_ids) > _MOST_BODIES:
            raise Refusal(Code.INVALID_FIELD, f"at most {_MOST_BODIES} bodies at once", field="event_ids")
        lines = await lines_of(client, only_open=only_open)
        bodies = [await _body(client, event_id, max_characters) for event_id in event_ids]
        shown = [] if event_ids else [_digest(line) for line in lines[-limit:]]
        return Messages(
            agent=client.agent,
            unread=sum(not line.is_read for line in lines),
            open=sum(line.state is not LedgerState.SETTLED for line in lines),
            digest=shown,
            bodies=bodies,
            notice=NOTICE,
            next=_what_next(len(lines), len(shown), bool(bodies)),
        )

    @server.tool(name="ansible_send_message", title="Send a message", annotations=CHANGES)
    @told
    async def send_message(
        to: Annotated[list[str], Field(min_length=1, description='Agent ids; ["all"] for everyone.')],
        body: Annotated[str, Field(description="What you want to say.")],
        subject: Annotated[str | None, Field(description="In a few words.")] = None,
        reply_to: Annotated[str | None, Field(description="The event id of the message that this answers.")] = None,
        priority: Priority = Priority.NORMAL,
        ttl_seconds: Annotated[int | None, Field(description="Not to be delivered after so long.")] = None,
        wait_seconds: Annotated[float, Field(ge=0, le=300, description="Wait so long for the reply.")] = 0,
    ) -> Sent:
        """Send a message to other agents, or answer one with `reply_to`. When this returns, it is durable.

        The answer says who is away and how much waits for them. `outcome` is `on its way` until the recipient has it.
        """
        if reply_to is not None:
            answered = await client.reply(reply_to, body, subject=subject)
            return Sent(
                event_id=answered.event_id,
                corr_id=answered.corr_id,
                recipients=[],
                rejected=[],
                outcome="the message that it answers is settled" if answered.settled else "on its way",
                reply=None,
            )
        receipt = await client.send(
            to, body, subject=subject, priority=priority, ttl_seconds=ttl_seconds, expects_reply=wait_seconds > 0
        )
        outcome, reply = "on its way", None
        if wait_seconds:
            sent = await client.ended(receipt.event_id, timeout_seconds=wait_seconds)
            outcome = ", ".join(f"{each.to_agent_id}: {each.state.value}" for each in sent.deliveries)
            reply = "\n\n".join(each.answer for each in sent.deliveries if each.answer) or None
        return Sent(
            event_id=receipt.event_id,
            corr_id=receipt.corr_id,
            recipients=[
                Recipient(
                    agent=each.agent_id,
                    node=each.node_id,
                    online=each.is_online,
                    note=_note(each.is_online, each.waiting),
                )
                for each in receipt.recipients
            ],
            rejected=[f"{each.agent_id}: {each.reason.value}" for each in receipt.rejected],
            outcome=outcome,
            reply=reply,
        )

    @server.tool(name="ansible_mark_read", title="Mark as read", annotations=CHANGES)
    @told
    async def mark_read(
        event_ids: Annotated[list[str], Field(min_length=1, max_length=100, description="Messages of your inbox.")],
        settle: Annotated[bool, Field(description="Also settle them: done, no reply needed.")] = False,
    ) -> Marked:
        """Note that you have read messages. With `settle` they are done, and their senders see them as processed."""
        for event_id in event_ids:
            await client.read(event_id)
            if settle:
                await client.dismiss(event_id)
        return Marked(marked=event_ids)

    @server.tool(name="ansible_dead_letters", title="Dead letters", annotations=LOOKS)
    @told
    async def dead_letters(limit: Annotated[int, Field(ge=1, le=100)] = 20) -> DeadLetters:
        """What was sent from this gateway and could not be delivered, with the reason of each."""
        letters = await client.dead_letters(limit=limit)
        return DeadLetters(
            dead_letters=[
                DeadLetter(
                    event_id=each.event_id,
                    to_agent=each.to_agent_id,
                    reason=each.reason or "",
                    attempts=each.attempts,
                    age=ago(each.dead_lettered_at_ms),
                    resent_as=each.resent_as,
                )
                for each in letters
            ],
            next="Send one again with ansible_resend once its reason is gone."
            if letters
            else "There is nothing to do.",
        )

    @server.tool(name="ansible_resend", title="Send a dead letter again", annotations=CHANGES)
    @told
    async def resend(event_id: Annotated[str, Field(description="A dead letter.")]) -> Resent:
        """Send a dead letter again, as a new event of the same conversation."""
        done = await client.resend(event_id)
        return Resent(
            resent_as=[each.resent_as for each in done.resent],
            refused=[f"{each.event_id}: {each.reason}" for each in done.refused],
        )

    # The decorators have them; without this they look unused.
    _ = (read_messages, send_message, mark_read, dead_letters, resend)


async def lines_of(client: Client, *, only_open: bool) -> list[InboxLine]:
    lines: list[InboxLine] = []
    async for line in client.inbox(only_open=only_open):
        lines.append(line)
        if len(lines) == _MOST_LOOKED_AT:
            break
    return lines


async def _body(client: Client, event_id: str, most: int) -> Body:
    message = await client.read(event_id)
    text, left_out = bounded(message.content.body or message.content.description, most)
    return Body(
        event_id=event_id,
        corr_id=message.line.corr_id,
        sender=f"{message.line.from_agent_id}@{message.line.from_node_id}",
        subject=bounded(message.content.subject or message.content.title, _SUBJECT)[0],
        body=text,
        context=message.content.context,
        characters_left_out=left_out,
    )


def _digest(line: InboxLine) -> Digest:
    return Digest(
        event_id=line.event_id,
        corr_id=line.corr_id,
        sender=f"{line.from_agent_id}@{line.from_node_id}",
        kind=line.kind.value,
        subject=bounded(line.subject or line.problem, _SUBJECT)[0],
        age=ago(line.accepted_at_ms),
        unread=not line.is_read,
        open=line.state is not LedgerState.SETTLED,
        expects_reply=line.expects_reply,
        priority=line.priority.value,
    )


def _what_next(found: int, shown: int, has_bodies: bool) -> str:
    if has_bodies:
        return "Answer with ansible_send_message and reply_to, or ansible_mark_read with settle."
    if not found:
        return "There is nothing to do."
    older = f" {found - shown} older ones are not shown." if found > shown else ""
    return f"Read bodies with ansible_read_messages and event_ids.{older}"


def _note(is_online: bool, waiting: int | None) -> str:
    if is_online:
        return ""
    return "away; it is kept for it" + (f", {waiting} waiting" if waiting else "")
