"""JSON-RPC 2.0 on one connection of a mailbox, whether its messages travel as lines or as WebSocket frames.

Calls run side by side: one that waits for a message does not hold up an ack. Beside the calls of `mailbox.calls` there
are two of this connection: `subscribe` has messages pushed as they come, up to `credit` that are not settled yet, and
`unsubscribe` ends that. A pushed message is a notification `message`; it is acked like any other, also over another
connection. What a client names as `unheard` when it unsubscribes, or afterwards, is given back. What it was pushed
stays in flight when the connection ends: it may be at work on it, or it may have ended because of it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from agentpost.mailbox.asking import check_name
from agentpost.mailbox.calls import answer, error_of, handed_out, name_of
from agentpost.mailbox.interface import MAX_BATCH, ServedMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import WireCase, to_wire
from agentpost.tasks import TaskOwner

__all__ = ["MAX_REQUEST_BYTES", "RpcConnection", "give_back"]

_log = logging.getLogger(__name__)

# A batch of messages, each as large as it may be, would be far more: who sends such sends fewer at a time.
MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024
_MOST_AT_ONCE: Final = 64
_PUSH_WAIT_SECONDS: Final = 30.0
_AFTER_TROUBLE_SECONDS: Final = 5.0
_SETTLING: Final = ("ack", "ack_many", "nack")

_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_REFUSED: Final = -32000

# Whether there is still somebody who may read it.
Write = Callable[[bytes], Awaitable[bool]]


class RpcConnection:
    """Answers what comes in on one connection. `write` sends one message and may be called by several at once."""

    def __init__(self, mailbox: ServedMailbox, write: Write) -> None:
        self._mailbox = mailbox
        self._write = write
        self._tasks = TaskOwner("mailbox connection")
        self._free = asyncio.Semaphore(_MOST_AT_ONCE)
        self._subscriptions: dict[str, _Subscription] = {}
        self._ended: dict[str, _Subscription] = {}

    async def receive(self, data: bytes) -> None:
        """Take one message. Returns as soon as the next may be taken."""
        await self._free.acquire()
        self._tasks.spawn(self._answer(data), name="call")

    async def refuse(self, refusal: Refusal) -> None:
        """Say what is wrong with something that cannot be read, so that nobody knows which call it was."""
        await self._write(msgspec.json.encode(_error(None, _INVALID_REQUEST, refusal)))

    async def finish(self) -> None:
        """Answer what was asked, before an end that only the other side has come to."""
        await self._end_subscriptions()
        for _ in range(_MOST_AT_ONCE):
            await self._free.acquire()

    async def close(self) -> None:
        await self._tasks.close()
        await self._end_subscriptions()

    async def _end_subscriptions(self) -> None:
        for subscription in tuple(self._subscriptions.values()):
            await subscription.end()
        self._subscriptions.clear()

    async def _answer(self, data: bytes) -> None:
        call = _Call()
        is_heard = False
        try:
            response = await self._response(data, call)
            is_heard = response is not None and await self._write(msgspec.json.encode(response))
        finally:
            self._free.release()
            if not is_heard:
                await give_back(self._mailbox, call.session, call.handed_out)

    async def _response(self, data: bytes, call: "_Call") -> dict[str, Any] | None:
        try:
            request = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _error(None, _PARSE_ERROR, Refusal(Code.MALFORMED, "not one JSON object"))
        call_id = request.get("id")
        method, parameters = request.get("method"), request.get("params", {})
        if not isinstance(method, str) or not isinstance(parameters, dict) or isinstance(call_id, dict | list):
            return _error(None, _INVALID_REQUEST, Refusal(Code.MALFORMED, "not a JSON-RPC call with named params"))
        try:
            result = await self._call(method, cast("dict[str, Any]", parameters), call)
        except Refusal as refusal:
            response = _error(call_id, _REFUSED, refusal)
        else:
            response = {"jsonrpc": "2.0", "id": call_id, "result": result}
        # A call without an id does not want to hear of it.
        return response if "id" in request else None

    async def _call(self, method: str, parameters: dict[str, Any], call: "_Call") -> Any:
        case = _case(parameters.pop("case", WireCase.SNAKE.value))
        match method:
            case "subscribe":
                return await self._subscribe(parameters, case)
            case "unsubscribe":
                return await self._unsubscribe(parameters)
            case _:
                result = await answer(self._mailbox, method, parameters, case=case)
                call.session, call.handed_out = str(parameters.get("session")), handed_out(method, result)
                if name_of(method) in _SETTLING:
                    self._note_settled(parameters)
                return result

    async def _subscribe(self, parameters: Mapping[str, Any], case: WireCase) -> None:
        session, credit = parameters.get("session"), parameters.get("credit", 1)
        if not isinstance(session, str):
            raise Refusal(Code.INVALID_FIELD, "session must be text", field="session")
        check_name(session, "session")
        if not isinstance(credit, int) or not 1 <= credit <= MAX_BATCH:
            raise Refusal(Code.INVALID_FIELD, f"credit must be from 1 to {MAX_BATCH}", field="credit")
        if session in self._subscriptions:
            raise Refusal(Code.CONFLICT, "this connection has subscribed to that session already")
        subscription = _Subscription(self._mailbox, self._write, session, credit, case)
        self._subscriptions[session] = subscription
        subscription.task = self._tasks.spawn(subscription.run(), name="push")

    async def _unsubscribe(self, parameters: Mapping[str, Any]) -> None:
        session, unheard = str(parameters.get("session")), parameters.get("unheard")
        subscription = self._subscriptions.pop(session, None)
        if subscription is not None:
            await subscription.end()
            self._ended[session] = subscription
        elif session not in self._ended:
            raise Refusal(Code.NOT_FOUND, "this connection has not subscribed to that session")
        if isinstance(unheard, list):
            await self._ended.pop(session).give_back(cast("list[object]", unheard))

    def _note_settled(self, parameters: Mapping[str, Any]) -> None:
        subscription = self._subscriptions.get(str(parameters.get("session")))
        if subscription is not None:
            ids = parameters.get("msg_ids") or parameters.get("msgIds") or ()
            for msg_id in (parameters.get("msg_id") or parameters.get("msgId"), *ids):
                subscription.settled(msg_id)


class _Call(msgspec.Struct):
    """What a call has taken out of the mailbox: the attempt of each msg_id of a session."""

    session: str = ""
    handed_out: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])


class _Subscription:
    """Hands the messages of one session to one connection, as long as fewer than `credit` wait for their ack."""

    def __init__(self, mailbox: ServedMailbox, write: Write, session: str, credit: int, case: WireCase) -> None:
        self._mailbox = mailbox
        self._write = write
        self._session = session
        self._credit = credit
        self._case = case
        # What was pushed and is not settled yet: the attempt of each msg_id.
        self._open: dict[str, int] = {}
        self._has_room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def settled(self, msg_id: object) -> None:
        if isinstance(msg_id, str):
            self._open.pop(msg_id, None)
            self._has_room.set()

    async def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def give_back(self, unheard: Iterable[object]) -> None:
        """What of the pushed messages nobody has taken."""
        msg_ids = set(map(str, unheard))
        handed_out = {msg_id: attempt for msg_id, attempt in self._open.items() if msg_id in msg_ids}
        await give_back(self._mailbox, self._session, handed_out)

    async def run(self) -> None:
        while True:
            try:
                await self._push()
            except Refusal as refusal:
                # Of the mailbox itself, a full disk for example.
                _log.warning("a subscriber waits: %s", refusal.message)
                await asyncio.sleep(_AFTER_TROUBLE_SECONDS)

    async def _push(self) -> None:
        room = self._credit - len(self._open)
        if room <= 0:
            self._has_room.clear()
            await self._wait_for_room()
            return
        found = await self._mailbox.dequeue_many(self._session, room, wait_seconds=_PUSH_WAIT_SECONDS)
        unheard = {message.msg_id: message.attempt for message in found}
        try:
            for message in found:
                parameters = {"session": self._session, "message": to_wire(message, case=self._case)}
                notification = {"jsonrpc": "2.0", "method": "message", "params": parameters}
                self._open[message.msg_id] = message.attempt
                if not await self._write(msgspec.json.encode(notification)):
                    break
                del unheard[message.msg_id]
        finally:
            if unheard:
                await give_back(self._mailbox, self._session, unheard)
                self._open = {msg_id: attempt for msg_id, attempt in self._open.items() if msg_id not in unheard}

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(_PUSH_WAIT_SECONDS):
                await self._has_room.wait()
        except TimeoutError:
            # Whatever was acked over another connection, or timed out, is in flight here no more.
            in_flight = {each.msg_id for each in await self._mailbox.peek(self._session) if each.state == "in_flight"}
            self._open = {msg_id: attempt for msg_id, attempt in self._open.items() if msg_id in in_flight}


async def give_back(mailbox: ServedMailbox, session: str, handed_out: Mapping[str, int]) -> None:
    """Undo hand-overs if the mailbox can: what is not given back comes again when its time in flight is over."""
    if handed_out:
        with contextlib.suppress(Refusal):
            await mailbox.give_back(session, handed_out)


def _case(given: object) -> WireCase:
    try:
        return WireCase(given)
    except ValueError:
        raise Refusal(Code.INVALID_FIELD, "case must be snake or camel", field="case") from None


def _error(call_id: object, code: int, refusal: Refusal) -> dict[str, Any]:
    error = {"code": code, "message": refusal.message, "data": error_of(refusal)}
    return {"jsonrpc": "2.0", "id": call_id, "error": error}
