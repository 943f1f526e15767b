"""What a gateway is told about its lake: the table `[lake]` of agentpost.toml. Needs no pyarrow."""

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["LakeSettings"]


class LakeSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the lake is, and when a segment is sealed: at so many events or bytes, or once the first is so old."""

    path: Annotated[str, Meta(min_length=1)]
    seal_every_seconds: Annotated[float, Meta(ge=0.1, le=86_400)] = 300.0
    seal_events: Annotated[int, Meta(ge=1, le=2_000_000)] = 200_000
    seal_bytes: Annotated[int, Meta(ge=1, le=1_073_741_824)] = 64 * 1024 * 1024
    # Whether the outboxes that are mirrored here are exported as well.
    mirrors: bool = True
