"""What a gateway is told about its lake: the table `[lake]` of agentpost.toml. Needs no pyarrow."""

from importlib.util import find_spec
from typing import Annotated

from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = ["LakeSettings", "require_pyarrow"]


class LakeSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the lake is, and when a segment is sealed: at so many events or bytes, or once the first is so old."""

    path: Annotated[
        str, Meta(min_length=1, description="A directory, from the home on, or the URL of an object store.")
    ]
    seal_every_seconds: Annotated[
        float, Meta(ge=0.1, le=86_400, description="A segment is sealed once its first event is so old.")
    ] = 300.0
    seal_events: Annotated[int, Meta(ge=1, le=2_000_000, description="Or once it has so many events.")] = 200_000
    seal_bytes: Annotated[int, Meta(ge=1, le=1_073_741_824, description="Or so many bytes.")] = 64 * 1024 * 1024
    mirrors: Annotated[bool, Meta(description="Whether the outboxes that are mirrored here are exported as well.")] = (
        True
    )


def require_pyarrow() -> None:
    """Refuse to go on without pyarrow, which a gateway without a lake does not have to have."""
    if find_spec("pyarrow") is None:
        raise Refusal(Code.UNAVAILABLE, "a lake needs pyarrow", hint="Install it: pip install 'agentpost[lake]'")
