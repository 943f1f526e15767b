"""Parameters that several routes have."""

from typing import Annotated, Any, Final

from litestar.params import Parameter

from agentpost.delivery.sealing import MAX_CONTENT_BYTES

__all__ = ["CARRIES_CONTENT", "HIGHEST_SEQ", "MAX_CONTENT_CALL_BYTES", "AfterId"]

# Beyond every seq and id, and still a number that the store can compare with.
HIGHEST_SEQ: Final = 1 << 62

# Content is counted as it is sealed. In JSON it may take three times as much, if all that is not ASCII is escaped.
MAX_CONTENT_CALL_BYTES: Final = 3 * MAX_CONTENT_BYTES + 1024 * 1024

# For the calls of this machine's own agents and people that say something; all others are small.
CARRIES_CONTENT: Final[dict[str, Any]] = {"request_max_body_size": MAX_CONTENT_CALL_BYTES}

AfterId = Annotated[int, Parameter(ge=0, le=HIGHEST_SEQ, description="The last id of the page before.")]
