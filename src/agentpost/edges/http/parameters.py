"""Parameters that several routes have."""

from typing import Annotated, Final

from litestar.params import Parameter

__all__ = ["HIGHEST_SEQ", "AfterId"]

# Beyond every seq and id, and still a number that the store can compare with.
HIGHEST_SEQ: Final = 1 << 62

AfterId = Annotated[int, Parameter(ge=0, le=HIGHEST_SEQ, description="The last id of the page before.")]
