"""The operator's door: a Unix socket inside the home. Who can open it owns the home; loopback means nothing."""

from typing import Annotated, Any

from litestar import Litestar, Request, get, post
from litestar.params import Body
from msgspec import Struct

from agentpost.auth.invites import DEFAULT_TTL_SECONDS, NewInvite
from agentpost.edges.http.a2a import a2a_operator_routes
from agentpost.edges.http.agents import agent_routes
from agentpost.edges.http.capabilities import capability_routes
from agentpost.edges.http.coordination import coordination_routes
from agentpost.edges.http.delegation import delegation_routes
from agentpost.edges.http.errors import EXCEPTION_HANDLERS
from agentpost.edges.http.external_operator import external_operator_routes
from agentpost.edges.http.lake import lake_metrics, lake_routes
from agentpost.edges.http.mail import mail_routes
from agentpost.edges.http.migration import migration_routes
from agentpost.edges.http.openapi import openapi_config
from agentpost.edges.http.operations import operation_routes
from agentpost.edges.http.pipeline import pipeline_routes
from agentpost.edges.http.records import record_routes
from agentpost.edges.http.reviews import review_routes
from agentpost.edges.http.tasks import task_routes
from agentpost.edges.mailbox.http import mailbox_routes
from agentpost.edges.seed_link import Seed, SeedLinks
from agentpost.gateway import Gateway, GatewayStatus
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.room.records import Record

__all__ = ["operator_app"]


class InviteRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    node: str
    tier: NodeTier = NodeTier.EDGE
    ttl_seconds: int = DEFAULT_TTL_SECONDS
    public_key: str | None = None
    tailnet: str | None = None
    replace_key: bool = False


class WithdrawRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    invite_id: str


class JoinRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    url: str
    token: str


class RevokeRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    node: str


def operator_app(gateway: Gateway, seeds: SeedLinks) -> Litestar:
    """The ASGI application on the socket."""

    @get("/operator/status", sync_to_thread=False, summary="How the gateway is", tags=["gateway"])
    def status() -> GatewayStatus:
        return gateway.status()

    @post("/operator/shutdown", status_code=202, summary="Drain and stop", tags=["gateway"])
    async def shutdown(request: Request[Any, Any, Any]) -> dict[str, str]:
        # To the end: a door that shuts while somebody speaks looks as if there were no gateway.
        await request.body()
        gateway.request_stop()
        return {"phase": gateway.phase.value}

    def expect_backbone(what: str, *, hint: str) -> None:
        if gateway.settings.tier is not NodeTier.BACKBONE:
            problem = f"{gateway.settings.node_id} is an edge node, and only backbone nodes {what}"
            raise Refusal(Code.WRITE_DENIED, problem, hint=hint)

    @post("/operator/invites", status_code=201, summary="Invite a node", tags=["mesh"])
    async def invite(data: Annotated[InviteRequest, Body()]) -> NewInvite:
        expect_backbone("let others in", hint="Invite from a backbone gateway.")
        made = await gateway.joining.invite(
            tier=data.tier,
            expected_node_id=data.node,
            ttl_seconds=data.ttl_seconds,
            public_key=data.public_key,
            tailnet_name=data.tailnet,
            replace_key=data.replace_key,
        )
        if data.replace_key:
            gateway.cut(data.node)
        gateway.show_invites()
        return made

    @get("/operator/invites", sync_to_thread=False, summary="The invites in the room", tags=["mesh"])
    def invites() -> dict[str, Any]:
        now_ms = gateway.clock.now_ms()
        records = gateway.host.room.records("invites")
        return {"invites": [_shown(key, record, now_ms) for key, record in sorted(records.items()) if "tier" in record]}

    @post("/operator/invites/withdraw", status_code=200, summary="Take back an invite", tags=["mesh"])
    async def withdraw(data: Annotated[WithdrawRequest, Body()]) -> dict[str, str]:
        await gateway.withdraw_invite(data.invite_id)
        return {"withdrawn": data.invite_id}

    @post("/operator/join", status_code=200, summary="Join the mesh of another gateway", tags=["mesh"])
    async def join(data: Annotated[JoinRequest, Body()]) -> Seed:
        return await seeds.join(data.url, data.token)

    @get("/operator/nodes", sync_to_thread=False, summary="The nodes of the mesh", tags=["mesh"])
    def nodes() -> dict[str, Any]:
        room = gateway.host.room
        return {
            "nodes": [
                {
                    "nodeId": member.node_id,
                    "tier": member.tier.value,
                    "status": ("offline" if member.is_revoked else room.presence.status_of(member.node_id).value),
                    "revoked": member.is_revoked,
                }
                for member in room.keys.all()
            ],
            "seeds": seeds.states(),
        }

    @post("/operator/revoke", status_code=200, summary="Throw a node out", tags=["mesh"])
    async def revoke(data: Annotated[RevokeRequest, Body()]) -> dict[str, str]:
        expect_backbone("throw others out", hint="Revoke it at a backbone gateway.")
        await gateway.revoke(data.node)
        return {"revoked": data.node}

    return Litestar(
        route_handlers=[
            *mail_routes(gateway.engine),
            *mailbox_routes(gateway.mailbox),
            *agent_routes(gateway.engine),
            *operation_routes(gateway),
            *task_routes(gateway),
            *coordination_routes(gateway),
            *record_routes(gateway.engine, more_metrics=lambda: lake_metrics(gateway)),
            *lake_routes(gateway),
            *pipeline_routes(gateway),
            *capability_routes(gateway),
            *review_routes(gateway),
            *delegation_routes(gateway),
            *external_operator_routes(gateway),
            *a2a_operator_routes(gateway),
            *migration_routes(gateway),
            status,
            shutdown,
            invite,
            invites,
            withdraw,
            join,
            nodes,
            revoke,
        ],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=openapi_config("agentpost, the operator's door", is_public=False),
        logging_config=None,
    )


def _shown(invite_id: str, record: Record, now_ms: int) -> dict[str, Any]:
    """An invite as it stands in the room. Its gateway may be away, so what has expired is told by the time."""
    at: int | str = record["expiresAt"]
    expires_at_ms = at if isinstance(at, int) else parse_ms(at)
    status = record.get("status")
    return {
        "inviteId": invite_id,
        "tier": record["tier"],
        "expectedNodeId": record.get("expectedNodeId"),
        "expiresAt": format_ms(expires_at_ms),
        "createdBy": record["createdBy"],
        "status": "expired" if status == "open" and now_ms >= expires_at_ms else status,
    }
