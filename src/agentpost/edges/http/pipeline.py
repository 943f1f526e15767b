"""What the fleet's pipeline hands back to a gateway, over the operator's socket (OBS-9). A repeat adds nothing."""

from collections.abc import Sequence
from typing import Annotated

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body
from msgspec import Meta, Struct

from agentpost.delivery.findings import FindingsDesk, PipelineFinding, Watermark
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.reviews import ReviewItem
from agentpost.work.reviews.board import ReviewBoard

__all__ = ["pipeline_routes"]


class Handed(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    findings: Annotated[tuple[PipelineFinding, ...], Meta(max_length=1000)] = ()
    reviews: Annotated[tuple[ReviewItem, ...], Meta(max_length=1000)] = ()
    watermark: Watermark | None = None


class Heard(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was news. `reviews_refused` says why this gateway may not write the review queue, if it may not."""

    raised: int
    known: int
    reviews_added: int
    reviews_refused: str | None = None
    keeps_above_seq: int | None = None


def pipeline_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    desk = FindingsDesk(store=gateway.engine.store, clock=gateway.clock)

    @post("/ansible/pipeline/findings", status_code=200, summary="Take what the pipeline found", tags=["pipeline"])
    async def findings(data: Annotated[Handed, Body()]) -> Heard:
        """Raise an incident for each finding that never had one, queue review items, keep what the watermark says.

        A watermark can make this gateway keep more of its outbox, never less than PIPE-7 does.
        """
        kept = None if data.watermark is None else await desk.keep_from(data.watermark)
        taken = await desk.take(data.findings)
        added, refused = _queue(gateway.commons.reviews, data.reviews)
        return Heard(
            raised=taken.raised,
            known=taken.known,
            reviews_added=added,
            reviews_refused=refused,
            keeps_above_seq=kept,
        )

    return [findings]


def _queue(board: ReviewBoard, reviews: Sequence[ReviewItem]) -> tuple[int, str | None]:
    """Write what is new into the review queue of the room, which only the coordinator may."""
    added = 0
    for review in reviews:
        try:
            added += board.put(review)
        except Refusal as refusal:
            if refusal.code is not Code.WRITE_DENIED:
                raise
            return added, refusal.message
    return added, None
