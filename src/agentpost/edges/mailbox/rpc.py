"""JSON-RPC 2.0 on one connection of a mailbox, whether its messages travel as lines or as WebSocket frames.

Calls run side by side: one that waits for a message does not hold up an ack. Beside the calls of `mailbox.calls` there
are two of this connection: `subscribe` has messages pushed as they come, up to `credit` that are not acked yet, and
`unsubscribe` ends that. A pushed message is a notification `message`; it is acked like any other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

import msgspec

from agentpost.mailbox.calls import answer, error_of
from agentpost.mailbox.interface import MAX_BATCH, MailboxProtocol
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import WireCase, to_wire
from agentpost.tasks import TaskOwner

__all__ = ["MAX_REQUEST_BYTES", "RpcConnection"]

# A batch of messages, each as large as it may be, would be far more: who sends such sends fewer at a time.
MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024
_MOST_AT_ONCE: Final = 64
_PUSH_WAIT_SECONDS: Final = 30.0

_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_REFUSED: Final = -32000

Write = Callable[[bytes], Awaitable[None]]


class RpcConnection:
    """Answers what comes in on one connection. `write` sends one message and may be called by several at once."""

    def __init__(self, mailbox: MailboxProtocol, write: Write) -> None:
        self._mailbox = mailbox
        self._write = write
        self._tasks = TaskOwner("mailbox connection")
        self._free = asyncio.Semaphore(_MOST_AT_ONCE)
        self._subscriptions: dict[str, _Subscription] = {}

    async def receive(self, data: bytes) -> None:
        """Take one message. Returns as soon as the next may be taken."""
        await self._free.acquire()
        self._tasks.spawn(self._answer(data), name="call")

    async def refuse(self, refusal: Refusal) -> None:
        """Say what is wrong with something that cannot be read, so that nobody knows which call it was."""
        await self._write(msgspec.json.encode(_error(None, _INVALID_REQUEST, refusal)))

    async def close(self) -> None:
        await self._tasks.close()

    async def _answer(self, data: bytes) -> None:
        try:
            response = await self._response(data)
        finally:
            self._free.release()
        if response is not None:
            await self._write(msgspec.json.encode(response))

    async def _response(self, data: bytes) -> dict[str, Any] | None:
        try:
            request = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _error(None, _PARSE_ERROR, Refusal(Code.MALFORMED, "not one JSON object"))
        call_id = request.get("id")
        method, parameters = request.get("method"), request.get("params", {})
        if not isinstance(method, str) or not isinstance(parameters, dict) or isinstance(call_id, dict | list):
            return _error(None, _INVALID_REQUEST, Refusal(Code.MALFORMED, "not a JSON-RPC call with named params"))
        try:
            result = await self._call(method, cast("dict[str, Any]", parameters))
        except Refusal as refusal:
            return _error(call_id, _REFUSED, refusal)
        # A call without an id does not want to hear of it.
        return None if "id" not in request else {"jsonrpc": "2.0", "id": call_id, "result": result}

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        case = _case(parameters.pop("case", WireCase.SNAKE.value))
        match method:
            case "subscribe":
                return await self._subscribe(parameters, case)
            case "unsubscribe":
                return await self._unsubscribe(parameters)
            case _:
                result = await answer(self._mailbox, method, parameters, case=case)
                self._note_settled(parameters)
                return result

    async def _subscribe(self, parameters: Mapping[str, Any], case: WireCase) -> None:
        session, credit = parameters.get("session"), parameters.get("credit", 1)
        if not isinstance(session, str) or not session:
            raise Refusal(Code.INVALID_FIELD, "session must be text that is not empty", field="session")
        if not isinstance(credit, int) or not 1 <= credit <= MAX_BATCH:
            raise Refusal(Code.INVALID_FIELD, f"credit must be from 1 to {MAX_BATCH}", field="credit")
        if session in self._subscriptions:
            raise Refusal(Code.CONFLICT, "this connection has subscribed to that session already")
        subscription = _Subscription(self._mailbox, self._write, session, credit, case)
        self._subscriptions[session] = subscription
        subscription.task = self._tasks.spawn(subscription.run(), name="push")

    async def _unsubscribe(self, parameters: Mapping[str, Any]) -> None:
        subscription = self._subscriptions.pop(str(parameters.get("session")), None)
        if subscription is None or subscription.task is None:
            raise Refusal(Code.NOT_FOUND, "this connection has not subscribed to that session")
        subscription.task.cancel()
        await asyncio.wait([subscription.task])

    def _note_settled(self, parameters: Mapping[str, Any]) -> None:
        subscription = self._subscriptions.get(str(parameters.get("session")))
        if subscription is not None:
            ids = parameters.get("msg_ids") or parameters.get("msgIds") or ()
            for msg_id in (parameters.get("msg_id") or parameters.get("msgId"), *ids):
                subscription.settled(msg_id)


class _Subscription:
    """Hands the messages of one session to one connection, as long as fewer than `credit` wait for their ack."""

    def __init__(self, mailbox: MailboxProtocol, write: Write, session: str, credit: int, case: WireCase) -> None:
        self._mailbox = mailbox
        self._write = write
        self._session = session
        self._credit = credit
        self._case = case
        self._open: set[str] = set()
        self._has_room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def settled(self, msg_id: object) -> None:
        if isinstance(msg_id, str):
            self._open.discard(msg_id)
            self._has_room.set()

    async def run(self) -> None:
        while True:
            room = self._credit - len(self._open)
            if room <= 0:
                self._has_room.clear()
                await self._wait_for_room()
                continue
            found = await self._mailbox.dequeue_many(self._session, room, wait_seconds=_PUSH_WAIT_SECONDS)
            for message in found:
                self._open.add(message.msg_id)
                parameters = {"session": self._session, "message": to_wire(message, case=self._case)}
                await self._write(msgspec.json.encode({"jsonrpc": "2.0", "method": "message", "params": parameters}))

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(_PUSH_WAIT_SECONDS):
                await self._has_room.wait()
        except TimeoutError:
            # Whatever was acked over another connection, or timed out, is in flight here no more.
            in_flight = {each.msg_id for each in await self._mailbox.peek(self._session) if each.state == "in_flight"}
            self._open &= in_flight


def _case(given: object) -> WireCase:
    try:
        return WireCase(given)
    except ValueError:
        raise Refusal(Code.INVALID_FIELD, "case must be snake or camel", field="case") from None


def _error(call_id: object, code: int, refusal: Refusal) -> dict[str, Any]:
    error = {"code": code, "message": refusal.message, "data": error_of(refusal)}
    return {"jsonrpc": "2.0", "id": call_id, "error": error}
