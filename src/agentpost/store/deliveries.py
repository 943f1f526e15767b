"""The deliveries table: the sender's view of each recipient. What a signal does is decided by the protocol."""

from collections.abc import Iterable, Sequence

from agentpost.protocol.delivery import Change, Delivery, advance
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.transaction import Transaction, delivery_row

__all__ = ["apply_changes", "deliveries_of", "due_deliveries", "next_due_at_ms"]


def apply_changes(tx: Transaction, changes: Sequence[Change], seqs: dict[EventId, int] | None = None) -> list[Change]:
    """Move the deliveries that the changes speak of; gives back those that speak of none (orphans).

    `seqs` are the new places of events that were sent again.
    """
    if not changes:
        return []
    tx.flush()
    found = {
        (delivery.event_id, delivery.to_agent_id): delivery
        for delivery in _deliveries_of(tx.database, {change.event_id for change in changes})
    }
    orphans: list[Change] = []
    moved: dict[tuple[EventId, str], Delivery] = {}
    for change in changes:
        key = (change.event_id, change.to_agent_id)
        delivery = found.get(key)
        if delivery is None:
            orphans.append(change)
            continue
        after = advance(delivery, change)
        if after is not delivery:
            found[key] = moved[key] = after
    resent = {c.event_id for c in changes if c.signal is DeliverySignal.RESENT} if seqs else set[EventId]()
    rows = [
        delivery_row(delivery, seqs[delivery.event_id] if seqs and delivery.event_id in resent else 0)
        for delivery in moved.values()
    ]
    if rows:
        tx.database.run_many(SQL.replace_delivery, rows)
    return orphans


def deliveries_of(database: Database, event_id: EventId) -> list[Delivery]:
    return _deliveries_of(database, [event_id])


def due_deliveries(database: Database, now_ms: int, limit: int) -> list[Delivery]:
    return [_delivery(row) for row in database.rows(SQL.due_deliveries, (now_ms, limit))]


def next_due_at_ms(database: Database) -> int | None:
    return database.value(SQL.next_due_delivery)


def _deliveries_of(database: Database, event_ids: Iterable[EventId]) -> list[Delivery]:
    return [_delivery(row) for row in database.rows_for(SQL.deliveries_of_events, list(event_ids))]


def _delivery(row: Row) -> Delivery:
    return Delivery(
        event_id=row[0],
        to_agent_id=row[1],
        to_node_id=row[2],
        route_decision=row[3],
        seq=row[4],
        state=DeliveryState(row[5]),
        attempts=row[6],
        due_at_ms=row[7],
        emitted_at_ms=row[8],
        accepted_at_ms=row[9],
        closed_at_ms=row[10],
        answered_by_event_id=row[11],
        reason=row[12],
    )
