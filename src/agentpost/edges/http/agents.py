"""The agents of this gateway, and of the mesh, over HTTP; and the mail of those who fetch it themselves."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body
from msgspec import Struct

from agentpost.auth.external.scopes import SCOPES
from agentpost.delivery.engine import Engine
from agentpost.delivery.failing import FailingAgent
from agentpost.delivery.hand_over import HandOver
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.edges.http.handing import belongs_to, held_answer
from agentpost.edges.http.parameters import CARRIES_CONTENT
from agentpost.edges.http.patience import Connection
from agentpost.edges.operations.calling import Caller, unless_ended
from agentpost.edges.operations.status import KnownAgent, known_agents
from agentpost.protocol.ids import EventId
from agentpost.protocol.snapshot import Failover
from agentpost.store.values import LocalAgent

__all__ = ["agent_routes"]

_FETCHED: Final = "/ansible/agents/{agent_id:str}/inbox/{event_id:str}"


class NewAgent(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    agent_id: str
    runtime: str = "pull"
    options: dict[str, Any] = {}


class AgentView(Struct, frozen=True, kw_only=True, rename="camel"):
    """An agent of this gateway. Secrets among its options are not shown.

    `failing` tells of one whose last try failed: since when, how many tries in a row, and the last error.
    """

    agent_id: str
    runtime: str
    options: dict[str, Any]
    is_paused: bool
    waiting: int
    failing: FailingAgent | None = None


class Removed(Struct, frozen=True, kw_only=True, rename="camel"):
    """An agent that is gone; how much of its mail and tasks ended as `no_route`, and how much it is still busy with."""

    removed: str
    ended: int
    waiting: int


class StandIns(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Who may have an agent's mail while its own gateway is silent, in this order.

    `failover` says what happens to mail that the silent one may have taken already: it waits, or goes to a stand-in at
    the risk that both engage the agent.
    """

    node_ids: tuple[str, ...]
    failover: Failover = Failover.WAIT


