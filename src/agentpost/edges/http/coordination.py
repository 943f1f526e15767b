"""Coordination over HTTP, for the operator of this machine (`/ansible/coordination`)."""

from collections.abc import Sequence
from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body
from msgspec import Struct

from agentpost.gateway import Gateway
from agentpost.protocol.coordination import Preference
from agentpost.protocol.errors import Code, Refusal
from agentpost.work.coordination import CoordinationView

__all__ = ["coordination_routes"]


class SetCoordination(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Who coordinates, how often it sweeps. To put a node in the place of another takes `confirmLastResort`."""

    coordinator: str | None = None
    sweep_every_seconds: int | None = None
    confirm_last_resort: bool = False


class Prefer(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What this node would like."""

    desired_coordinator: str | None = None
    desired_sweep_every_seconds: int | None = None


def coordination_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    """The routes of one gateway's part in coordination."""

    @get("/ansible/coordination", sync_to_thread=False, summary="Show coordination", tags=["coordination"])
    def show() -> CoordinationView:
        """Who coordinates, who acts now, and what the latest sweeps came to."""
        return gateway.office.coordination.show()

    @post("/ansible/coordination", status_code=200, summary="Set the coordinator", tags=["coordination"])
    async def set_coordination(data: Annotated[SetCoordination, Body()]) -> CoordinationView:
        """Appoint a coordinator, or set the cadence. Only backbone nodes may."""
        if data.coordinator is None and data.sweep_every_seconds is None:
            raise Refusal(Code.INVALID_FIELD, "say coordinator or sweepEverySeconds", field="coordinator")
        return await gateway.office.coordination.set(
            coordinator=data.coordinator,
            sweep_every_seconds=data.sweep_every_seconds,
            confirm_last_resort=data.confirm_last_resort,
        )

    @post("/ansible/coordination/preference", status_code=200, summary="Say a preference", tags=["coordination"])
    async def prefer(data: Annotated[Prefer, Body()]) -> CoordinationView:
        """Whom this node would like to coordinate. It decides who acts while the coordinator is silent."""
        return gateway.office.coordination.prefer(
            Preference(
                desired_coordinator=data.desired_coordinator,
                desired_sweep_every_seconds=data.desired_sweep_every_seconds,
            )
        )

    return [show, set_coordination, prefer]
