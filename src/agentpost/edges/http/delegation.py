"""The delegation directory, over HTTP (OPS-8)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body
from msgspec import Struct

from agentpost.gateway import Gateway
from agentpost.protocol.delegation import Ack
from agentpost.work.delegation.desk import Applied, DelegationView

__all__ = ["delegation_routes"]


class NewPolicy(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The rows of the table, and the agent of this gateway in whose name they are set."""

    by: str
    intents: list[dict[str, Any]]


class Application(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    agent_id: str
    file: str
    acknowledge: bool = True


class Acknowledgement(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    agent_id: str
    version: str
    checksum: str


def delegation_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    desk = gateway.commons.delegation

    @get("/ansible/delegation", sync_to_thread=False, summary="The delegation policy", tags=["delegation"])
    def show() -> DelegationView:
        """The policy, who has acknowledged it, and what needs action."""
        return desk.view()

    @post("/ansible/delegation", status_code=200, summary="Set the delegation policy", tags=["delegation"])
    async def set_policy(data: Annotated[NewPolicy, Body()]) -> DelegationView:
        """Only the coordinator's gateway may. Every active agent gets a `policy_update`."""
        return await desk.set(data.intents, by=data.by)

    @post("/ansible/delegation/apply", status_code=200, summary="Apply the policy to a file", tags=["delegation"])
    async def apply(data: Annotated[Application, Body()]) -> Applied:
        """Write the section `## Delegation Directory` of an agent's IDENTITY.md; nothing else in it changes."""
        return await desk.apply(data.agent_id, Path(data.file), acknowledge=data.acknowledge)

    @post("/ansible/delegation/ack", status_code=200, summary="Acknowledge the policy", tags=["delegation"])
    async def acknowledge(data: Annotated[Acknowledgement, Body()]) -> Ack:
        """For an agent that keeps its file itself. Version and checksum have to be those of the policy."""
        return await desk.acknowledge(data.agent_id, version=data.version, checksum=data.checksum)

    return [show, set_policy, apply, acknowledge]
