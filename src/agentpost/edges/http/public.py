"""The public door: what any machine that reaches the port may ask."""

from typing import Any, Final

from litestar import Litestar, MediaType, Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import Receive, Scope, Send

from agentpost.edges.a2a.door import A2A_PATH, A2aDoor
from agentpost.edges.http.errors import EXCEPTION_HANDLERS
from agentpost.edges.http.external import AgentDoor, external_routes
from agentpost.edges.http.joining import joining_routes
from agentpost.edges.http.mcp import mcp_routes
from agentpost.edges.http.openapi import openapi_config
from agentpost.edges.http.room_gate import RoomGate
from agentpost.gateway import Gateway, Phase

__all__ = ["PublicDoor", "public_site"]

_MAX_BODY_BYTES: Final = 1_048_576 + 65_536


class PublicDoor:
    """The ASGI application on the TCP port: the room's gate in front of everything. `a2a` has work of its own."""

    def __init__(self, gateway: Gateway) -> None:
        self.a2a = A2aDoor(public_site(gateway), gateway)
        self._gate = RoomGate(AgentDoor(self.a2a, gateway, also=(A2A_PATH,)), gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gate(scope, receive, send)


def public_site(gateway: Gateway) -> Litestar:
    """What is behind the gates, and describes itself."""

    @get("/health/live", sync_to_thread=False, summary="The process runs", tags=["health"])
    def live() -> dict[str, str]:
        return {"status": "live"}

    @get(
        "/health/ready",
        sync_to_thread=False,
        summary="The gateway takes work",
        tags=["health"],
        responses={
            503: ResponseSpec(dict[str, str], generate_examples=False, description="It starts, stops or failed.")
        },
    )
    def ready() -> Response[dict[str, Any]]:
        is_ready = gateway.phase is Phase.READY
        return Response(
            {"status": gateway.phase.value}, status_code=200 if is_ready else 503, media_type=MediaType.JSON
        )

    return Litestar(
        route_handlers=[live, ready, *joining_routes(gateway), *external_routes(gateway), *mcp_routes(gateway)],
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=_MAX_BODY_BYTES,
        openapi_config=openapi_config("agentpost, the public door", is_public=True),
        logging_config=None,
    )
