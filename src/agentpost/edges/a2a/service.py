"""A2A for one gateway with the official SDK: its bindings, in front of our handler. Loaded when it is needed."""

import logging
from typing import Any
from urllib.parse import quote

import msgspec
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from agentpost.edges.a2a.cards import agent_card
from agentpost.edges.a2a.exposing import Exposed, Exposures
from agentpost.edges.a2a.handler import Handler
from agentpost.edges.a2a.parts import Parts
from agentpost.edges.a2a.visiting import VISIT
from agentpost.gateway import Gateway

__all__ = ["A2aService"]

_PREFIX = "/a2a"


class A2aService:
    """`app` serves the calls that the door lets through."""

    def __init__(self, gateway: Gateway, exposures: Exposures) -> None:
        # The SDK logs what it was sent, with tracebacks. What is refused is in the answer and in the audit log.
        logging.getLogger("a2a").setLevel(logging.CRITICAL)
        self._node_id = gateway.settings.node_id
        self._exposures = exposures
        self.parts = Parts(gateway, exposures)
        handler, visits, place = Handler(self.parts), _Visits(), f"{_PREFIX}/{{agent}}"
        rest = create_rest_routes(handler, context_builder=visits, path_prefix=place)
        self.app: Any = Starlette(
            routes=[
                *create_jsonrpc_routes(handler, rpc_url=place, context_builder=visits),
                # Without the paths for tenants: an agent has a place of its own here.
                *(route for route in rest if isinstance(route, Route)),
            ]
        )

    def card(self, exposed: Exposed, *, base_url: str) -> bytes:
        """The card of an agent, as JSON."""
        path = f"{_PREFIX}/{quote(exposed.agent_id, safe='')}"
        skills = self._exposures.skills_of(exposed)
        card = agent_card(exposed, skills, base_url=base_url, path=path, node_id=self._node_id)
        return msgspec.json.encode(MessageToDict(card))


class _Visits(DefaultServerCallContextBuilder):
    """Hands the visit on that the door made."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[VISIT] = request.scope[VISIT]
        return context
