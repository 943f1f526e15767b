"""The room and the links over WebSocket, behind a gate: no good ticket, an HTTP answer and no connection (AUTH-1).

The ticket travels in `Authorization: Bearer …` or, for clients that cannot set headers, as the subprotocol
`ticket.<ticket>` beside `ansible-yjs`. Never in the URL, which gets logged (AUTH-9).
"""

import asyncio
import contextlib
import itertools
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from agentpost.auth.limits import RateLimited
from agentpost.auth.wire import LINK_ROOM, Entry
from agentpost.edges.http.connections import proven
from agentpost.edges.link.serve import LINK_PATH, LinkDoor
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal
from agentpost.room.sync import RoomSession
from agentpost.tasks import TaskOwner

__all__ = ["RoomGate"]

SUBPROTOCOL: Final = "ansible-yjs"
_ROOM_PATH: Final = "/ansible/room/"
_TICKET_PREFIX: Final = "ticket."
_POLICY_VIOLATION: Final = 1008
_GOING_AWAY: Final = 1001
# One that was lost may linger beside the one that took its place. Each may hold a message that is not at its end.
_MOST_CONNECTIONS_OF_A_NODE: Final = 3
_opened = itertools.count()


class RoomGate:
    """Stands in front of the HTTP application and takes all WebSockets."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        await receive()  # the wish to connect
        try:
            entry = await self._redeem(scope)
            proven(scope, f"node {entry.node_id}", is_peer=True)
        except Refusal as refusal:
            await _deny(send, refusal)
            return
        # Nothing is awaited between the ticket and this, so that a revocation finds the connection.
        if scope["path"] == LINK_PATH and self._gateway.links is not None:
            door = LinkDoor(self._gateway, self._gateway.links, entry)
            try:
                await door.serve(receive, send)
            finally:
                door.close()
            return
        connection = RoomConnection(self._gateway, entry)
        try:
            await connection.serve(scope, receive, send)
        finally:
            connection.close()

    async def _redeem(self, scope: Scope) -> Entry:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        room = self._room_at(scope["path"])
        if b"origin" in headers:
            raise Refusal(Code.ROOM_DENIED, "the room is not for pages in a browser")
        ticket = _ticket(headers)
        if ticket is None:
            raise Refusal(
                Code.INVALID_TICKET,
                "no ticket came with the request",
                hint="Send it as `Authorization: Bearer …`, never in the URL.",
            )
        client = scope["client"]
        address = client[0] if client else "unknown"
        return await self._gateway.joining.redeem(ticket, room=room, address=address)

    def _room_at(self, path: str) -> str:
        """What a ticket has to be for, to be let in at this path."""
        if path == LINK_PATH:
            if self._gateway.links is None:
                raise Refusal(Code.UNAVAILABLE, "this gateway takes no links")
            return LINK_ROOM
        room = unquote(path).removeprefix(_ROOM_PATH)
        # A ticket for links opens no room.
        if not unquote(path).startswith(_ROOM_PATH) or room == LINK_ROOM:
            raise Refusal(Code.NOT_FOUND, "there is no WebSocket at this path", hint="The room is at /ansible/room/….")
        return room


class RoomConnection:
    """One peer on one WebSocket, known to the gateway for as long as it lasts."""

    def __init__(self, gateway: Gateway, entry: Entry) -> None:
        self._gateway = gateway
        self.node_id = entry.node_id
        self._wake = asyncio.Event()
        self._cut: Refusal | None = None
        gateway.admit(entry)
        others = [each for each in gateway.connections if isinstance(each, RoomConnection)]
        own = sorted((each for each in others if each.node_id == entry.node_id), key=lambda each: each.opened_at)
        for earlier in own[: max(len(own) + 1 - _MOST_CONNECTIONS_OF_A_NODE, 0)]:
            earlier.cut(Refusal(Code.UNAVAILABLE, "a later connection of this node took its place"))
        self.opened_at = next(_opened)
        self._session: RoomSession = gateway.host.hub.open(entry.node_id, on_wake=self._wake.set)
        gateway.connections.add(self)

    def cut(self, refusal: Refusal) -> None:
        """End the connection as soon as the loop comes round."""
        self._cut = refusal
        self._session.close()
        self._wake.set()

    def close(self) -> None:
        self._session.close()
        self._gateway.connections.discard(self)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        offered: list[str] = cast(dict[str, Any], scope).get("subprotocols", [])
        chosen = SUBPROTOCOL if SUBPROTOCOL in offered else None
        await send({"type": "websocket.accept", "subprotocol": chosen, "headers": []})
        lock = asyncio.Lock()
        tasks = TaskOwner("room-connection")
        reader = tasks.spawn(self._read(receive, send, lock), name=f"read {self.node_id}")
        writer = tasks.spawn(self._write(send, lock), name=f"write {self.node_id}")
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.close()
        refusal = self._cut or self._session.refusal
        if self._session.audit is not None:
            await self._gateway.store.record_audit([self._session.audit])
        code = _GOING_AWAY if refusal is None or refusal.code is Code.UNAVAILABLE else _POLICY_VIOLATION
        # The peer may have gone already, and then there is nobody to tell.
        with contextlib.suppress(RuntimeError, OSError):
            await send({"type": "websocket.close", "code": code, "reason": refusal.code.value if refusal else ""})

    async def _read(self, receive: Receive, send: Send, lock: asyncio.Lock) -> None:
        # A peer that has gone while it was written to is no failure.
        with contextlib.suppress(OSError):
            await self._converse(receive, send, lock)

    async def _converse(self, receive: Receive, send: Send, lock: asyncio.Lock) -> None:
        async with lock:
            await _send_all(send, self._session.start())
        while (message := await receive())["type"] == "websocket.receive":
            frame = message.get("bytes")
            if frame is None:
                self._cut = Refusal(Code.MALFORMED, "y-protocols frames are binary")
                return
            try:
                answers = self._session.receive(frame)
            except Refusal:
                return
            async with lock:
                await _send_all(send, answers)
            # A peer beyond its budget is read more slowly, and TCP tells it.
            await asyncio.sleep(self._session.pause_seconds)

    async def _write(self, send: Send, lock: asyncio.Lock) -> None:
        with contextlib.suppress(OSError):
            while self._cut is None and self._session.refusal is None:
                await self._wake.wait()
                self._wake.clear()
                async with lock:
                    await _send_all(send, self._session.frames_to_send())


async def _send_all(send: Send, frames: list[bytes]) -> None:
    for frame in frames:
        await send({"type": "websocket.send", "bytes": frame, "text": None})


async def _deny(send: Send, refusal: Refusal) -> None:
    """The refusal as an HTTP response: no 101 was ever sent."""
    headers = [(b"content-type", b"application/json")]
    if isinstance(refusal, RateLimited):
        headers.append((b"retry-after", str(refusal.retry_after_seconds).encode()))
    start: Any = {"type": "websocket.http.response.start", "status": refusal.status, "headers": headers}
    await send(start)
    body: Any = {"type": "websocket.http.response.body", "body": msgspec.json.encode(refusal.to_wire())}
    await send(body)


def _ticket(headers: dict[bytes, str]) -> str | None:
    kind, _, ticket = headers.get(b"authorization", "").partition(" ")
    if kind.lower() == "bearer" and ticket:
        return ticket.strip()
    for protocol in headers.get(b"sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(_TICKET_PREFIX):
            return protocol.strip().removeprefix(_TICKET_PREFIX)
    return None
