"""The lake of a gateway, over HTTP: how far it is, and to export now."""

from collections.abc import Sequence
from typing import Annotated, Any

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body
from msgspec import Struct, to_builtins

from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal

__all__ = ["lake_metrics", "lake_routes"]


class ExportRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    now: bool = False


def lake_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    @get("/operator/lake", sync_to_thread=False, summary="How far the lake is", tags=["lake"])
    def status() -> dict[str, Any]:
        if gateway.lake is None:
            raise _no_lake()
        return to_builtins(gateway.lake.status())

    @post("/operator/lake/export", status_code=200, summary="Export what is new", tags=["lake"])
    async def export(data: Annotated[ExportRequest, Body()]) -> dict[str, Any]:
        if gateway.lake is None:
            raise _no_lake()
        return to_builtins(await gateway.lake.export(now=data.now))

    return [status, export]


def lake_metrics(gateway: Gateway) -> str:
    """What Prometheus is told of the lake; nothing if there is none."""
    if gateway.lake is None:
        return ""
    # Here, so that a gateway without a lake never loads pyarrow.
    from agentpost.lake.service import to_prometheus

    return to_prometheus(gateway.lake.status())


def _no_lake() -> Refusal:
    return Refusal(
        Code.NOT_FOUND, "this gateway has no lake", hint="Start it with --lake, or name one in its agentpost.toml."
    )
