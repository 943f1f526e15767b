"""Parameters that several routes have."""

import re
from typing import Annotated, Any, Final

from litestar.params import HeaderParameter, Parameter

from agentpost.delivery.sealing import MAX_CONTENT_BYTES

__all__ = ["CARRIES_CONTENT", "HIGHEST_SEQ", "MAX_CONTENT_CALL_BYTES", "AfterId", "IdempotencyKey", "key_in"]

# Beyond every seq and id, and still a number that the store can compare with.
HIGHEST_SEQ: Final = 1 << 62

# Content is counted as it is sealed. In JSON it may take three times as much, if all that is not ASCII is escaped.
MAX_CONTENT_CALL_BYTES: Final = 3 * MAX_CONTENT_BYTES + 1024 * 1024

# For the calls of this machine's own agents and people that say something; all others are small.
CARRIES_CONTENT: Final[dict[str, Any]] = {"request_max_body_size": MAX_CONTENT_CALL_BYTES}

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        description="A value of your choice, new for each call: 1 to 255 printable characters. Repeat a call with it "
        "within 24 hours, and it is answered as before and done once.",
    ),
]

AfterId = Annotated[int, Parameter(ge=0, le=HIGHEST_SEQ, description="The last id of the page before.")]


def key_in(header: str | None) -> str | None:
    """The idempotency key of a header: a string of RFC 8941 (in quotes), or the bare key."""
    if header is None or len(header) < 2 or header[0] != '"' or header[-1] != '"':
        return header
    return re.sub(r"\\([\"\\])", r"\1", header[1:-1])
