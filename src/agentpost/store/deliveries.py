"""The deliveries table: the sender's view of each recipient. What a signal does is decided by the protocol."""

from collections.abc import Iterable, Mapping, Sequence

from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.rules import move_deliveries
from agentpost.store.transaction import Transaction, delivery_row

__all__ = ["apply_changes", "deliveries_of", "due_deliveries", "next_due_at_ms"]


def apply_changes(tx: Transaction, changes: Sequence[Change], places: Mapping[EventId, int]) -> list[Change]:
    """Move the deliveries that the changes speak of; gives back the changes that speak of none (orphans).

    `places` are the seqs of the events that this transaction appends along with the changes.
    """
    if not changes:
        return []
    tx.flush()
    found = {
        (delivery.event_id, delivery.to_agent_id): delivery
        for delivery in _deliveries_of(tx.database, {change.event_id for change in changes})
    }
    moved, orphans = move_deliveries(found, changes, places)
    if moved:
        tx.database.run_many(
            SQL.replace_delivery, [delivery_row(delivery, delivery.seq) for delivery in moved.values()]
        )
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
