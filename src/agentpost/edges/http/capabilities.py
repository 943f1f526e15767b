"""Capabilities and the skills of this gateway's agents, over HTTP."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body
from msgspec import Struct

from agentpost.edges.operations import Desk
from agentpost.edges.operations import mesh as operations
from agentpost.edges.operations.mesh import Unpublished
from agentpost.gateway import Gateway
from agentpost.work.capabilities.catalog import CapabilityDetail, CapabilityHealth, CapabilityLine
from agentpost.work.skills.folder import list_skills
from agentpost.work.skills.places import SkillPlace

__all__ = ["capability_routes"]


class PlaceChange(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is not given stays as it is."""

    directory: str | None = None
    accepts: bool | None = None


class SkillLine(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    version: str
    description: str


class AgentSkills(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where an agent keeps its skills, whether others may put some there, and which resolve."""

    place: SkillPlace
    skills: tuple[SkillLine, ...]


def capability_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    commons = gateway.commons

    @post("/ansible/capabilities", status_code=201, summary="Publish a capability", tags=["capabilities"])
    async def publish(data: Annotated[dict[str, Any], Body()]) -> CapabilityDetail:
        """Check the declaration, sign its manifest and publish it; the version before is retired (CAP-1 to CAP-3)."""
        return await operations.publish(Desk.of(gateway), data)

    @delete(
        "/ansible/capabilities/{capability_id:str}",
        status_code=200,
        summary="Unpublish a capability",
        tags=["capabilities"],
    )
    async def unpublish(capability_id: str) -> Unpublished:
        """From now on nobody is given it; only its owner's gateway may."""
        return await operations.unpublish(Desk.of(gateway), capability_id)

    @post(
        "/ansible/capabilities/{capability_id:str}/distribute",
        status_code=200,
        summary="Distribute a capability's skill again",
        tags=["capabilities"],
    )
    async def distribute(capability_id: str) -> dict[str, int]:
        """A new task for each agent whose installation failed or was declined."""
        return {"tasks": await commons.distributor.again(capability_id)}

    @get("/ansible/capabilities", sync_to_thread=False, summary="The capabilities of the mesh", tags=["capabilities"])
    def capabilities() -> list[CapabilityLine]:
        return commons.catalog.list()

    @get(
        "/ansible/capabilities/{capability_id:str}",
        sync_to_thread=False,
        summary="One capability, with who has its skill",
        tags=["capabilities"],
    )
    def capability(capability_id: str) -> CapabilityDetail:
        return commons.catalog.show(capability_id)

    @get(
        "/ansible/capability-health",
        sync_to_thread=False,
        summary="How the capabilities are doing",
        tags=["capabilities"],
    )
    def health(capability_id: str | None = None) -> list[CapabilityHealth]:
        return commons.catalog.health(capability_id)

    @get("/ansible/agents/{agent_id:str}/skills", sync_to_thread=True, summary="An agent's skills", tags=["skills"])
    def skills(agent_id: str) -> AgentSkills:
        return _skills(commons.places.of(agent_id))

    @post(
        "/ansible/agents/{agent_id:str}/skills",
        status_code=200,
        summary="Say where an agent keeps its skills, or that it takes none of others",
        tags=["skills"],
    )
    async def set_place(agent_id: str, data: Annotated[PlaceChange, Body()]) -> AgentSkills:
        directory = None if data.directory is None else Path(data.directory)
        place = await commons.places.set(
            agent_id, directory=directory, accepts=data.accepts, at_ms=gateway.clock.now_ms()
        )
        return _skills(place)

    return [publish, unpublish, distribute, capabilities, capability, health, skills, set_place]


def _skills(place: SkillPlace) -> AgentSkills:
    return AgentSkills(
        place=place,
        skills=tuple(
            SkillLine(name=each.head.name, version=each.head.version, description=each.head.description)
            for each in list_skills(Path(place.directory))
        ),
    )
