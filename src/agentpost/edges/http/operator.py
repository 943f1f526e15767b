"""The operator's door: a Unix socket inside the home. Who can open it owns the home; loopback means nothing."""

from litestar import Litestar, get, post

from agentpost.edges.http.errors import EXCEPTION_HANDLERS
from agentpost.gateway import Gateway, GatewayStatus

__all__ = ["operator_app"]


def operator_app(gateway: Gateway) -> Litestar:
    """The ASGI application on the socket."""

    @get("/operator/status", sync_to_thread=False)
    def status() -> GatewayStatus:
        return gateway.status()

    @post("/operator/shutdown", status_code=202, sync_to_thread=False)
    def shutdown() -> dict[str, str]:
        gateway.request_stop()
        return {"phase": gateway.phase.value}

    return Litestar(
        route_handlers=[status, shutdown],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
    )
