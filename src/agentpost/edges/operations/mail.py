"""The mail of one agent: reading, claiming, settling, sending and answering. Reading never consumes."""

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from agentpost.auth.external.scopes import MESSAGE_READ, STATUS_READ
from agentpost.delivery.engine import Engine
from agentpost.delivery.mailroom import InboxLine
from agentpost.delivery.placing import RecipientReceipt
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.delivery.publish import SendRequest
from agentpost.delivery.pull import LONGEST_WAIT_SECONDS
from agentpost.delivery.sent import SentTo, sent_message
from agentpost.edges.operations.calling import NOTICE, Caller, Desk, Done, Effect, Operation, require, unless_ended
from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId
from agentpost.protocol.payloads import Priority
from agentpost.protocol.routing import Rejected
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import LedgerState

__all__ = ["MAIL", "Outgoing", "request_of"]

_LONGEST_TTL_SECONDS: Final = 366 * 86_400
_MOST_LINES: Final = 100
_MOST_BODIES: Final = 10
_LONGEST_SUBJECT: Final = 120
# More than a conversation ever has; only to count it.
_ALL: Final = 100_000

EventIds = Annotated[tuple[str, ...], Meta(max_length=_MOST_BODIES)]
WaitSeconds = Annotated[float, Meta(ge=0, le=LONGEST_WAIT_SECONDS)]


class ReadArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """See what came for you: lines without bodies, the newest first; then the bodies that you ask for by `eventIds`.

    Reading never consumes: a message stays open until you answer it, or settle it with ansible_mark_read. With `claim`
    you get whole messages to work on, oldest first, which nobody else gets until you settle them or the lease is over.
    """

    event_ids: Annotated[
        EventIds, Meta(description="Messages whose bodies are wanted, which are marked as read; none gives lines.")
    ] = ()
    only_open: Annotated[bool, Meta(description="Only messages that have no outcome yet.")] = True
    limit: Annotated[int, Meta(ge=1, le=_MOST_LINES, description="How many lines, or claimed messages.")] = 20
    after: Annotated[int | None, Meta(description="Only what came after this inboxSeq, the oldest first.")] = None
    before: Annotated[int | None, Meta(description="Only what came before this inboxSeq: the next older lines.")] = None
    max_characters: Annotated[int, Meta(ge=100, le=1_000_000, description="Of each body.")] = 4_000
    claim: Annotated[bool, Meta(description="Take messages to work on.")] = False
    wait_seconds: Annotated[WaitSeconds, Meta(description="Wait so long if there is nothing.")] = 0


class Opened(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One message, with as much of its body as was asked for."""

    line: InboxLine
    content: Content
    characters_left_out: int = 0


class Messages(Struct, frozen=True, kw_only=True, rename="camel"):
    """`open` and `unread` count all that has no outcome yet, shown or not."""

    agent_id: str
    at: str
    open: int
    unread: int
    messages: list[InboxLine] = []
    bodies: list[Opened] = []
    claimed: list[Engagement] = []
    notice: str = NOTICE
    next: str = ""


class MarkArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Note that you have read messages; with `settle`, also what became of them, which their senders hear.

    What `failed`, or shall come again later (`retry`), was claimed before.
    """

    event_ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100, description="Messages of your inbox.")]
    settle: Annotated[ResultKind | None, Meta(description="`processed`: done, no reply needed.")] = None
    error: Annotated[str | None, Meta(description="Why it failed, or has to come again.")] = None


