"""Writes what this gateway says to its outbox, and tells those who send it on.

Both happen as well if the caller is cancelled meanwhile: what is durable and announced to nobody would stay here until
something else is appended.
"""

from collections.abc import Sequence

from agentpost.delivery.carrying import carried_out
from agentpost.delivery.policy import earliest_due_ms
from agentpost.delivery.ports import Wakeups
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event
from agentpost.store.interface import Store
from agentpost.store.values import Appended, Incident, KeyedAnswer, Note, ResentLetter, Settlement

__all__ = ["OutboxWriter"]


class OutboxWriter:
    """The only way into the outbox: append, then tell."""

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups

    async def append(
        self,
        events: Sequence[Event],
        *,
        deliveries: Sequence[Delivery] = (),
        changes: Sequence[Change] = (),
        notes: Sequence[Note] = (),
        incidents: Sequence[Incident] = (),
        resends: Sequence[ResentLetter] = (),
        keyed: KeyedAnswer | None = None,
    ) -> Appended:
        """As `Store.append`; whoever serves the links, the timers and the waiting senders hears of it."""
        writing = self._store.append(
            events,
            deliveries=deliveries,
            changes=changes,
            notes=notes,
            incidents=incidents,
            resends=resends,
            keyed=keyed,
        )
        return await carried_out(writing, then=lambda _: self._tell(bool(events), deliveries, changes))

    async def settle(self, settlement: Settlement) -> bool:
        """As `Store.settle`. A row that was closed before tells nobody anything."""
        return await carried_out(
            self._store.settle(settlement),
            then=lambda is_closed: self._tell(is_closed, settlement.deliveries if is_closed else ()),
        )

    async def settle_all(self, settlements: Sequence[Settlement]) -> list[bool]:
        """As `Store.settle_all`."""

        def tell(closed: list[bool]) -> None:
            told = [each for each, is_closed in zip(settlements, closed, strict=True) if is_closed]
            self._tell(bool(told), [delivery for each in told for delivery in each.deliveries])

        return await carried_out(self._store.settle_all(settlements), then=tell)

    def _tell(self, has_grown: bool, deliveries: Sequence[Delivery], changes: Sequence[Change] = ()) -> None:
        if has_grown:
            self._wakeups.outbox_grew()
        if deliveries or changes:
            self._wakeups.timer_set(earliest_due_ms((*deliveries, *changes)))
        if changes:
            # Also deliveries that end where they begin: nobody else says so to those who wait for the end.
            self._wakeups.deliveries_moved(changes)
