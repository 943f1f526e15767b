"""The deliveries table: the sender's view of each recipient. What a signal does is decided by the protocol."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from agentpost.protocol.delivery import SLA_MISSED, Change, Delivery, advance, is_undelivered
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store import rules
from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.rules import is_first_word, move_deliveries, not_resendable, outcomes_heard_late
from agentpost.store.transaction import Transaction
from agentpost.store.values import FailedAttempt, FailureReport, ResentLetter, Unaccepted

__all__ = [
    "apply_changes",
    "count_deliveries",
    "deliveries_by_corr",
    "deliveries_in",
    "deliveries_of",
    "due_deliveries",
    "failed_attempts_of",
    "undelivered",
    "failing_before",
    "next_due_at_ms",
    "note_failed_attempts",
    "note_resent",
    "purge",
    "report_failures",
    "reschedule",
    "unaccepted_by",
    "unaccepted_counts",
]


# What receivers say, in answer to an event that was sent. The rest is decided here, about deliveries that were read.
_HEARD: Final = frozenset(
    {DeliverySignal.ACCEPTED, DeliverySignal.PROCESSED, DeliverySignal.FAILED_TERMINAL, DeliverySignal.REPLY}
)


def apply_changes(tx: Transaction, changes: Sequence[Change], places: Mapping[EventId, int]) -> list[Change]:
    """Move the deliveries that the changes speak of; gives back the changes that speak of none (orphans).

    `places` are the seqs of the events that this transaction appends along with the changes.
    """
    if not changes:
        return []
    tx.flush()
    changes = _move_as_expected(tx.database, changes)
    if not changes:
        return []
    found = {
        (delivery.event_id, delivery.to_agent_id): delivery
        for delivery in _deliveries_of(tx.database, {change.event_id for change in changes})
    }
    moved, orphans = move_deliveries(found, changes, places)
    # What came in one batch mostly says the same of many: one statement for all of those.
    alike: dict[Row, list[str]] = {}
    for late in outcomes_heard_late(found, moved.values()):
        _close_missed_sla(tx.database, late)
    for pair, delivery in moved.items():
        is_elsewhere = delivery.seq != found[pair].seq
        alike.setdefault(_moved_row(delivery, is_elsewhere=is_elsewhere), []).append(pair[0] + pair[1])
    for how, pairs in alike.items():
        tx.database.run_packed(SQL.move_deliveries, how, pairs)
    return orphans


def _move_as_expected(database: Database, changes: Sequence[Change]) -> Sequence[Change]:
    """Move the deliveries that stand where an ACK mostly finds them, unseen; gives the changes of all the others.

    What a receiver says again changes nothing, so it does not matter that some of a group were moved already.
    """
    heard: dict[str, tuple[Change, ...]] = {}
    for change in changes:
        if change.signal not in _HEARD:
            return changes
        pair = change.event_id + change.to_agent_id
        before = heard.get(pair)
        heard[pair] = (change,) if before is None else (*before, change)
    alike: dict[Row, list[str]] = {}
    for pair, said in heard.items():
        alike.setdefault(tuple([_news(change) for change in said]), []).append(pair)
    unexpected: set[str] = set()
    for pairs in alike.values():
        said = heard[pairs[0]]
        before = DeliveryState.EMITTED if said[0].signal is DeliverySignal.ACCEPTED else DeliveryState.ACCEPTED
        after = Delivery(event_id=said[0].event_id, to_agent_id=said[0].to_agent_id, state=before)
        for change in said:
            after = advance(after, change)
        if after.late is not None:
            unexpected.update(pairs)
            continue
        rows = database.changed_rows()
        database.run_packed(
            SQL.move_expected,
            (
                after.state.value,
                after.due_at_ms,
                after.accepted_at_ms,
                after.closed_at_ms,
                after.answered_by_event_id,
                after.reason,
                1 if is_undelivered(after) else None,
                before.value,
            ),
            pairs,
        )
        if database.changed_rows() - rows != len(pairs):
            unexpected.update(pairs)
    return [change for change in changes if change.event_id + change.to_agent_id in unexpected] if unexpected else []


def _close_missed_sla(database: Database, late: Delivery) -> None:
    """The outcome is there after all: nobody has to look for it any more."""
    at_ms, subject = late.late_at_ms or 0, f"{late.event_id}/{late.to_agent_id}"
    before = database.changed_rows()
    database.run(SQL.close_incident, (at_ms, SLA_MISSED.value, subject))
    if database.changed_rows() != before:
        closed = rules.missed_sla_closed(late)
        row = (at_ms, closed.actor, closed.action, subject, closed.corr_id, None, json.dumps(closed.detail))
        database.run(SQL.record_audit, row)


def _news(change: Change) -> Row:
    return (change.signal, change.at_ms, change.due_at_ms, change.answered_by_event_id, change.reason)


def _moved_row(delivery: Delivery, *, is_elsewhere: bool) -> Row:
    return (
        delivery.to_node_id,
        delivery.route_decision,
        delivery.seq if is_elsewhere else None,
        delivery.state.value,
        delivery.attempts,
        delivery.due_at_ms,
        delivery.accepted_at_ms,
        delivery.closed_at_ms,
        delivery.answered_by_event_id,
        delivery.reason,
        delivery.late,
        delivery.late_at_ms,
        1 if is_undelivered(delivery) else None,
    )


def deliveries_of(database: Database, event_id: EventId) -> list[Delivery]:
    # What somebody asks for may be anything; with a NUL in it, it is not even text to SQLite.
    return [] if "\0" in event_id else _deliveries_of(database, [event_id])


def due_deliveries(database: Database, now_ms: int, limit: int) -> list[Delivery]:
    return [_delivery(row) for row in database.rows(SQL.due_deliveries, (now_ms, limit))]


def unaccepted_by(database: Database, node_id: str, after_seq: int, through_seq: int, limit: int) -> list[Delivery]:
    return [_delivery(row) for row in database.rows(SQL.unaccepted_by, (after_seq, through_seq, node_id, limit))]


def unaccepted_counts(database: Database, most: int) -> list[Unaccepted]:
    return [
        Unaccepted(node_id=node_id, count=count, since_ms=database.value(SQL.unaccepted_since, (first_seq,)))
        for node_id, count, first_seq in database.rows(SQL.unaccepted_counts, (most,))
        if node_id is not None
    ]


def next_due_at_ms(database: Database) -> int | None:
    return database.value(SQL.next_due_delivery)


def deliveries_in(
    database: Database, states: Iterable[DeliveryState], after: tuple[str, str], limit: int
) -> list[Delivery]:
    found = [
        _delivery(row)
        for state in set(states)
        for row in database.rows(SQL.deliveries_in_state, (state.value, *after, limit))
    ]
    return sorted(found, key=lambda delivery: (delivery.event_id, delivery.to_agent_id))[: max(limit, 0)]


def undelivered(database: Database, after: tuple[str, str], limit: int) -> list[Delivery]:
    return [_delivery(row) for row in database.rows(SQL.undelivered, (*after, limit))]


def note_failed_attempts(tx: Transaction, attempts: Sequence[FailedAttempt]) -> None:
    """Keep what agents' gateways say of tries that failed, each for the delivery that it is about."""
    rows = [
        (
            each.event_id,
            each.to_agent_id,
            each.attempt,
            each.most_attempts,
            each.at_ms,
            each.next_at_ms,
            int(each.holds_back),
            each.raw,
            each.by_node_id,
        )
        for each in attempts
    ]
    tx.database.run_many(SQL.note_failed_attempt, rows)


