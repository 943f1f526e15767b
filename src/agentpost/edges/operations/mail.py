"""The mail of one agent: reading, claiming, settling, sending and answering. Reading never consumes."""

import asyncio
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from agentpost.auth.external.scopes import MESSAGE_READ, STATUS_READ
from agentpost.delivery.engine import Engine
from agentpost.delivery.hand_over import HandOver
from agentpost.delivery.mailroom import Answered, InboxLine, answered_before
from agentpost.delivery.ports import Content, Result, ResultKind
from agentpost.delivery.publish import Receipt, SendRequest, receipt_of
from agentpost.delivery.sealing import MOST_ANSWER_BYTES
from agentpost.delivery.sent import SentTo, sent_message
from agentpost.edges.operations.calling import Caller, Desk, Done, Effect, Operation, require, unless_ended
from agentpost.edges.operations.messages import MarkArgs, Marked, Messages, Opened, Outgoing, ReadArgs, SendArgs, Sent
from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.headers import parse_headers, with_headers
from agentpost.protocol.ids import CorrId, EventId
from agentpost.protocol.payloads import Priority
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import LedgerState

__all__ = ["MAIL", "mail_counts", "reply_once", "request_of", "send_once"]

_LONGEST_TTL_SECONDS: Final = 366 * 86_400
_LONGEST_SUBJECT: Final = 120


