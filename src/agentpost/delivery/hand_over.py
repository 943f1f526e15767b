"""Mail in one answer, on its way to a caller. It belongs to the caller's connection until the caller has it.

A caller may go away between the moment its mail is engaged and the moment it reads the answer. What it never got is as
if it had not been handed over: it costs no attempt, and goes to the next caller before later mail.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from agentpost.delivery.ports import Engagement
from agentpost.protocol.ids import EventId

__all__ = ["Attempt", "HandOver"]


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt as the ledger has it, and when the attempt before it began."""

    event_id: EventId
    agent_id: str
    number: int
    engaged_before_ms: int | None


class HandOver:
    """What one call of `Pull.hand_over` gave. Its edge says how it went: `took_all`, or `connection_lost`.

    `give_back` undoes an attempt, `fail` ends it as one that failed. `done` is set when the connection does not matter
    any more.
    """

    def __init__(
        self,
        engagements: Sequence[Engagement],
        attempts: Sequence[Attempt],
        *,
        give_back: Callable[[Attempt], None],
        fail: Callable[[Attempt], None],
    ) -> None:
        self.engagements = list(engagements)
        self.done = asyncio.Event()
        # Whether the caller says by itself what has arrived: then silence means that nothing has.
        self.is_held_open = False
        self._give_back = give_back
        self._fail = fail
        # On its way to the caller.
        self._offered = {each.event_id: each for each in attempts}
        # The caller works on it for as long as its connection lasts.
        self._held: dict[EventId, Attempt] = {}
        self._end_if_done()

    def took(self, event_id: EventId, *, hold: bool = False) -> None:
        """The caller has this one: for its lease, or with `hold` for as long as its connection lasts."""
        attempt = self._offered.pop(event_id, None) or self._held.pop(event_id, None)
        if attempt is not None and hold:
            self._held[event_id] = attempt
        self._end_if_done()

    def took_all(self) -> None:
        """The caller has read the answer."""
        self._offered.clear()
        self._end_if_done()

    def connection_lost(self) -> None:
        """Undo what did not reach the caller, and end the attempts that it held."""
        offered, held = self._offered, self._held
        self._offered, self._held = {}, {}
        self._end_if_done()
        for attempt in offered.values():
            self._give_back(attempt)
        for attempt in held.values():
            self._fail(attempt)

    def gateway_stops(self) -> None:
        """Undo what did not reach the caller. What it has stays with it for the lease, over the restart."""
        self._held.clear()
        if self.is_held_open:
            self.connection_lost()
        else:
            self.took_all()

    def _end_if_done(self) -> None:
        if not self._offered and not self._held:
            self.done.set()
