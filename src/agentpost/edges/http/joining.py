"""The handshake over HTTP: a challenge to sign, and a ticket for an invite or a known key (AUTH-3)."""

from typing import Annotated, Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body

from agentpost.auth.wire import Challenge, ExchangeRequest, Grant
from agentpost.gateway import Gateway

__all__ = ["joining_routes"]

AnyRequest = Request[Any, Any, Any]


class ChallengeRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    node_id: str


def joining_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    @post(
        "/ansible/auth/challenge",
        status_code=200,
        sync_to_thread=False,
        summary="What a node signs to prove its key",
        tags=["joining"],
    )
    def challenge(data: Annotated[ChallengeRequest, Body()], request: AnyRequest) -> Challenge:
        return gateway.joining.challenge(data.node_id, address=_address(request))

    @post(
        "/ansible/auth/exchange", status_code=200, summary="An invite, or a known key, for a ticket", tags=["joining"]
    )
    async def exchange(data: Annotated[ExchangeRequest, Body()], request: AnyRequest) -> Grant:
        port = request.client.port if request.client else 0
        return await gateway.joining.exchange(data, address=_address(request), port=port)

    return [challenge, exchange]


def _address(request: AnyRequest) -> str:
    return request.client.host if request.client else "unknown"
