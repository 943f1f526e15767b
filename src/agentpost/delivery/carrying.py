"""Work whose caller may give up waiting: what it began to write is written, so whoever has to hear of that hears of it.

A caller that awaits the store itself is cut off between the commit and what follows, when it is cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["carried_out"]

T = TypeVar("T")


async def carried_out(work: Awaitable[T], *, then: Callable[[T], None] = lambda _result: None) -> T:
    """The result of the work, after `then` got it. Both happen as well if the caller is cancelled meanwhile."""

    def tell(done: "asyncio.Future[T]") -> None:
        if not done.cancelled() and done.exception() is None:
            then(done.result())

    carried = asyncio.ensure_future(work)
    # Before the caller goes on: it may look at what it has just written.
    carried.add_done_callback(tell)
    return await asyncio.shield(carried)
