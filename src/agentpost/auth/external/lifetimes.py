"""For how long each thing is good. Pure."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "CONTEXT_SECONDS",
    "DEFAULT_CONTEXT_SECONDS",
    "DEFAULT_INVITE_SECONDS",
    "INVITE_SECONDS",
    "Lifetimes",
    "checked_seconds",
]

INVITE_SECONDS: Final = range(5 * 60, 15 * 60 + 1)
ACCESS_SECONDS: Final = range(5 * 60, 15 * 60 + 1)
REFRESH_SECONDS: Final = range(86_400, 7 * 86_400 + 1)
CONTEXT_SECONDS: Final = range(60, 300 + 1)
DEFAULT_INVITE_SECONDS: Final = 15 * 60
DEFAULT_CONTEXT_SECONDS: Final = 300


class Lifetimes(Struct, frozen=True, kw_only=True, rename="camel"):
    """How long tokens live. `refresh_grace_seconds` is for a client that did not get the answer to its refresh."""

    access_seconds: Annotated[int, Meta(description="An access token; 300 to 900.")] = 10 * 60
    refresh_seconds: Annotated[
        int, Meta(description="A session, from its last refresh; a day to a week, 86400 to 604800.")
    ] = 3 * 86_400
    refresh_grace_seconds: Annotated[
        int, Meta(description="The refresh token before, for a client that lost the answer; 0 to 60.")
    ] = 20

    def __post_init__(self) -> None:
        checked_seconds(self.access_seconds, ACCESS_SECONDS, field="accessSeconds")
        checked_seconds(self.refresh_seconds, REFRESH_SECONDS, field="refreshSeconds")
        checked_seconds(self.refresh_grace_seconds, range(61), field="refreshGraceSeconds")


def checked_seconds(seconds: int, allowed: range, *, field: str) -> int:
    if seconds not in allowed:
        raise Refusal(
            Code.INVALID_FIELD, f"{field} must be from {allowed.start} to {allowed.stop - 1} seconds", field=field
        )
    return seconds