class Marked(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is read now, and what of it was settled by this call."""

    event_ids: tuple[str, ...]
    settled: tuple[str, ...] = ()


class Outgoing(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A message to send. Say who it is for with `toAgents`, or with `requiredCapabilities`."""

    to_agents: Annotated[tuple[str, ...], Meta(description='Agent ids; ["all"] for everyone.')] = ()
    required_capabilities: Annotated[tuple[str, ...], Meta(description="Instead of agents: what they can do.")] = ()
    subject: Annotated[str | None, Meta(description="In a few words.")] = None
    body: Annotated[str | None, Meta(description="What you want to say.")] = None
    context: Annotated[Any, Meta(description="Data that goes with it.")] = None
    priority: Priority = Priority.NORMAL
    expects_reply: bool = False
    ttl_seconds: Annotated[int | None, Meta(description="Not to be delivered after so long.")] = None
    corr_id: Annotated[str | None, Meta(description="The conversation; a new one without it.")] = None


class SendArgs(Outgoing, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Send a message to other agents, or answer one with `replyTo`. When this returns, it is durable.

    The answer says who is away and how much waits for them. With `waitSeconds` it also says what became of it, and what
    was replied.
    """

    reply_to: Annotated[str | None, Meta(description="The eventId of the message that this answers.")] = None
    wait_seconds: Annotated[WaitSeconds, Meta(description="Wait so long for the reply.")] = 0


class Sent(Struct, frozen=True, kw_only=True, rename="camel"):
    """`settled`: the message that this answers is done. `deliveries` are there if they were waited for."""

    event_id: EventId
    corr_id: str
    recipients: tuple[RecipientReceipt, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    settled: bool = False
    deliveries: list[SentTo] = []


async def _read(desk: Desk, caller: Caller, args: ReadArgs) -> Done:
    claimed: list[Engagement] = []
    lines: list[InboxLine] = []
    bodies: list[Opened] = []
    corr_id: str | None = caller.context
    if args.claim:
        claimed = await _claim(desk, caller, args)
    elif args.event_ids:
        found = [_expect_own(desk, caller, event_id) for event_id in args.event_ids]
        corr_id = found[0] if len(set(found)) == 1 else corr_id
        bodies = [await _open(desk, caller, event_id, args.max_characters) for event_id in args.event_ids]
    else:
        looking = desk.engine.pull.look(
            caller.agent_id, lambda: _lines(desk, caller, args), wait_seconds=caller.patience(args.wait_seconds)
        )
        lines = await unless_ended(looking, caller)
    open_, unread = _counts(desk, caller)
    return Done(
        Messages(
            agent_id=caller.agent_id,
            at=format_ms(desk.engine.clock.now_ms()),
            open=open_,
            unread=unread,
            messages=lines,
            bodies=bodies,
            claimed=claimed,
            next=_what_next(lines, bool(bodies or claimed), open_),
        ),
        corr_id,
    )


def _lines(desk: Desk, caller: Caller, args: ReadArgs) -> list[InboxLine]:
    is_newest_first = args.after is None
    lines = desk.engine.mailroom.inbox(
        caller.agent_id,
        after_inbox_seq=(args.before if is_newest_first else args.after) or 0,
        limit=args.limit,
        only_open=args.only_open,
        corr_id=caller.context,
        newest_first=is_newest_first,
    )
    return [replace(line, subject=line.subject and line.subject[:_LONGEST_SUBJECT]) for line in lines]


def _counts(desk: Desk, caller: Caller) -> tuple[int, int]:
    """How much is open, and how much of that is unread; within a context, of that alone."""
    store = desk.engine.store
    if caller.context is None:
        return store.backlog_size(caller.agent_id), store.backlog_size(caller.agent_id, unread_only=True)
    lines = desk.engine.mailroom.inbox(caller.agent_id, limit=_ALL, only_open=True, corr_id=caller.context)
    return len(lines), sum(not line.is_read for line in lines)


def _what_next(lines: list[InboxLine], has_bodies: bool, open_: int) -> str:
    if has_bodies:
        return "Answer with ansible_send_message and replyTo, or settle with ansible_mark_read."
    if not lines:
        return "There is nothing to do." if not open_ else f"{open_} are open; none of them is on this page."
    return "Read bodies with ansible_read_messages and eventIds; older lines with `before`."


async def _open(desk: Desk, caller: Caller, event_id: str, most: int) -> Opened:
    message = await desk.engine.mailroom.read(caller.agent_id, EventId(event_id))
    content, left_out = message.content, 0
    if content.body is not None:
        left_out = max(len(content.body) - most, 0)
        content = replace(content, body=content.body[:most])
    return Opened(line=message.line, content=content, characters_left_out=left_out)


async def _claim(desk: Desk, caller: Caller, args: ReadArgs) -> list[Engagement]:
    if caller.context is not None or args.event_ids:
        raise Refusal(
            Code.INVALID_FIELD, "what is claimed is the oldest mail, not one message or context", field="args.claim"
        )
    fetching = desk.engine.pull.fetch(caller.agent_id, args.limit, wait_seconds=caller.patience(args.wait_seconds))
    return await unless_ended(fetching, caller)


async def _mark(desk: Desk, caller: Caller, args: MarkArgs) -> Done:
    found = {_expect_own(desk, caller, event_id) for event_id in args.event_ids}
    settled: list[str] = []
    for event_id in args.event_ids:
        if args.settle is None:
            await desk.engine.mailroom.read(caller.agent_id, EventId(event_id))
        elif await _settle(desk, caller, EventId(event_id), Result(kind=args.settle, error=args.error)):
            settled.append(event_id)
    corr_id = found.pop() if len(found) == 1 else caller.context
    return Done(Marked(event_ids=args.event_ids, settled=tuple(settled)), corr_id)


async def _settle(desk: Desk, caller: Caller, event_id: EventId, result: Result) -> bool:
    entry = desk.engine.store.ledger_entry(event_id, caller.agent_id)
    is_claimed = entry is not None and entry.state is not LedgerState.QUEUED
    # What was only read can be done with, too; to fail or to come again it has to be with the agent.
    if result.kind is ResultKind.PROCESSED and not is_claimed:
        return await desk.engine.mailroom.dismiss(caller.agent_id, event_id)
    return await desk.engine.pull.settle(event_id, caller.agent_id, result)


async def _send(desk: Desk, caller: Caller, args: SendArgs) -> Done:
    if args.reply_to is not None:
        return await _reply(desk, caller, args, args.reply_to)
    if args.wait_seconds:
        # What became of it, and the words of the reply, are for who may ask for these by themselves.
        require(caller, STATUS_READ, MESSAGE_READ)
    receipt = await desk.engine.publisher.send(
        replace(
            request_of(desk.engine, caller.agent_id, args),
            corr_id=caller.conversation(args.corr_id),
            expects_reply=args.expects_reply or args.wait_seconds > 0,
        )
    )
    deliveries: list[SentTo] = []
    if args.wait_seconds:
        await unless_ended(_ended(desk.engine, receipt.event_id, caller.patience(args.wait_seconds)), caller)
        deliveries = sent_message(desk.engine.store, desk.engine.sealer, receipt.event_id).deliveries
    sent = Sent(
        event_id=receipt.event_id,
        corr_id=receipt.corr_id,
        recipients=receipt.recipients,
        rejected=receipt.rejected,
        deliveries=deliveries,
    )
    return Done(sent, receipt.corr_id)


async def _reply(desk: Desk, caller: Caller, args: SendArgs, reply_to: str) -> Done:
    if args.to_agents or args.required_capabilities:
        raise Refusal(Code.INVALID_FIELD, "a reply goes to who sent the message", field="args.replyTo")
    if args.wait_seconds:
        raise Refusal(Code.INVALID_FIELD, "a reply is not waited for", field="args.waitSeconds")
    _expect_own(desk, caller, reply_to)
    content = Content(subject=args.subject, body=args.body, context=args.context)
    answer = await desk.engine.mailroom.reply(caller.agent_id, EventId(reply_to), content)
    return Done(Sent(event_id=answer.event_id, corr_id=answer.corr_id, settled=answer.settled), answer.corr_id)


async def _ended(engine: Engine, event_id: EventId, wait_seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_seconds):
            await engine.outcomes.ended(event_id)


def request_of(engine: Engine, agent_id: str, message: Outgoing) -> SendRequest:
    """A message of an agent as the engine takes it."""
    return SendRequest(
        source_agent_id=agent_id,
        to_agents=message.to_agents,
        required_capabilities=message.required_capabilities,
        content=Content(subject=message.subject, body=message.body, context=message.context),
        priority=message.priority,
        expects_reply=message.expects_reply,
        expires_at=_expires_at(engine, message.ttl_seconds),
        corr_id=None if message.corr_id is None else CorrId(message.corr_id),
    )


def _expires_at(engine: Engine, ttl_seconds: int | None) -> str | None:
    """When a message with this time to live expires."""
    if ttl_seconds is None:
        return None
    if not 1 <= ttl_seconds <= _LONGEST_TTL_SECONDS:
        raise Refusal(
            Code.INVALID_FIELD, f"ttlSeconds must be from 1 to {_LONGEST_TTL_SECONDS}, a year", field="ttlSeconds"
        )
    return format_ms(engine.clock.now_ms() + ttl_seconds * 1000)


def _expect_own(desk: Desk, caller: Caller, event_id: str) -> str:
    """The conversation of a message in the caller's inbox. Whether another agent has it is not told."""
    item = desk.engine.store.inbox_item(EventId(event_id), caller.agent_id)
    corr_id = None if item is None else decode_event(item.raw).corr_id
    if corr_id is None or caller.context not in (None, corr_id):
        raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} is not in the inbox of {caller.agent_id}", field="eventIds")
    return corr_id


MAIL: Final[dict[str, Operation]] = {
    "ansible_read_messages": Operation("Read messages", ReadArgs, Messages, _read, Effect.LOOKS),
    "ansible_mark_read": Operation("Mark as read, or settle", MarkArgs, Marked, _mark),
    "ansible_send_message": Operation("Send a message", SendArgs, Sent, _send),
}