class Fetch(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """With `wait_seconds` the answer comes with the first mail, or empty when the time is over.

    With `hold` the answer is one line of JSON, and stays open until each message in it was confirmed (`…/taken`) or
    settled. If the connection ends before, the messages are given back and cost no attempt.
    """

    limit: int = 1
    wait_seconds: float = 0
    hold: bool = False


class Taken(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Messages of a held fetch that have arrived; with `hold` they stay the connection's."""

    event_ids: tuple[str, ...]
    hold: bool = False


class TakenBy(Struct, frozen=True, kw_only=True, rename="camel"):
    """Those of them that are with the agent. The others were given back meanwhile, or have their outcome."""

    event_ids: tuple[EventId, ...]


class Reply(Content, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Content as its author gives it. A peer's content may have fields that this gateway does not know."""


class Settle(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What became of a message that was fetched: processed (perhaps with a reply), retry, or failed."""

    kind: ResultKind = ResultKind.PROCESSED
    reply: Reply | None = None
    error: str | None = None


class Extend(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    seconds: float


def agent_routes(engine: Engine) -> Sequence[HTTPRouteHandler]:
    def view(agent: LocalAgent) -> AgentView:
        return AgentView(
            agent_id=agent.agent_id,
            runtime=agent.runtime,
            options=engine.agents.shown_options(agent),
            is_paused=agent.is_paused,
            waiting=engine.store.backlog_size(agent.agent_id),
            failing=engine.dispatcher.turns.failing.of(agent.agent_id),
        )

    @get("/ansible/agents", sync_to_thread=False, summary="The agents of this gateway", tags=["agents"])
    def agents() -> list[AgentView]:
        return [view(agent) for agent in engine.agents.list()]

    @post("/ansible/agents", status_code=201, summary="Add or change an agent", tags=["agents"])
    async def add(data: Annotated[NewAgent, Body()]) -> AgentView:
        return view(await engine.agents.add(data.agent_id, data.runtime, data.options))

    @delete("/ansible/agents/{agent_id:str}", status_code=200, summary="Take an agent away", tags=["agents"])
    async def remove(agent_id: str) -> Removed:
        """What it has not settled ends as `no_route`, and the senders are told."""
        ended = await engine.agents.remove(agent_id)
        return Removed(removed=agent_id, ended=ended, waiting=engine.store.backlog_size(agent_id))

    @post("/ansible/agents/{agent_id:str}/pause", status_code=200, summary="Stop engaging an agent", tags=["agents"])
    async def pause(agent_id: str) -> AgentView:
        return view(await engine.agents.pause(agent_id))

    @post("/ansible/agents/{agent_id:str}/resume", status_code=200, summary="Engage an agent again", tags=["agents"])
    async def resume(agent_id: str) -> AgentView:
        return view(await engine.agents.resume(agent_id))

    @post("/ansible/agents/{agent_id:str}/stand-ins", status_code=200, summary="Name the stand-ins", tags=["agents"])
    async def stand_ins(agent_id: str, data: Annotated[StandIns, Body()]) -> StandIns:
        """The list replaces the one before; an empty one leaves nobody."""
        named = engine.agents.name_stand_ins(agent_id, data.node_ids, failover=data.failover)
        return StandIns(node_ids=named, failover=data.failover)

    @get("/ansible/directory", sync_to_thread=False, summary="The agents of the mesh", tags=["agents"])
    def directory() -> list[KnownAgent]:
        return known_agents(engine)

    @post("/ansible/agents/{agent_id:str}/fetch", status_code=200, summary="Fetch mail", tags=["pull"])
    async def fetch(
        agent_id: str, data: Annotated[Fetch, Body()], request: Request[Any, Any, Any]
    ) -> Response[list[Engagement]]:
        """The oldest messages that nobody has yet. They are the caller's until settled, or until the lease is over.

        One is given however large it is, and more for as long as all have 8 MiB together, as they are sealed. So fewer
        than `limit` do not say that no more are there: ask until none come. A wait ends when its caller disconnects;
        what a caller did not read is given back, and costs no attempt.
        """
        connection = Connection.of(request.scope)
        handing = engine.pull.hand_over(agent_id, data.limit, wait_seconds=data.wait_seconds)
        caller = Caller(agent_id=agent_id, scopes=frozenset(SCOPES), gone=connection.gone, is_local=True)
        handed = await unless_ended(handing, caller, undo=HandOver.connection_lost)
        if data.hold:
            return held_answer(connection, handed.engagements, handed)
        belongs_to(connection, handed)
        return Response(handed.engagements)

    @post("/ansible/agents/{agent_id:str}/taken", status_code=200, summary="Confirm a held fetch", tags=["pull"])
    async def taken(agent_id: str, data: Annotated[Taken, Body()]) -> TakenBy:
        """Say that messages of an answer with `hold` have arrived. From then on they are leased, and the answer ends.

        With `hold` the answer stays open: an attempt ends as a failed one if the connection does, until it is settled.
        """
        event_ids = [EventId(event_id) for event_id in data.event_ids]
        return TakenBy(event_ids=tuple(engine.pull.took(agent_id, event_ids, hold=data.hold)))

    @post(
        "/ansible/agents/{agent_id:str}/inbox/{event_id:str}/settle",
        status_code=200,
        summary="Settle",
        tags=["pull"],
        **CARRIES_CONTENT,
    )
    async def settle(agent_id: str, event_id: str, data: Annotated[Settle, Body()]) -> dict[str, bool]:
        """Say what became of a message. The first word counts."""
        result = Result(kind=data.kind, reply=data.reply, error=data.error)
        return {"settled": await engine.pull.settle(EventId(event_id), agent_id, result)}

    @post(
        "/ansible/agents/{agent_id:str}/inbox/{event_id:str}/extend", status_code=200, summary="Extend", tags=["pull"]
    )
    async def extend(agent_id: str, event_id: str, data: Annotated[Extend, Body()]) -> dict[str, float]:
        """Keep a message that was fetched for longer."""
        await engine.pull.extend(EventId(event_id), agent_id, seconds=data.seconds)
        return {"seconds": data.seconds}

    return [agents, add, remove, pause, resume, stand_ins, directory, fetch, taken, settle, extend]
