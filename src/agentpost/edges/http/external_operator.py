"""What the operator does about agents outside the mesh: invites, sessions, revocation, keys; and the audit log."""

from collections.abc import Sequence
from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter, QueryParameter
from msgspec import Struct, structs

from agentpost.auth.external.wire import AgentInviteRequest, NewAgentInvite, RevokeRequest, SessionView
from agentpost.delivery.pull import PULL
from agentpost.edges.http.external import Revoked
from agentpost.edges.http.parameters import AfterId
from agentpost.gateway import Gateway

__all__ = ["external_operator_routes"]

Limit = Annotated[int, Parameter(ge=1, le=1000, description="How many at most.")]
SessionQuery = Annotated[str | None, QueryParameter(name="sessionId", description="Only of this session.")]
CorrQuery = Annotated[str | None, QueryParameter(name="corrId", description="Only of this conversation.")]
AgentQuery = Annotated[str | None, QueryParameter(name="agentId", description="Only of this agent.")]


class RotateRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """With `drop_others` every access token that was signed before is void at once; clients refresh."""

    drop_others: bool = False


class Rotated(Struct, frozen=True, kw_only=True, rename="camel"):
    kid: str


class AuditLine(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    id: int
    at_ms: int
    actor: str
    action: str
    subject: str | None = None
    corr_id: str | None = None
    session_id: str | None = None
    detail: dict[str, str | int | bool | None] = {}


def external_operator_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    external = gateway.external

    @post("/ansible/agent/invites", status_code=201, summary="Invite an agent outside", tags=["agents outside"])
    async def invite(data: Annotated[AgentInviteRequest, Body()]) -> NewAgentInvite:
        """The token is shown once. An agent that is not here yet is added, and fetches its mail itself."""
        external.check_invite(data)
        if gateway.store.local_agent(data.agent_id) is None:
            await gateway.engine.agents.add(data.agent_id, PULL)
        return await external.invite(data)

    @get("/ansible/agent/sessions", sync_to_thread=False, summary="Sessions of agents outside", tags=["agents outside"])
    def sessions(agent_id: AgentQuery = None, limit: Limit = 100) -> list[SessionView]:
        """The newest first."""
        return external.sessions(agent_id=agent_id, limit=limit)

    @post("/ansible/agent/revoke", status_code=200, summary="End sessions", tags=["agents outside"])
    async def revoke(data: Annotated[RevokeRequest, Body()]) -> Revoked:
        """By session, by agent (with its open invites) or by token family. It counts from this moment."""
        return Revoked(session_ids=await external.revoke(data))

    @post("/ansible/agent/keys/rotate", status_code=200, summary="Sign with a new key", tags=["agents outside"])
    async def rotate(data: Annotated[RotateRequest, Body()]) -> Rotated:
        return Rotated(kid=(await external.rotate_key(drop_others=data.drop_others)).kid)

    @get("/ansible/audit", sync_to_thread=False, summary="What was decided, and for whom", tags=["records"])
    def audit(
        session_id: SessionQuery = None, corr_id: CorrQuery = None, after: AfterId = 0, limit: Limit = 100
    ) -> list[AuditLine]:
        """In the order in which it happened: of one session, of one conversation, or all of it."""
        if session_id is None and corr_id is None:
            found = gateway.store.audit_log(after_id=after, limit=limit)
        else:
            found = gateway.store.audit_of(session_id=session_id, corr_id=corr_id, after_id=after, limit=limit)
        return [AuditLine(**structs.asdict(entry)) for entry in found]

    return [invite, sessions, revoke, rotate, audit]