def failed_attempts_of(database: Database, event_id: EventId) -> list[FailedAttempt]:
    if "\0" in event_id:
        return []
    return [
        FailedAttempt(
            event_id=row[0],
            to_agent_id=row[1],
            attempt=row[2],
            most_attempts=row[3],
            first_at_ms=row[4],
            at_ms=row[5],
            next_at_ms=row[6],
            holds_back=bool(row[7]),
            raw=row[8],
        )
        for row in database.rows(SQL.failed_attempts_of, (event_id,))
    ]


def failing_before(database: Database, delivery: Delivery, after_ms: int) -> EventId | None:
    return database.value(SQL.failing_before, (delivery.to_agent_id, after_ms, delivery.from_agent_id, delivery.seq))


def report_failures(tx: Transaction, reports: Sequence[FailureReport]) -> tuple[Delivery, ...]:
    """Append the report of each delivery that has not ended; gives the deliveries of those reports.

    To be called before the changes are made that end them: what ended before was told then.
    """
    tx.flush()
    telling = [each for each in reports if is_first_word(deliveries_of(tx.database, each.event_id), each)]
    if telling:
        tx.append([each.event for each in telling], [each.delivery for each in telling])
    return tuple(each.delivery for each in telling)


def deliveries_by_corr(database: Database, corr_id: str) -> list[Delivery]:
    return [_delivery(row) for row in database.rows(SQL.deliveries_by_corr, (corr_id,))]


def count_deliveries(database: Database, only: DeliveryState | None) -> dict[DeliveryState, int]:
    if only is not None:
        count: int = database.value(SQL.count_deliveries_in_state, (only.value,))
        return {only: count} if count else {}
    return {DeliveryState(state): count for state, count in database.rows(SQL.count_deliveries)}


def reschedule(tx: Transaction, pairs_due: Sequence[tuple[EventId, str, int | None]]) -> None:
    tx.flush()
    tx.database.run_many(SQL.reschedule, [(due_at_ms, event_id, agent) for event_id, agent, due_at_ms in pairs_due])


def note_resent(tx: Transaction, resends: Sequence[ResentLetter]) -> None:
    tx.flush()
    for letter in resends:
        before = tx.database.changed_rows()
        tx.database.run(SQL.note_resent, (letter.resent_as, letter.event_id, letter.to_agent_id))
        if tx.database.changed_rows() == before:
            raise not_resendable(letter)


def purge(tx: Transaction, pairs: Sequence[tuple[EventId, str]]) -> int:
    tx.flush()
    before = tx.database.changed_rows()
    tx.database.run_many(SQL.purge_delivery, pairs)
    purged = tx.database.changed_rows() - before
    tx.database.run_many(SQL.forget_dead_letter_event, [(event_id,) for event_id, _ in pairs])
    tx.database.run_many(SQL.forget_failed_attempt, pairs)
    return purged


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
        corr_id=row[13],
        from_agent_id=row[14],
        resent_as=row[15],
        late=None if row[16] is None else DeliverySignal(row[16]),
        late_at_ms=row[17],
    )
