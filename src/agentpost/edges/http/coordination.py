"""Coordination over HTTP, for the operator of this machine (`/ansible/coordination`)."""

from collections.abc import Sequence
from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body

from agentpost.edges.operations import Desk
from agentpost.edges.operations import mesh as operations
from agentpost.edges.operations.mesh import Prefer, SetCoordination
from agentpost.gateway import Gateway
from agentpost.work.coordination import CoordinationView

__all__ = ["coordination_routes"]


def coordination_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    """The routes of one gateway's part in coordination."""

    @get("/ansible/coordination", sync_to_thread=False, summary="Show coordination", tags=["coordination"])
    def show() -> CoordinationView:
        """Who coordinates, who acts now, and what the latest sweeps came to."""
        return gateway.office.coordination.show()

    @post("/ansible/coordination", status_code=200, summary="Set the coordinator", tags=["coordination"])
    async def set_coordination(data: Annotated[SetCoordination, Body()]) -> CoordinationView:
        """Appoint a coordinator, or set the cadence. Only backbone nodes may."""
        return await operations.set_coordination(Desk.of(gateway), data)

    @post("/ansible/coordination/preference", status_code=200, summary="Say a preference", tags=["coordination"])
    async def prefer(data: Annotated[Prefer, Body()]) -> CoordinationView:
        """Whom this node would like to coordinate. It decides who acts while the coordinator is silent."""
        return operations.prefer(Desk.of(gateway), data)

    return [show, set_coordination, prefer]