async def _read(desk: Desk, caller: Caller, args: ReadArgs) -> Done:
    handed: HandOver | None = None
    lines: list[InboxLine] = []
    bodies: list[Opened] = []
    corr_id: str | None = caller.context
    if args.claim:
        handed = await _claim(desk, caller, args)
    elif args.event_ids:
        found = [_expect_own(desk, caller, event_id) for event_id in args.event_ids]
        corr_id = found[0] if len(set(found)) == 1 else corr_id
        bodies = await _bodies(desk, caller, args)
    else:
        looking = desk.engine.pull.look(
            caller.agent_id, lambda: _lines(desk, caller, args), wait_seconds=caller.patience(args.wait_seconds)
        )
        lines = await unless_ended(looking, caller)
    claimed = [] if handed is None else handed.engagements
    open_, unread = mail_counts(desk, caller)
    return Done(
        Messages(
            agent_id=caller.agent_id,
            at=format_ms(desk.engine.clock.now_ms()),
            open=open_,
            unread=unread,
            messages=lines,
            bodies=bodies,
            claimed=claimed,
            next=_what_next(lines, args.event_ids[len(bodies) :], open_, has_bodies=bool(bodies), claimed=len(claimed)),
        ),
        corr_id,
        handed,
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


def mail_counts(desk: Desk, caller: Caller) -> tuple[int, int]:
    """How much is open, and how much of that is unread; within a context, of that alone (EXT-6)."""
    store = desk.engine.store
    if caller.context is None:
        return store.backlog_size(caller.agent_id), store.backlog_size(caller.agent_id, unread_only=True)
    entries = [item.entry for item in store.inbox_by_corr(caller.context) if item.entry.to_agent_id == caller.agent_id]
    open_ = [entry for entry in entries if entry.state is not LedgerState.SETTLED]
    return len(open_), sum(entry.read_at_ms is None for entry in open_)


def _what_next(lines: list[InboxLine], left_out: tuple[str, ...], open_: int, *, has_bodies: bool, claimed: int) -> str:
    if has_bodies or claimed:
        more = f" Ask again for {', '.join(left_out)}: there was no room left." if has_bodies and left_out else ""
        more = f" There may be more: claim again, {open_} are open in all." if claimed and open_ > claimed else more
        return f"Answer with ansible_send_message and replyTo, or settle with ansible_mark_read.{more}"
    if not lines:
        return "There is nothing to do." if not open_ else f"{open_} are open; none of them is on this page."
    return "Read bodies with ansible_read_messages and eventIds; older lines with `before`."


async def _bodies(desk: Desk, caller: Caller, args: ReadArgs) -> list[Opened]:
    """The messages that were asked for, as many as an answer has room for, one at least. Others are not even read."""
    bodies: list[Opened] = []
    room_bytes = MOST_ANSWER_BYTES
    for event_id in args.event_ids:
        if room_bytes <= 0:
            break
        bodies.append(await _open(desk, caller, event_id, args.max_characters))
        room_bytes -= len(msgspec.json.encode(bodies[-1]))
    return bodies


async def _open(desk: Desk, caller: Caller, event_id: str, most: int) -> Opened:
    message = await desk.engine.mailroom.read(caller.agent_id, EventId(event_id))
    content, left_out = message.content, 0
    if content.body is not None:
        left_out = max(len(content.body) - most, 0)
        content = replace(content, body=content.body[:most])
    return Opened(line=message.line, content=content, characters_left_out=left_out)


async def _claim(desk: Desk, caller: Caller, args: ReadArgs) -> HandOver:
    if caller.context is not None or args.event_ids:
        raise Refusal(
            Code.INVALID_FIELD, "what is claimed is the oldest mail, not one message or context", field="args.claim"
        )
    handing = desk.engine.pull.hand_over(caller.agent_id, args.limit, wait_seconds=caller.patience(args.wait_seconds))
    return await unless_ended(handing, caller, undo=HandOver.connection_lost)


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
    corr_id = caller.conversation(args.corr_id)
    receipt = await send_once(
        desk.engine,
        args,
        replace(
            request_of(desk.engine, caller.agent_id, args),
            corr_id=corr_id,
            expects_reply=args.expects_reply or args.wait_seconds > 0,
        ),
        key=args.idempotency_key or caller.idempotency_key,
    )
    deliveries: list[SentTo] = []
    if args.wait_seconds:
        await unless_ended(_ended(desk.engine, receipt.event_id, caller.patience(args.wait_seconds)), caller)
        engine = desk.engine
        found = sent_message(engine.store, engine.sealer, receipt.event_id, now_ms=engine.clock.now_ms())
        deliveries = found.deliveries
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
    body = with_headers(args.body, kind=args.kind, thread=args.thread)
    content = Content(subject=args.subject, body=body, context=args.context)
    key = args.idempotency_key or caller.idempotency_key
    answer = await reply_once(desk.engine, caller.agent_id, EventId(reply_to), content, key=key)
    return Done(Sent(event_id=answer.event_id, corr_id=answer.corr_id, settled=answer.settled), answer.corr_id)


async def _ended(engine: Engine, event_id: EventId, wait_seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_seconds):
            await engine.outcomes.ended(event_id)


async def send_once(engine: Engine, message: Outgoing, request: SendRequest, *, key: str | None) -> Receipt:
    """Send a message; the receipt of before, if the agent has sent this message with this idempotency key."""
    said: dict[str, Any] = {name: getattr(message, name) for name in Outgoing.__struct_fields__}
    keyed = engine.keys.of(request.source_agent_id, key, "send", said | {"corr_id": request.corr_id})
    return await engine.keys.once(keyed, lambda: engine.publisher.send(request, keyed=keyed), again=receipt_of)


async def reply_once(
    engine: Engine, agent_id: str, event_id: EventId, content: Content, *, key: str | None
) -> Answered:
    """Answer a message; the answer of before, if the agent has said this reply with this idempotency key."""
    keyed = engine.keys.of(agent_id, key, "reply", (event_id, content))
    return await engine.keys.once(
        keyed, lambda: engine.mailroom.reply(agent_id, event_id, content, keyed=keyed), again=answered_before
    )


def request_of(engine: Engine, agent_id: str, message: Outgoing) -> SendRequest:
    """A message of an agent as the engine takes it. A priority that its own headers name counts, too (OPS-7)."""
    body = with_headers(message.body, kind=message.kind, thread=message.thread)
    priority = message.priority
    if priority is Priority.NORMAL and body:
        priority = parse_headers(body).priority or priority
    return SendRequest(
        source_agent_id=agent_id,
        to_agents=message.to_agents,
        required_capabilities=message.required_capabilities,
        content=Content(subject=message.subject, body=body, context=message.context),
        priority=priority,
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
