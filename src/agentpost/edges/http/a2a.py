"""What the operator does about A2A: which agents its clients find. On the operator's socket."""

from collections.abc import Sequence
from typing import Annotated, Final
from urllib.parse import quote

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body
from msgspec import Struct

from agentpost.edges.a2a.exposing import Exposed, ExposeRequest, Exposures
from agentpost.gateway import Gateway

__all__ = ["a2a_operator_routes"]

_TAGS: Final = ["A2A"]


class ExposedView(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An agent that A2A clients find. Its card is at `card_url`, and at the well-known place if it is the default.

    `skills` are those on the card now; with `only_skills` the operator has named them.
    """

    agent_id: str
    card_url: str
    is_default: bool = False
    skills: tuple[str, ...] = ()
    only_skills: tuple[str, ...] = ()
    description: str | None = None


class Hidden(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: str


def a2a_operator_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    exposures = Exposures(gateway.store, gateway.engine.room, gateway.clock)

    def view(exposed: Exposed) -> ExposedView:
        default, base_url = exposures.default(), gateway.settings.public_url or gateway.url
        return ExposedView(
            agent_id=exposed.agent_id,
            card_url=f"{base_url}/a2a/{quote(exposed.agent_id, safe='')}/.well-known/agent-card.json",
            is_default=default is not None and default.agent_id == exposed.agent_id,
            skills=tuple(each.capability_id for each in exposures.skills_of(exposed)),
            only_skills=exposed.skills,
            description=exposed.description,
        )

    @post("/ansible/a2a/agents", status_code=200, summary="Show an agent to A2A clients", tags=_TAGS)
    async def expose(data: Annotated[ExposeRequest, Body()]) -> ExposedView:
        """Any agent of the mesh. Again, to change how it is shown. Callers still need a session."""
        return view(await exposures.expose(data))

    @get("/ansible/a2a/agents", sync_to_thread=False, summary="Agents that A2A clients find", tags=_TAGS)
    def exposed() -> list[ExposedView]:
        """By name."""
        return [view(each) for each in exposures.all()]

    @delete(
        "/ansible/a2a/agents/{agent_id:str}",
        status_code=200,
        summary="Show an agent to A2A clients no more",
        tags=_TAGS,
    )
    async def hide(agent_id: str) -> Hidden:
        """Tasks that it has go on; they are just not reached over A2A."""
        await exposures.hide(agent_id)
        return Hidden(agent_id=agent_id)

    return [expose, exposed, hide]
