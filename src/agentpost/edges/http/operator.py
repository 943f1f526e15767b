"""The operator's door: a Unix socket inside the home. Who can open it owns the home; loopback means nothing."""

from typing import Any

from litestar import Litestar, get, post
from msgspec import Struct

from agentpost.auth.invites import DEFAULT_TTL_SECONDS, NewInvite
from agentpost.edges.http.errors import EXCEPTION_HANDLERS
from agentpost.edges.seed_link import Seed, SeedLinks
from agentpost.gateway import Gateway, GatewayStatus
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier

__all__ = ["operator_app"]


class InviteRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    node: str
    tier: NodeTier = NodeTier.EDGE
    ttl_seconds: int = DEFAULT_TTL_SECONDS
    public_key: str | None = None


class JoinRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    url: str
    token: str


class RevokeRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    node: str


def operator_app(gateway: Gateway, seeds: SeedLinks) -> Litestar:
    """The ASGI application on the socket."""

    @get("/operator/status", sync_to_thread=False)
    def status() -> GatewayStatus:
        return gateway.status()

    @post("/operator/shutdown", status_code=202, sync_to_thread=False)
    def shutdown() -> dict[str, str]:
        gateway.request_stop()
        return {"phase": gateway.phase.value}

    @post("/operator/invites", status_code=201)
    async def invite(data: InviteRequest) -> NewInvite:
        if gateway.settings.tier is not NodeTier.BACKBONE:
            raise Refusal(
                Code.WRITE_DENIED,
                f"{gateway.settings.node_id} is an edge node, and only backbone nodes let others in",
                hint="Invite from a backbone gateway.",
            )
        return await gateway.joining.invite(
            tier=data.tier, expected_node_id=data.node, ttl_seconds=data.ttl_seconds, public_key=data.public_key
        )

    @post("/operator/join", status_code=200)
    async def join(data: JoinRequest) -> Seed:
        return await seeds.join(data.url, data.token)

    @get("/operator/nodes", sync_to_thread=False)
    def nodes() -> dict[str, Any]:
        room = gateway.host.room
        return {
            "nodes": [
                {
                    "nodeId": node_id,
                    "tier": record.get("tier"),
                    "status": room.presence.status_of(node_id).value,
                    "revoked": room.keys.is_revoked(node_id),
                }
                for node_id, record in sorted(room.records("nodes").items())
            ],
            "seeds": seeds.states(),
        }

    @post("/operator/revoke", status_code=200)
    async def revoke(data: RevokeRequest) -> dict[str, str]:
        await gateway.revoke(data.node)
        return {"revoked": data.node}

    return Litestar(
        route_handlers=[status, shutdown, invite, join, nodes, revoke],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        logging_config=None,
    )
