"""The mail of one agent: reading, claiming, settling, sending and answering."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, to_builtins

from agentpost.delivery.engine import Engine
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.delivery.publish import SendRequest
from agentpost.delivery.pull import LONGEST_WAIT_SECONDS
from agentpost.edges.operations.calling import Caller, Desk, Done, Operation
from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.payloads import Priority
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import LedgerState
from agentpost.tasks import TaskOwner

__all__ = ["MAIL", "expires_at"]

_LONGEST_TTL_SECONDS: Final = 366 * 86_400
_MOST_LINES: Final = 100


class ReadArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Lines of the inbox; with `event_id` one whole message; with `claim` whole messages to work on, until settled."""

    event_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=_MOST_LINES)] = 20
    after: Annotated[int, Meta(ge=0)] = 0
    only_open: bool = True
    claim: bool = False
    wait_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_SECONDS)] = 0


class MarkArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A message was read; with `settle`, what became of it. One that `failed` or shall `retry` was claimed before."""

    event_id: str
    settle: ResultKind | None = None
    error: str | None = None


class SendArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A message to others, or with `reply_to` an answer to one in the inbox."""

    to_agents: tuple[str, ...] = ()
    required_capabilities: tuple[str, ...] = ()
    reply_to: str | None = None
    subject: str | None = None
    body: str | None = None
    context: Any = None
    priority: Priority = Priority.NORMAL
    expects_reply: bool = False
    ttl_seconds: int | None = None
    corr_id: str | None = None


async def _read(desk: Desk, caller: Caller, args: ReadArgs) -> Done:
    if args.claim:
        return Done({"claimed": to_builtins(await _claim(desk, caller, args))})
    if args.event_id is not None:
        corr_id = _expect_own(desk, caller, args.event_id)
        message = await desk.engine.mailroom.read(caller.agent_id, EventId(args.event_id), mark=False)
        return Done({"message": to_builtins(message)}, corr_id)
    lines = desk.engine.mailroom.inbox(
        caller.agent_id,
        after_inbox_seq=args.after,
        limit=args.limit,
        only_open=args.only_open,
        corr_id=caller.context,
    )
    return Done({"messages": to_builtins(lines)}, caller.context)


async def _claim(desk: Desk, caller: Caller, args: ReadArgs) -> list[Engagement]:
    if caller.context is not None or args.event_id is not None:
        raise Refusal(
            Code.INVALID_FIELD, "what is claimed is the oldest mail: not that of one context or id", field="args.claim"
        )
    wait_seconds = min(args.wait_seconds, max(0, caller.wait_seconds))
    fetching = desk.engine.pull.fetch(caller.agent_id, args.limit, wait_seconds=wait_seconds)
    return await _unless_ended(fetching, caller)


async def _unless_ended(work: Coroutine[Any, Any, list[Engagement]], caller: Caller) -> list[Engagement]:
    """What the work gives, unless the caller has to go first."""

    async def outcome() -> list[Engagement] | Refusal:
        try:
            return await work
        except Refusal as refusal:
            return refusal

    tasks = TaskOwner("operation")
    working = tasks.spawn(outcome(), name=f"wait for mail of {caller.agent_id}")
    ending = tasks.spawn(caller.ended.wait(), name=f"session of {caller.agent_id}")
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if caller.ended.is_set():
            raise Refusal(Code.INVALID_ACCESS_TOKEN, "the session was revoked while this call waited")
        found: list[Engagement] | Refusal = working.result()
    finally:
        await tasks.close()
    if isinstance(found, Refusal):
        raise found
    return found


async def _mark(desk: Desk, caller: Caller, args: MarkArgs) -> Done:
    corr_id, event_id = _expect_own(desk, caller, args.event_id), EventId(args.event_id)
    if args.settle is None:
        message = await desk.engine.mailroom.read(caller.agent_id, event_id, mark=True)
        return Done({"eventId": event_id, "isRead": message.line.is_read}, corr_id)
    settled = await _settle(desk, caller, event_id, Result(kind=args.settle, error=args.error))
    return Done({"eventId": event_id, "settled": settled}, corr_id)


async def _settle(desk: Desk, caller: Caller, event_id: EventId, result: Result) -> bool:
    entry = desk.engine.store.ledger_entry(event_id, caller.agent_id)
    is_claimed = entry is not None and entry.state is not LedgerState.QUEUED
    # What was only read can be done with, too; to fail or to come again it has to be with the agent.
    if result.kind is ResultKind.PROCESSED and not is_claimed:
        return await desk.engine.mailroom.dismiss(caller.agent_id, event_id)
    return await desk.engine.pull.settle(event_id, caller.agent_id, result)


async def _send(desk: Desk, caller: Caller, args: SendArgs) -> Done:
    content = Content(subject=args.subject, body=args.body, context=args.context)
    if args.reply_to is not None:
        if args.to_agents or args.required_capabilities:
            raise Refusal(Code.INVALID_FIELD, "a reply goes to who sent the message", field="args.replyTo")
        _expect_own(desk, caller, args.reply_to)
        answer = await desk.engine.mailroom.reply(caller.agent_id, EventId(args.reply_to), content)
        return Done(to_builtins(answer), answer.corr_id)
    receipt = await desk.engine.publisher.send(
        SendRequest(
            source_agent_id=caller.agent_id,
            to_agents=args.to_agents,
            required_capabilities=args.required_capabilities,
            content=content,
            priority=args.priority,
            expects_reply=args.expects_reply,
            expires_at=expires_at(desk.engine, args.ttl_seconds),
            corr_id=caller.conversation(args.corr_id),
        )
    )
    return Done(to_builtins(receipt), receipt.corr_id)


def expires_at(engine: Engine, ttl_seconds: int | None) -> str | None:
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
        raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} is not in the inbox of {caller.agent_id}", field="eventId")
    return corr_id


MAIL: Final[dict[str, Operation]] = {
    "ansible_read_messages": Operation(ReadArgs, _read),
    "ansible_mark_read": Operation(MarkArgs, _mark),
    "ansible_send_message": Operation(SendArgs, _send),
}
