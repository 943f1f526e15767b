"""What belongs to A2A on the public port: cards for everybody, calls for agents outside the mesh with a session (EXT).

Whoever calls is authenticated here, before the SDK sees a byte; there is no second way in.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from agentpost.auth.external.scopes import TASK_READ
from agentpost.edges.a2a.exposing import Exposed, Exposures, has_sdk
from agentpost.edges.a2a.methods import rest_method, rpc_method
from agentpost.edges.a2a.visiting import VISIT, Visit
from agentpost.edges.http.calls import call_from, read_body, send_answer, send_refusal
from agentpost.edges.http.connections import proven
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal
from agentpost.tasks import TaskOwner

if TYPE_CHECKING:
    from agentpost.edges.a2a.service import A2aService

__all__ = ["A2A_PATH", "A2aDoor"]

A2A_PATH: Final = "/a2a/"
_CARD: Final = "/.well-known/agent-card.json"
_PLACE: Final = re.compile(r"/a2a/([^/]+)(/.*)?")
_MOST_BODY_BYTES: Final = 1_048_576
_CARD_SECONDS: Final = 60
_MOST_AT_ONCE: Final = 64


class A2aDoor:
    """In front of the public app; what is not for A2A goes through. Costs nothing while nobody is exposed."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._exposures = Exposures(gateway.store, gateway.engine.room, gateway.clock)
        self._service: A2aService | None = None
        self._loading = asyncio.Lock()
        # Calls and streams of each session at this moment.
        self._open: Counter[str] = Counter()
        self._tasks = TaskOwner("a2a door")

    def start(self) -> None:
        """Begin with what waits from before: somebody may have to be notified."""
        if has_sdk() and self._exposures.all():
            self._tasks.spawn(self._loaded(), name="load")

    async def close(self) -> None:
        await self._tasks.close()
        if self._service is not None:
            await self._service.parts.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (scope["path"] == _CARD or scope["path"].startswith(A2A_PATH)):
            await self._app(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send)
        except Refusal as refusal:
            await send_refusal(refusal, send)

    async def _serve(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        raw_path = scope["raw_path"].decode("latin-1")
        found = _PLACE.fullmatch(raw_path)
        if raw_path == _CARD or (found is not None and found[2] == _CARD):
            exposed = self._exposures.default() if found is None else self._exposures.get(unquote(found[1]))
            await self._card(_expect(exposed), scope, send)
            return
        if found is None:
            raise _nothing_here()
        await self._call(_expect(self._exposures.get(unquote(found[1]))), found[2] or "", scope, receive, send)

    async def _card(self, exposed: Exposed, scope: HTTPScope, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Refusal(Code.NOT_FOUND, "a card can only be read", hint="GET is the method of this path.")
        body = (await self._loaded()).card(exposed, base_url=self._base_url(scope))
        headers = {"cache-control": f"max-age={_CARD_SECONDS}", "etag": f'"{sha256(body).hexdigest()[:32]}"'}
        await send_answer(send, body, headers=headers, with_body=scope["method"] == "GET")

    async def _call(self, exposed: Exposed, rest: str, scope: HTTPScope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, most_bytes=_MOST_BODY_BYTES)
        is_rpc = rest == "" and scope["method"] == "POST"
        method = rpc_method(body) if is_rpc else rest_method(scope["method"], rest)
        if method is None:
            raise _nothing_here()
        external = self._gateway.external
        admitted = await external.admit(call_from(self._gateway, scope, body), operation=f"a2a.{method}")
        session_id = admitted.session.session_id
        proven(scope, f"session {session_id}")
        with external.within(admitted.session) as ended, self._counted(session_id):
            visit = Visit(admitted=admitted, exposed=exposed, ended=ended)
            try:
                if self._open[session_id] > _MOST_AT_ONCE:
                    raise Refusal(
                        Code.RATE_LIMITED,
                        f"this session has {_MOST_AT_ONCE} calls open already",
                        hint="End a stream, or wait for one of them to end.",
                    )
                if TASK_READ not in admitted.scopes:
                    # Whatever is asked for, a task is shown.
                    raise Refusal(Code.SCOPE_DENIED, f"A2A needs the scope {TASK_READ} as well", field="scope")
                inner = cast(Any, {**cast(dict[str, Any], scope), VISIT: visit})
                await (await self._loaded()).app(inner, _replayed(body, receive), send)
            except Refusal as refusal:
                visit.refusal = refusal
                raise
            finally:
                # Also if the caller breaks it off, which ends the task that runs here.
                told = external.answered(admitted, refusal=visit.refusal, corr_id=visit.corr_id)
                await asyncio.shield(self._tasks.spawn(told, name="audit"))

    @contextmanager
    def _counted(self, session_id: str) -> Generator[None]:
        self._open[session_id] += 1
        try:
            yield
        finally:
            self._open[session_id] -= 1
            if not self._open[session_id]:
                del self._open[session_id]

    async def _loaded(self) -> "A2aService":
        """The SDK, and what stands on it. It takes a moment to load, and nobody else has to wait for that."""
        async with self._loading:
            if self._service is None:
                module = await asyncio.to_thread(import_module, "agentpost.edges.a2a.service")
                service: A2aService = module.A2aService(self._gateway, self._exposures)
                service.parts.start()
                self._service = service
            return self._service

    def _base_url(self, scope: HTTPScope) -> str:
        """How the caller reaches this gateway, as far as that is known without believing the request."""
        if self._gateway.settings.public_url is not None:
            return self._gateway.settings.public_url
        server = scope["server"]
        if server is None or server[1] is None:
            return self._gateway.url
        return f"http://[{server[0]}]:{server[1]}" if ":" in server[0] else f"http://{server[0]}:{server[1]}"


def _expect(exposed: Exposed | None) -> Exposed:
    if exposed is None or not has_sdk():
        raise _nothing_here()
    return exposed


def _nothing_here() -> Refusal:
    return Refusal(Code.NOT_FOUND, "there is nothing for A2A clients at this path", hint="Check the path.")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The request once more, whose body was read to check its proof."""
    waiting: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again
