"""The review queue of the mesh, over HTTP (CAP-6)."""

from collections.abc import Sequence

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from agentpost.gateway import Gateway
from agentpost.protocol.reviews import ReviewItem

__all__ = ["review_routes"]


class ReviewDetail(Struct, frozen=True, kw_only=True, rename="camel"):
    """An open item. `cases_here` counts the cases that this gateway saw itself; other gateways may have seen more."""

    item: ReviewItem
    cases_here: int


def review_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    commons = gateway.commons

    @get("/ansible/reviews", sync_to_thread=False, summary="The open reviews", tags=["reviews"])
    def reviews(capability_id: str | None = None) -> list[ReviewItem]:
        return commons.reviews.items(capability_id)

    @get("/ansible/reviews/{review_id:str}", sync_to_thread=False, summary="One open review", tags=["reviews"])
    def review(review_id: str) -> ReviewDetail:
        item = commons.reviews.get(review_id)
        return ReviewDetail(item=item, cases_here=commons.reporter.cases_of(review_id))

    @post(
        "/ansible/reviews/{review_id:str}/close",
        status_code=200,
        sync_to_thread=False,
        summary="Close a review",
        tags=["reviews"],
    )
    def close(review_id: str) -> ReviewItem:
        """Somebody looked into it. Only the coordinator's gateway may; the same cause opens a new one if it goes on."""
        return commons.reviews.close(review_id)

    return [reviews, review, close]
