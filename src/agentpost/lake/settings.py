"""What a gateway is told about its lake: the table `[lake]` of agentpost.toml. Needs no pyarrow."""

from importlib.util import find_spec
from typing import Annotated

from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = ["LakeSettings", "require_pyarrow"]


class LakeSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the lake is, and when a segment is sealed: at so many events or bytes, or once the first is so old."""

    path: Annotated[str, Meta(min_length=1)]
    seal_every_seconds: Annotated[float, Meta(ge=0.1, le=86_400)] = 300.0
    seal_events: Annotated[int, Meta(ge=1, le=2_000_000)] = 200_000
    seal_bytes: Annotated[int, Meta(ge=1, le=1_073_741_824)] = 64 * 1024 * 1024
    # Whether the outboxes that are mirrored here are exported as well.
    mirrors: bool = True


def require_pyarrow() -> None:
    """Refuse to go on without pyarrow, which a gateway without a lake does not have to have."""
    if find_spec("pyarrow") is None:
        raise Refusal(Code.UNAVAILABLE, "a lake needs pyarrow", hint="Install it: pip install 'agentpost[lake]'")
